package approvals

import (
	"testing"

	"github.com/toolfleet/toolfleet/messages"
)

// A closed question says by whom it was closed.
func TestWhoDecidedIsShown(t *testing.T) {
	for want, p := range map[string]messages.Pending{
		"0123456789ab  granted by ann, bob  pay": {State: messages.PendingGranted, Agreed: []string{"ann", "bob"}},
		"0123456789ab  denied by bob  pay":       {State: messages.PendingDenied, Agreed: []string{"ann", "bob"}},
		"0123456789ab  expired  pay":             {State: messages.PendingExpired, Agreed: []string{"ann"}},
		"0123456789ab  granted  pay":             {State: messages.PendingGranted},
	} {
		p.ID, p.Line = "0123456789abcdef", "pay"
		if got := newsLine(p); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
