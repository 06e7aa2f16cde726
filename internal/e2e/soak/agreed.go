package soak

import "github.com/toolfleet/toolfleet/messages"

// checkApproval holds a call that asks to what people have said about it: it starts only with arguments that somebody has
// agreed to before, and its result is what they were told.
func (c *checker) checkApproval(b *Batch, i int, r *runs) {
	key, result := callKey{b.ID, i}, b.Reply.Results[i]
	decisions := c.Decisions[key.String()]
	for _, s := range r.starts {
		if !approvedBefore(decisions, s) {
			c.report(Unasked, key.String(), "%s started it with %d ms, and people have said %+v", s.Worker, s.MS, decisions)
		}
	}
	code := messages.Code("")
	if result.Err != nil {
		code = result.Err.Code
	}
	taken := 0
	for _, s := range decisions {
		switch {
		case s.State == "":
			continue
		case s.State == messages.DecisionDenied && code != messages.CodeDeniedByUser,
			s.State == messages.DecisionGranted && (code == messages.CodeDeniedByUser || code == messages.CodeApprovalExpired):
			c.report(Untrue, key.String(), "%s was told that it is %s, and it is %s", s.By, s.State, outcome(result))
		}
		taken++
	}
	if taken > 1 {
		c.report(Twice, key.String(), "two answers of people were taken: %+v", decisions)
	}
	if code == messages.CodeDeniedByUser && !anyDecision(decisions, messages.VerdictDeny) {
		c.report(Untrue, key.String(), "denied, and nobody did")
	}
}

func approvedBefore(said []Decision, start line) bool {
	for _, s := range said {
		if s.Verdict != messages.VerdictDeny && s.MS == start.MS && s.At.UnixNano() <= start.At {
			return true
		}
	}
	return false
}

func anyDecision(decisions []Decision, v messages.Verdict) bool {
	for _, s := range decisions {
		if s.Verdict == v {
			return true
		}
	}
	return false
}
