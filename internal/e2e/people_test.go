package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/permission"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// refunds is the policy of the tests about approvals: small refunds run at once, larger ones
// need one approver, and very large ones need two.
const refunds = `
risk:
  - {tier: high, tool: refund, when: "input.amount > 50", name: refunds-over-50}
  - {tier: critical, tool: refund, when: "input.amount > 1000", name: refunds-over-1000}
ask:
  - {tool: secret, name: secrets}
`

// people holds the keys of approvers, and the list of approvers that a fleet accepts.
type people struct {
	keys      map[string]approval.Key
	approvers approval.Approvers
}

func newPeople(t testing.TB, names ...string) people {
	t.Helper()
	p := people{keys: map[string]approval.Key{}}
	var known []messages.Approver
	for _, name := range names {
		key, err := approval.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		p.keys[name] = key
		known = append(known, messages.Approver{Name: name, Key: key.Public()})
	}
	var err error
	if p.approvers, err = approval.NewApprovers(known); err != nil {
		t.Fatal(err)
	}
	return p
}

// rules parses the text of a policy file into the rules of a worker.
func rules(t testing.TB, text string) permission.Rules {
	t.Helper()
	policy, err := schemas.ParsePolicy("policy.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	r, err := permission.New(permission.Config{
		Default: permission.Effect(policy.Default), Version: policy.Version,
		Layers: []permission.Layer{{Source: "policy.yaml", Rules: policy.Rules}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (p people) coordinator() coordinator.Config { return coordinator.Config{Approvers: p.approvers} }

func (p people) worker(t testing.TB, policy string) worker.Config {
	return worker.Config{Rules: rules(t, policy), Approvals: p.approvers}
}

// question waits until a person is asked about a call, and returns the question.
func (f *fleet) question(b messages.Batch, index int) messages.Approval {
	f.t.Helper()
	var q messages.Approval
	f.until(fmt.Sprintf("a person is asked about call %d of %s", index, b.ID), func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		var err error
		q, err = f.client.Approval(ctx, b.Session, b.ID, index)
		return err == nil
	})
	return q
}

// sendDecision signs a decision as a person, sends it, and returns the state of the question.
// change may edit the decision before it is signed.
func (f *fleet) sendDecision(p people, name string, q messages.Approval, v messages.Verdict, change func(*messages.Decision)) (messages.DecisionState, error) {
	f.t.Helper()
	d := approval.Answer(q, v, name)
	d.At = time.Now().UTC()
	if change != nil {
		change(&d)
	}
	signed, err := p.keys[name].Sign(d)
	if err != nil {
		f.t.Fatal(err)
	}
	return f.decide(signed)
}

func (f *fleet) decide(d messages.Decision) (messages.DecisionState, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	answer, err := f.client.Decide(ctx, d)
	return answer.State, err
}

// wantRefused checks that err is a refusal of this class.
func wantRefused(t testing.TB, what string, err error, class messages.Class) {
	t.Helper()
	var refusal *messages.Refusal
	if !errors.As(err, &refusal) || refusal.Class != class {
		t.Errorf("%s: %v, want a refusal of the class %s", what, err, class)
	}
}

// openLine decodes an audit line about an open call, from a worker or from a coordinator.
func openLine(m bus.Msg) (line messages.AuditRecord, err error) {
	if !strings.HasSuffix(m.Subject, ".question") {
		err = json.Unmarshal(m.Data, &line)
		return line, err
	}
	var said wire.AuditLines
	if err = json.Unmarshal(m.Data, &said); err != nil || len(said.Lines) != 1 {
		return line, fmt.Errorf("%s: %d lines, %v", m.Subject, len(said.Lines), err)
	}
	return said.Whole()[0], nil
}

// auditCounts counts the audit lines about questions and decisions by type. Refusals are also
// counted by class.
func (f *fleet) auditCounts() map[string]int {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	msgs, err := f.conn.All(ctx, f.conn.Names().Stream(bus.Audit), f.conn.Names().All(wire.VerbAudit))
	if err != nil {
		f.t.Fatal(err)
	}
	lines := map[string]int{}
	for _, m := range msgs {
		if strings.Contains(m.Subject, ".ended.") {
			continue
		}
		r, err := openLine(m)
		if err != nil {
			f.t.Fatal(err)
		}
		name := string(r.Type)
		if r.Refusal != nil {
			name += " " + string(r.Refusal.Class)
		}
		lines[name]++
	}
	return lines
}

// addBankTools registers lookup, a read, and refund, a write whose runs are recorded.
func (f *fleet) addBankTools() *toolRecord {
	f.tool(schemas.Tool{Name: "lookup", Kind: messages.KindRead}, func(_ context.Context, c tool.Call) (tool.Output, error) {
		return tool.Output{Value: c.Input}, nil
	})
	return f.recordedTool(schemas.Tool{Name: "refund"}, func(_ context.Context, n int) (tool.Output, error) { return tool.Text(fmt.Sprint("refund ", n)), nil })
}

func refund(amount string) call { return call{"refund", `{"order":"A-1001","amount":` + amount + `}`} }

// approve approves a question as the named person, and checks that the call is granted.
func (f *fleet) approve(p people, name string, q messages.Approval) {
	f.t.Helper()
	if state, err := f.sendDecision(p, name, q, messages.VerdictApprove, nil); err != nil || state != messages.DecisionGranted {
		f.t.Fatalf("approved by %s: %s, %v", name, state, err)
	}
}

// presentWorkers returns the announcements of the workers that are there.
func (f *fleet) presentWorkers() (all []wire.Presence) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	values, err := f.conn.Values(ctx, f.conn.Names().Stream(bus.BucketWorkers))
	if err != nil || len(values) == 0 {
		f.t.Fatalf("%d workers are there, err %v", len(values), err)
	}
	for _, body := range values {
		var w wire.Presence
		if err := json.Unmarshal(body, &w); err != nil {
			f.t.Fatal(err)
		}
		all = append(all, w)
	}
	return all
}
