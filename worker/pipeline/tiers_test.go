package pipeline

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/hook"
)

// A call of tier medium needs a line in the audit log. A call of tier high needs an approval,
// and one of tier critical two approvals and a ticket.
func TestTiers(t *testing.T) {
	job := askJob(`{"n":1}`)
	t.Run("medium", func(t *testing.T) {
		d := deskFor(t, Config{Rules: risky(t, messages.TierMedium)}, write, &probe{})
		d.full = true
		if r, _ := d.runs(job, nil); r.Status != messages.StatusError || !r.Err.Retryable || d.probe.effects.Load() > 0 {
			t.Errorf("without an audit line: got %s %v after %d runs", r.Status, r.Err, d.probe.effects.Load())
		}
		d.full = false
		if r, _ := d.runs(job, nil); r.Status != messages.StatusOK || r.Permission.Tier != messages.TierMedium {
			t.Errorf("got %s %v %+v", r.Status, r.Err, r.Permission)
		}
		if diff := cmp.Diff([]messages.AuditType{messages.AuditAllowed}, d.audited()); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("high", func(t *testing.T) {
		d := deskFor(t, Config{Rules: risky(t, messages.TierHigh), Hooks: hooks(t, verdict(hook.Verdict{Opinion: hook.Allow}))}, write, &probe{})
		granted := d.agrees(d.asks(job, nil))
		if r, _ := d.runs(job, &granted); r.Status != messages.StatusOK || r.Permission.Source != "tier" || r.Permission.Rule != "much" {
			t.Errorf("got %s %v %+v", r.Status, r.Err, r.Permission)
		}
	})
	t.Run("critical", func(t *testing.T) {
		d := deskFor(t, Config{Rules: risky(t, messages.TierCritical)}, write, &probe{})
		ticketed := func(d *messages.Decision) { d.Ticket = "T-1" }
		one := d.says(d.asks(job, nil), "alice", messages.VerdictApprove, ticketed)
		if one.State != wire.Parked || one.Approval.Approvers != 2 || !one.Approval.Ticket {
			t.Fatalf("after one person: %+v", one)
		}
		two := d.says(one, "bob", messages.VerdictApprove, nil)
		r, _ := d.runs(job, &two)
		if r.Status != messages.StatusOK || r.Permission.Ticket != "T-1" || !slices.Equal(r.Permission.By, []string{"alice", "bob"}) {
			t.Errorf("got %s %v %+v", r.Status, r.Err, r.Permission)
		}
	})
	t.Run("critical, and one person", func(t *testing.T) {
		d := deskFor(t, Config{Rules: risky(t, messages.TierCritical)}, write, &probe{})
		d.pipe.cfg.Approvals, _ = approval.NewApprovers([]messages.Approver{{Name: "alice", Key: d.keys["alice"].Public()}})
		if r, _ := d.runs(job, nil); r.Status != messages.StatusDenied || r.Err.Code != messages.CodeApprovalRequired || !strings.HasPrefix(r.Err.Message, "2 people") {
			t.Errorf("got %s %v", r.Status, r.Err)
		}
	})
}

// A writer of the journal makes a question easier before people answer, for example with a
// lower tier: the approvals do not hold, because the question is not the one that the rules
// ask.
func TestAQuestionThatWasMadeEasier(t *testing.T) {
	job := askJob(`{"n":1}`)
	for name, change := range map[string]func(*messages.Approval){
		"a lower tier, without ticket": func(q *messages.Approval) { q.Tier, q.Ticket = messages.TierHigh, false },
		"a lower tier and one person":  func(q *messages.Approval) { q.Tier, q.Ticket, q.Approvers = messages.TierHigh, false, 1 },
		"no tier":                      func(q *messages.Approval) { q.Tier, q.Ticket = "", false },
		"another requester":            func(q *messages.Approval) { q.Requester = "nobody" },
	} {
		t.Run(name, func(t *testing.T) {
			d := deskFor(t, Config{Rules: risky(t, messages.TierCritical)}, write, &probe{})
			parked := d.asks(job, nil)
			change(parked.Approval)
			parked.Approval.ID = approval.ID(*parked.Approval)
			ticketed := func(d *messages.Decision) { d.Ticket = "T-1" }
			granted := d.says(parked, "alice", messages.VerdictApprove, ticketed)
			if granted.State != wire.Granted {
				granted = d.says(granted, "bob", messages.VerdictApprove, nil)
			}
			d.asks(job, &granted)
			d.wantVoid(granted)
		})
	}
}
