package soak

import (
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/e2e/soak/ledger"
	"github.com/toolfleet/toolfleet/messages"
)

func TestAReportMeasures(t *testing.T) {
	h := good()
	h.Faults[0].At, h.Faults[0].Until = after(10500*time.Millisecond), after(11*time.Second) // w1 had started the put of b2
	h.Faults = append(h.Faults, Fault{Member: server, Process: "server.1", Act: Kill, At: after(20 * time.Second), Until: after(21 * time.Second)})
	h.Replies = []time.Time{after(2 * time.Second), after(10 * time.Second), after(23 * time.Second)}
	r := (&Report{Drain: time.Second}).judge(*h)
	if want := 500 * time.Millisecond; len(r.Takeovers.Calm) != 1 || r.Takeovers.Calm[0] != want {
		t.Errorf("takeovers %v, want one of %s: the put of b2, started again in line 12", r.Takeovers, want)
	}
	if want := 2 * time.Second; len(r.Recovery.Calm) != 1 || r.Recovery.Calm[0] != want {
		t.Errorf("recoveries %v, want one of %s", r.Recovery, want)
	}
	if r.CutShort != 1 || r.Retaken != 1 || r.Shut != 0 || r.Statuses[messages.StatusOutcomeUnknown] != 1 {
		t.Errorf("%d calls cut short, %d run again, %d shut out, results %v", r.CutShort, r.Retaken, r.Shut, r.Statuses)
	}
	if !r.Passed() {
		t.Errorf("not passed: %v %v", r.Violations, r.Slow())
	}
	r.Drain = tolerance*drainTarget + time.Second
	if r.Passed() {
		t.Error("passed, and it took far too long to drain")
	}
	var text strings.Builder
	r.Print(&text)
	if !strings.Contains(text.String(), "too slow: drained") || !strings.Contains(text.String(), "FAILED") {
		t.Errorf("the report does not say what is wrong:\n%s", text.String())
	}
}

// A worker was killed while a coordinator was away too, so its takeover counts as disturbed. A
// retry is no takeover.
func TestATakeoverDuringAnotherFaultIsNotMeasured(t *testing.T) {
	h := good()
	h.Faults[0].At, h.Faults[0].Until = after(10500*time.Millisecond), after(11*time.Second)
	h.Faults = append(h.Faults, Fault{Member: "coordinator-1", Process: "coordinator-1.1", Act: Kill, At: after(10 * time.Second), Until: after(10600 * time.Millisecond)})
	if got := takeovers(*h); len(got.Calm) != 0 || len(got.All) != 1 {
		t.Errorf("got %v, want one that was disturbed", got)
	}
	h.Ledger[10].Point = ledger.End
	if got := takeovers(*h); len(got.All) != 0 {
		t.Errorf("got %v of a run that had ended", got)
	}
}
