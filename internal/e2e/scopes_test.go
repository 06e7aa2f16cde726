package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// scopedPeople returns the approvers of a policy file with groups. bank decides about refunds
// of this tenant, other about calls of another tenant, and tools about other tools. The key of
// late has expired.
func scopedPeople(t *testing.T, now time.Time) (p people, policy string) {
	t.Helper()
	p = newPeople(t, "bank", "other", "tools", "late")
	policy = refunds + `
groups:
  - {name: refunds, tenants: [_], tools: ["ref*"]}
  - {name: elsewhere, tenants: [globex]}
  - {name: files, tools: [Write, Edit]}
approvers:
`
	for name, bound := range map[string]string{"bank": "groups: [files, refunds]", "other": "groups: [elsewhere]", "tools": "groups: [files]", "late": "expires: " + now.UTC().Format(time.RFC3339)} {
		policy += fmt.Sprintf("  - {name: %s, key: %s, %s}\n", name, p.keys[name].Public(), bound)
	}
	parsed, err := schemas.ParsePolicy("policy.yaml", []byte(policy))
	if err == nil {
		p.approvers, err = approval.NewApprovers(parsed.Approvers)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p, policy
}

// A person may answer only questions that one of their groups decides about, and only while
// their key is valid. The list of questions says who may answer.
func TestApproversHaveScopes(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		p, policy := scopedPeople(t, time.Now())
		ledger := f.addBankTools()
		f.worker(p.worker(t, policy))
		f.coordinator(p.coordinator())
		b := batchIn(messages.Anthropic, "s", "b", refund("149.99"))
		f.submit(b)
		q := f.question(b, 0)
		f.until("the list names who may answer", func() bool {
			list, err := f.client.Approvals(t.Context())
			return err == nil && len(list) == 1 && cmp.Equal(list[0].MayAnswer, []string{"bank"})
		})
		for name, class := range map[string]messages.Class{"other": messages.ClassOutOfScope, "tools": messages.ClassOutOfScope, "late": messages.ClassKeyExpired} {
			for _, verdict := range []messages.Verdict{messages.VerdictApprove, messages.VerdictDeny} {
				_, err := f.sendDecision(p, name, q, verdict, nil)
				wantRefused(t, name, err, class)
				if class == messages.ClassOutOfScope && !strings.Contains(fmt.Sprint(err), name+" may not decide about refund") {
					t.Errorf("%s reads %v", name, err)
				}
			}
		}
		if n := len(ledger.all()); n != 0 {
			t.Fatalf("refunded %d times after decisions that do not count", n)
		}
		f.approve(p, "bank", q)
		f.wantStatuses(f.reply(b, 30*time.Second), "ok")
		_, err := f.sendDecision(p, "other", q, messages.VerdictApprove, nil)
		wantRefused(t, "other, about a question that is closed", err, messages.ClassOutOfScope)
	})
}

// A coordinator that knows no scopes accepts a decision out of scope. The worker does not
// accept it, and asks again.
func TestAWorkerChecksScopes(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		p, policy := scopedPeople(t, time.Now())
		ledger := f.addBankTools()
		f.worker(worker.Config{Rules: rules(t, policy), Approvals: p.approvers})
		var free []messages.Approver
		for name, key := range p.keys {
			free = append(free, messages.Approver{Name: name, Key: key.Public()})
		}
		all, err := approval.NewApprovers(free)
		if err != nil {
			t.Fatal(err)
		}
		f.coordinator(coordinator.Config{Approvers: all})
		b := batchIn(messages.Anthropic, "s", "b", refund("149.99"))
		f.submit(b)
		q := f.question(b, 0)
		f.approve(p, "other", q)
		var again messages.Approval
		f.until("a person is asked again", func() bool {
			again, err = f.client.Approval(t.Context(), b.Session, b.ID, 0)
			return err == nil && again.ID != q.ID
		})
		if n := len(ledger.all()); n != 0 {
			t.Fatalf("refunded %d times after a decision of another group", n)
		}
		f.approve(p, "bank", again)
		f.wantStatuses(f.reply(b, 30*time.Second), "ok")
	})
}
