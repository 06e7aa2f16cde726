package lane

import (
	"testing"

	"github.com/toolfleet/toolfleet/worker/attempt"
)

// An event without a row in counts must not count as a taken job: there would be one call too
// many in flight for ever.
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
