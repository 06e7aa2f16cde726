package attempt_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/worker/attempt"
)

// reach lists the states of an attempt, each with the scenario lines that lead to it.
var reach = []struct {
	state attempt.State
	call  string
	lines []string
}{
	{attempt.Waiting, "write", nil},
	{attempt.Bouncing, "write", []string{"delivered unserved"}},
	{attempt.Looking, "read", []string{"delivered count=2"}},
	{attempt.Looking, "write", []string{"delivered count=2"}},
	{attempt.Beginning, "write", []string{"delivered"}},
	{attempt.Running, "read", []string{"delivered", "began"}},
	{attempt.Running, "write", []string{"delivered", "began"}},
	{attempt.Claiming, "write", []string{"delivered", "began", "wanted"}},
	{attempt.Holding, "write", []string{"delivered", "began", "wanted", "stored seq=7"}},
	{attempt.Stopping, "write", []string{"delivered", "began", "wanted", "stored seq=7", "stopped"}},
	{attempt.LookingAgain, "write", []string{"delivered", "began", "wanted", "overtaken state=claimed seq=7", "ended refused"}},
	{attempt.Offloading, "read", []string{"delivered", "began", "ended bytes=300000"}},
	{attempt.Storing, "read", []string{"delivered", "began", "ended"}},
	{attempt.Storing, "write", []string{"delivered", "began", "wanted", "stored seq=7", "ended"}},
	{attempt.Releasing, "write", []string{"delivered", "began", "wanted", "stored seq=7", "ended error retryable"}},
	{attempt.Parking, "write", []string{"delivered", "began", "ended ask"}},
	{attempt.HandingBack, "read", []string{"delivered", "began", "ended back"}},
	{attempt.Closing, "read", []string{"delivered", "began", "ended", "stored"}},
	{attempt.Over, "read", []string{"delivered", "began", "ended", "stored", "closed"}},
}

// every lists the events that a machine can get. An event with several meanings stands once
// for each of them.
var every = []string{
	"delivered", "no-result", "result", "record", "record state=ended seq=9", "began", "wanted", "progress", "ended", "ended ask",
	"stored seq=9", "stored seq=9 renewal", "overtaken state=claimed seq=9", "overtaken state=claimed seq=9 renewal", "failed", "failed why=large", "failed why=terminal",
	"failed renewal", "tick", "+3334ms tick", "+8s tick", "stopped", "draining", "closed",
}

// TestEveryEventInEveryState pins the table of the package comment: the state that each event leads
// to from each state, and the effects on the way. No pair panics. An attempt in Over stays there,
// and its only effect is to refuse a claim.
func TestEveryEventInEveryState(t *testing.T) {
	var out strings.Builder
	for _, from := range reach {
		fmt.Fprintf(&out, "%s (%s)\n", from.state, from.call)
		for _, event := range every {
			s := &scenario{TB: t, now: epoch}
			s.begin([]string{from.call})
			for _, line := range from.lines {
				s.step(strings.Fields(line))
			}
			if got := s.m.State(); got != from.state {
				t.Fatalf("%v leads to %s, want %s", from.lines, got, from.state)
			}
			s.out.Reset()
			s.step(strings.Fields(event))
			var verbs []string
			for line := range strings.Lines(s.out.String()) {
				if strings.HasPrefix(line, "=") {
					break
				}
				verb, _, _ := strings.Cut(strings.TrimSpace(line), " ")
				verbs = append(verbs, strings.Trim(verb, ":"))
			}
			to := s.m.State().String()
			if s.m.State() == from.state {
				to = "."
			}
			if to == "." && len(verbs) == 0 {
				continue
			}
			fmt.Fprintf(&out, "  %-38s %-14s %s\n", event, to, strings.Join(verbs, " "))
		}
	}
	const file = "testdata/matrix.golden"
	if *update {
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), out.String()); diff != "" {
		t.Errorf("-want +got (-update rewrites %s):\n%s", file, diff)
	}
}
