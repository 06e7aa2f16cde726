package pipeline

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/call"
	"github.com/toolfleet/toolfleet/worker/permission"
)

// asked is the time of the questions in these tests, by the server's clock.
var asked = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

const ttl = 15 * time.Minute

// desk is a pipeline with approvers. It keeps the audit lines that the pipeline has written.
type desk struct {
	testing.TB
	pipe  *Pipeline
	probe *probe
	now   time.Time
	keys  map[string]approval.Key
	lines []messages.AuditRecord
	full  bool // the audit log fails to take lines
}

// deskFor serves one tool under the rules, with the approvers alice and bob.
func deskFor(t testing.TB, cfg Config, promise schemas.Tool, p *probe) *desk {
	t.Helper()
	d := &desk{TB: t, probe: p, now: asked.Add(time.Minute), keys: map[string]approval.Key{}}
	var people []messages.Approver
	for _, name := range []string{"alice", "bob"} {
		key, err := approval.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		d.keys[name] = key
		people = append(people, messages.Approver{Name: name, Key: key.Public()})
	}
	approvers, err := approval.NewApprovers(people)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Approvals = approvers
	cfg.Now = func(context.Context) time.Time { return d.now }
	cfg.Audit = func(_ context.Context, line messages.AuditRecord) error {
		if d.full {
			return errors.New("full")
		}
		d.lines = append(d.lines, line)
		return nil
	}
	d.pipe = made(t, cfg, promise, p)
	return d
}

// bounds replaces the approvers: only alice is left, with this scope and until this time.
func (d *desk) bounds(s messages.Scope, until time.Time) {
	var err error
	d.pipe.cfg.Approvals, err = approval.NewApprovers([]messages.Approver{{Name: "alice", Key: d.keys["alice"].Public(), Scopes: []messages.Scope{s}, Expires: until}})
	if err != nil {
		d.Fatal(err)
	}
}

// audited returns the types of the audit lines so far.
func (d *desk) audited() (types []messages.AuditType) {
	for _, line := range d.lines {
		types = append(types, line.Type)
	}
	return types
}

// asks runs the call, which has to end in a question. It returns the record of the parked
// call.
func (d *desk) asks(job wire.Job, prior *wire.CallRecord) wire.CallRecord {
	d.Helper()
	runs := d.probe.effects.Load()
	claim := func(context.Context, call.Frozen) (call.Grant, error) { d.Error("claimed"); return call.Grant{}, nil }
	r, err := d.pipe.Run(d.Context(), d.planned(job), prior, claim, nil)
	var ask *call.Ask
	if !errors.As(err, &ask) || d.probe.effects.Load() != runs {
		d.Fatalf("got %s %v, %v after %d runs, want a question and no run", r.Status, r.Err, err, d.probe.effects.Load()-runs)
	}
	q := ask.Approval
	q.Asked, q.Expires = asked, asked.Add(ttl)
	q.ID = approval.ID(q)
	return wire.CallRecord{State: wire.Parked, ArgsHash: ask.ArgsHash, Hooks: ask.Hooks, Approval: &q}
}

// says returns the record of a parked call after a person, named by, has answered its
// question.
func (d *desk) says(parked wire.CallRecord, by string, v messages.Verdict, change func(*messages.Decision)) wire.CallRecord {
	d.Helper()
	decision := approval.Answer(*parked.Approval, v, by)
	decision.At = asked
	if change != nil {
		change(&decision)
	}
	signed, err := d.keys[by].Sign(decision)
	if err != nil {
		d.Fatal(err)
	}
	q, state, refusal := d.pipe.cfg.Approvals.(approval.Approvers).Take(*parked.Approval, signed, asked.Add(time.Minute))
	if refusal != nil {
		d.Fatal(refusal)
	}
	if state == messages.DecisionGranted {
		parked.State = wire.Granted
	}
	parked.Approval, parked.ArgsHash = &q, q.ArgsHash
	return parked
}

func (d *desk) agrees(parked wire.CallRecord) wire.CallRecord {
	d.Helper()
	return d.says(parked, "alice", messages.VerdictApprove, nil)
}

// runs runs the call to its result. It also returns the claims that the pipeline asked for.
func (d *desk) runs(job wire.Job, prior *wire.CallRecord) (r messages.Result, claimed []call.Frozen) {
	d.Helper()
	r, err := d.pipe.Run(d.Context(), d.planned(job), prior, func(_ context.Context, f call.Frozen) (call.Grant, error) {
		claimed = append(claimed, f)
		return call.Grant{Attempt: 1, Fence: 7}, nil
	}, nil)
	if err != nil {
		d.Fatalf("no result: %v", err)
	}
	return r, claimed
}

// planned returns the job with the digest of the definition that the worker has now.
func (d *desk) planned(job wire.Job) wire.Job {
	served, _ := d.pipe.cfg.Registry.Lookup(job.Tool)
	job.ToolDigest = served.Digest
	return job
}

// askJob is a call of w from tenant acme.
func askJob(input string) wire.Job {
	job := jobFor(write, input)
	job.Tenant = "acme"
	return job
}

// wantVoid checks that there is one audit line, which says that the approval does not hold. It
// has to give the reason and no value of the arguments.
func (d *desk) wantVoid(granted wire.CallRecord) {
	d.Helper()
	if diff := cmp.Diff([]messages.AuditType{messages.AuditVoid}, d.audited()); diff != "" {
		d.Fatal(diff)
	}
	line := d.lines[0]
	if line.Refusal == nil || line.Refusal.Message == "" || line.Approval != granted.Approval.ID || line.ArgsHash != granted.ArgsHash {
		d.Errorf("audited %+v", line)
	} else if strings.Contains(line.Refusal.Message, "424242") {
		d.Errorf("the reason holds a value: %s", line.Refusal.Message)
	}
}

// risky returns rules that give every call the tier.
func risky(t testing.TB, tier messages.Tier) permission.Rules {
	t.Helper()
	return policy(t, permission.Config{Version: "v1", Layers: []permission.Layer{{Source: "platform", Rules: schemas.Rules{
		Risk: []schemas.RiskEntry{{Name: "much", Tool: "*", Tier: tier}},
	}}}})
}
