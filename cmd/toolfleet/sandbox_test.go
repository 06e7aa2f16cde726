package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/sandbox"
)

// The summary fits on a screen of 24 lines, whatever a policy lists. It leaves out nothing that is
// missing.
func TestTheSummaryOfASandbox(t *testing.T) {
	var many []string
	for i := range 100 {
		many = append(many, fmt.Sprint("/folder/", i))
	}
	policy := sandbox.Policy{Read: append([]string{"/usr", "/own"}, many...), Write: many, Temp: "/t", Protect: many, Hide: many[:2], Network: sandbox.NoNetwork, Limit: sandbox.Bounds{Processes: 5}}
	plan := sandbox.Resolve(policy, sandbox.Machine{OS: "linux", Landlock: 2, WhyNot: "not permitted", UID: 1000})
	rows := summary(policy, plan, []string{"/usr"})
	if len(rows) > 23 {
		t.Errorf("it has %d lines", len(rows))
	}
	missing := 0
	for _, row := range rows {
		line := strings.Join(row, "  ")
		if row[0] == "missing" {
			missing++
		} else if len(line) > 120 || strings.Contains(line, "/usr") {
			t.Errorf("the line %q", line)
		}
	}
	if missing != len(plan.Missing) || missing == 0 {
		t.Errorf("%d are missing, and %d are shown", len(plan.Missing), missing)
	}
}
