package soak

import "github.com/toolfleet/toolfleet/messages"

// checkApproval checks a call that needs an approval. The call may start only with arguments
// that a person has approved. Its result must agree with the answers that the approvers got.
func (c *checker) checkApproval(b *Batch, i int, r *runs) {
	key, result := callKey{b.ID, i}, b.Reply.Results[i]
	decisions := c.Decisions[key.String()]
	for _, s := range r.starts {
		if !approvedBefore(decisions, s) {
			c.report(Unasked, key.String(), "%s started it with %d ms, and the decisions are %+v", s.Worker, s.MS, decisions)
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
			c.report(Untrue, key.String(), "%s got the answer %s, and the result is %s", s.By, s.State, outcome(result))
		}
		taken++
	}
	if taken > 1 {
		c.report(Twice, key.String(), "two decisions were accepted: %+v", decisions)
	}
	if code == messages.CodeDeniedByUser && !anyDecision(decisions, messages.VerdictDeny) {
		c.report(Untrue, key.String(), "denied, and no decision denies it")
	}
}

func approvedBefore(decisions []Decision, start line) bool {
	for _, s := range decisions {
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
