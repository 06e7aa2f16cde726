package wire_test

import (
	"testing"

	"github.com/toolfleet/toolfleet/internal/wire"
)

// The full stop of a reason is left out, because the texts that quote Why add their own.
func TestWhyEndsWithoutAFullStop(t *testing.T) {
	for reason, want := range map[string]string{
		"":                  "it was aborted by alice",
		"too slow":          "it was aborted by alice: too slow",
		"The user changed.": "it was aborted by alice: The user changed",
	} {
		stop := wire.Stop{By: "alice", Reason: reason}
		if got := stop.Why(); got != want {
			t.Errorf("Why() = %q, want %q", got, want)
		}
	}
}
