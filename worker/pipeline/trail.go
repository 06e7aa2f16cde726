package pipeline

import (
	"time"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/permission"
)

// trail is what only the record for people is told of the call. The hash of the result is left to the lane, which has the
// last word in it.
func (c *call) trail() *messages.Trail {
	t := &messages.Trail{ArgsHash: c.frozen.ArgsHash, ToolHash: c.given, PhasesMS: messages.PhasesMS{
		Validate: c.entered(Validate), Semantic: c.entered(Semantic), PreHooks: c.entered(PreHooks),
		Permissions: c.entered(Permissions), Execute: c.entered(Execute), PostHooks: c.entered(PostHooks),
	}}
	if t.ArgsHash == "" && len(c.input) <= c.cfg.MaxInput && messages.Check(c.input) == nil { // it ended before its input was frozen
		if canonical, err := messages.CanonicalJSON(c.input); err == nil {
			t.ArgsHash = messages.Digest(canonical)
		}
	}
	return t
}

// entered is how long a phase took, in milliseconds: a thousandth at least, and 0 when the call did not enter it.
func (c *call) entered(phase string) float64 {
	took, ok := c.took[phase]
	if !ok {
		return 0
	}
	return float64(max(took.Microseconds(), 1)) / 1000
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
