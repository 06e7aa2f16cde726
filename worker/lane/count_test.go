package lane

import (
	"testing"

	"github.com/toolfleet/toolfleet/worker/attempt"
)

// An event of an attempt that has no row in counts must not be counted as something else. As a
// taken job, it would leave one call in flight for ever.
func TestAnEventWithoutARow(t *testing.T) {
	if what := counts[attempt.Counted(255)]; what == Taken {
		t.Error("it counts as a taken job")
	}
	for _, event := range []attempt.Counted{attempt.Claimed, attempt.ClaimRefused, attempt.LeaseMissed, attempt.Progressed} {
		if _, ok := counts[event]; !ok {
			t.Errorf("event %d has no row", event)
		}
	}
}
