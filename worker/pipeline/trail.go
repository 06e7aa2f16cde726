package pipeline

import (
	"time"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/permission"
)

// trail returns what only the audit log shows of the call. The lane adds the hash of the
// result, because it may still change the result.
func (c *callRun) trail() *messages.Trail {
	t := &messages.Trail{ArgsHash: c.frozen.ArgsHash, ToolHash: c.replacedHash, PhasesMS: messages.PhasesMS{
		Validate: c.entered(Validate), Semantic: c.entered(Semantic), PreHooks: c.entered(PreHooks),
		Permissions: c.entered(Permissions), Execute: c.entered(Execute), PostHooks: c.entered(PostHooks),
	}}
	// The call ended before its input was frozen.
	if t.ArgsHash == "" && len(c.input) <= c.cfg.MaxInput && rawjson.Check(c.input) == nil {
		if canonical, err := rawjson.Canonical(c.input); err == nil {
			t.ArgsHash = messages.Digest(canonical)
		}
	}
	return t
}

// entered returns how long a phase took, in milliseconds: 0 if the call did not enter it,
// else at least 0.001.
func (c *callRun) entered(phase string) float64 {
	took, ok := c.phaseTimes[phase]
	if !ok {
		return 0
	}
	return float64(max(took.Microseconds(), 1)) / 1000
}

// countDecision reports the decision about the call to Config.Decided.
func (c *callRun) countDecision() {
	switch effect := c.ruling.Effect; {
	case effect == "":
	case c.agreement != nil:
		c.cfg.Decided(string(permission.Allow), "person")
	default:
		c.cfg.Decided(effect, c.ruling.Source)
	}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
