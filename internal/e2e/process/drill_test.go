package process

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// After a wrong refund, the audit log answers "which arguments did the model give in the
// second round?". The commands for that in docs/audit.md show what the page shows.
func TestTheDrillOfAWrongRefund(t *testing.T) {
	t.Parallel()
	for _, needed := range []string{"bash", "jq"} {
		if _, err := exec.LookPath(needed); err != nil {
			t.Skipf("no %s: the commands of docs/audit.md are not run", needed)
		}
	}
	page, err := os.ReadFile("../../../docs/audit.md")
	if err != nil {
		t.Fatal(err)
	}
	_, drill, found := strings.Cut(string(page), "\n## A wrong refund\n")
	drill, _, _ = strings.Cut(drill, "\n## ")
	if !found {
		t.Fatal("docs/audit.md has no drill")
	}
	all, err := snippets(strings.ReplaceAll(drill, "\ntoolfleet ", "\nbin/toolfleet "))
	if err != nil {
		t.Fatalf("docs/audit.md: %v", err)
	}
	r := newReader(t)
	if err := os.Rename(filepath.Join(r.dir, ".built"), filepath.Join(r.dir, "bin")); err != nil {
		t.Fatal(err)
	}
	for i, s := range all {
		follow := func() error { return r.follow(s) }
		// The audit lines come at most a moment after the reply.
		if strings.Contains(s.text, "toolfleet audit ") {
			follow = func() error { return r.until(func() error { return errors.Join(r.follow(s), r.follow(all[i+1])) }) }
		}
		if err := follow(); err != nil {
			t.Fatalf("docs/audit.md, line %d of the drill: %s: %v", s.line, s.verb, err)
		}
	}
}
