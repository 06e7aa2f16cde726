package pipeline

import (
	"time"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/permission"
)

// trail is what only the record for people is told of the call. The hash of the result is left to the lane, which has the
// last word in it.
func (c *call) trail() *messages.Trail {
	t := &messages.Trail{ArgsHash: c.frozen.ArgsHash, ToolHash: c.given, PhasesMS: make(map[string]float64, len(c.took))}
	if t.ArgsHash == "" && len(c.input) <= c.cfg.MaxInput && messages.Check(c.input) == nil { // it ended before its input was frozen
		if canonical, err := messages.CanonicalJSON(c.input); err == nil {
			t.ArgsHash = messages.Digest(canonical)
		}
	}
	for phase, took := range c.took {
		t.PhasesMS[phase] = float64(took.Microseconds()) / 1000
	}
	return t
}

// countDecision makes the decision about the call heard of.
func (c *call) countDecision() {
	switch effect := c.ruling.Effect; {
	case effect == "":
	case c.agreement != nil:
		c.cfg.Decided(string(permission.Allow), "person")
	default:
		c.cfg.Decided(effect, c.ruling.Source)
	}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
