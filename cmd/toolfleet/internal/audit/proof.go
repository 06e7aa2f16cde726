package audit

import (
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/audit"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// proof checks whether audit lines may be false. A worker may write any lines on its own
// subjects, and may copy a decision into them.
type proof struct {
	approvers approval.Approvers
	known     bool // the settings name a policy that can be read
}

// newProof reads the approvers of the policy. Without a policy no signature can be checked.
func newProof(a *command.App, cfg *config.Config) proof {
	if cfg.Policy == "" {
		return proof{}
	}
	policy, err := cfg.ReadPolicy("", schemas.Rules{})
	var p proof
	if err == nil {
		p.approvers, err = approval.NewApprovers(policy.Approvers)
	}
	if err != nil {
		a.Say("the signatures of decisions are not checked: %v", err)
		return proof{}
	}
	p.known = true
	return p
}

// doubt returns why a line may be false; "": proof found no reason.
func (p proof) doubt(e audit.Entry) string {
	switch e.Line.Type {
	case messages.AuditAsked, messages.AuditRefused, messages.AuditExpired:
		if e.ByWorker {
			return "any worker may have written it"
		}
	case messages.AuditDecided:
		return p.decision(e)
	}
	return ""
}

func (p proof) decision(e audit.Entry) string {
	l, d := e.Line, e.Line.Decision
	about := wire.KeyOf(string(l.Tenant), l.Session, l.Batch)
	switch {
	case d == nil:
		return "it holds no decision"
	case about != e.Key, d.Tenant != l.Tenant, d.Session != l.Session, d.Batch != l.Batch, d.Index != l.Index, d.CallID != l.CallID, d.Tool != l.Tool:
		return "the decision in it is about another call"
	case d.Verdict == messages.VerdictEdit: // the log leaves out the arguments, which the signature covers
		if e.ByWorker {
			return "any worker may have written it, and the signature of an edit cannot be checked here"
		}
	case p.known:
		return p.signature(*d, e.Stored)
	case e.ByWorker:
		return "any worker may have written it; with --policy its signature is checked"
	}
	return ""
}

// signature returns why the policy does not accept the signature of a decision that was stored
// at the given time; "": it does.
func (p proof) signature(d messages.Decision, at time.Time) string {
	switch r := p.approvers.Check(d, at); {
	case r == nil:
		return ""
	case r.Class == messages.ClassBadSignature:
		return "no approver whom the policy names has signed it"
	default:
		return "by the policy it does not count: " + r.Message
	}
}

// agreed returns why the line of an ended call may be false about the people who agreed. A
// worker writes that line, so each person in it needs a decision in the log without a doubt.
// lines are the lines of the run of the call.
func agreed(call messages.AuditRecord, lines []messages.AuditRecord) string {
	if call.Type != messages.AuditCall || call.Permission == nil || call.Permission.Effect == "deny" {
		return ""
	}
	for _, by := range call.Permission.By {
		if !slices.ContainsFunc(lines, func(l messages.AuditRecord) bool {
			return l.Type == messages.AuditDecided && l.Doubt == "" && l.Decision != nil && l.Decision.By == by && l.Decision.Verdict != messages.VerdictDeny
		}) {
			return "no decision of " + by + " in the log bears it out"
		}
	}
	return ""
}
