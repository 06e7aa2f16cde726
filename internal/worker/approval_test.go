package worker_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// A read needs a person: the worker parks it with the input that hooks have made. After an
// approval it runs with this input. The audit log names the approver before the read runs.
func TestWorkerAsksAPerson(t *testing.T) {
	srv := natstest.Server(t, natstest.Fast)
	conn, err := bus.Connect(t.Context(), bus.Options{InProcess: srv})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	alice, _ := approval.NewKey()
	approvers, err := approval.NewApprovers([]messages.Approver{{Name: "alice", Key: alice.Public()}})
	if err != nil {
		t.Fatal(err)
	}
	hooks, err := hook.NewSet(hook.Hook{Name: "h", Before: func(_ context.Context, c hook.Call) (hook.Verdict, error) {
		return hook.Verdict{Input: json.RawMessage(`{"of":"hook, ` + string(c.ID) + `"}`)}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	var tools tool.Registry
	if err := tools.Add(schemas.Tool{Name: "salaries", Kind: messages.KindRead, Risk: messages.TierHigh, InputSchema: json.RawMessage(`{"type":"object"}`)},
		tool.Func(func(_ context.Context, c tool.Call) (tool.Output, error) { return tool.Output{Value: c.Input}, nil })); err != nil {
		t.Fatal(err)
	}
	w, err := worker.New(conn, &tools, worker.Config{Name: "w1", Approvals: approvers, ApprovalTTL: time.Hour, Hooks: hooks})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()

	notices := make(chan wire.Notice, 10)
	if _, err := conn.Subscribe(conn.Names().Notify("co"), "", func(m bus.Msg) {
		var n wire.Notice
		if err := json.Unmarshal(m.Data, &n); err == nil && !n.Running {
			notices <- n
		}
	}); err != nil {
		t.Fatal(err)
	}
	served, _ := tools.Lookup("salaries")
	key := wire.KeyOf("acme", "s", "b").Call(0)
	job := wire.Job{
		V: 1, Tenant: "acme", Session: "s", Batch: "b", CallID: "c", Tool: "salaries", ToolDigest: served.Digest, Kind: messages.KindRead, ConcurrencySafe: true,
		Input: json.RawMessage(`{"of":"all","approved":true}`), Notify: "co", NotAfter: time.Now().Add(time.Hour),
	}
	publish := func() wire.Notice {
		t.Helper()
		for { // until the worker has made the streams
			_, err := conn.Append(t.Context(), conn.Names().Lane(false, "default", key), nil, rawjson.MustMarshal(job))
			if err == nil {
				return <-notices
			}
			if t.Context().Err() != nil {
				t.Fatal(err)
			}
		}
	}

	parked := publish()
	if parked.Record == nil || parked.Record.State != wire.Parked {
		t.Fatalf("told %+v", parked)
	}
	q := *parked.Record.Approval
	if string(q.Input) != `{"of":"hook, c"}` || q.Rule == "" || q.Requester != "acme" || q.Expires.Sub(q.Asked) != time.Hour {
		t.Errorf("asked %+v", q)
	}
	decision, err := alice.Sign(approval.Answer(q, messages.VerdictApprove, "alice"))
	if err != nil {
		t.Fatal(err)
	}
	q, state, refusal := approvers.Take(q, decision, q.Asked)
	if state != messages.DecisionGranted {
		t.Fatalf("%s: %v", state, refusal)
	}
	granted := *parked.Record
	granted.State, granted.Nonce, granted.Approval = wire.Granted, "n", &q
	if job.TakeOver, err = journal.New(conn).Write(t.Context(), key, granted, parked.Seq); err != nil {
		t.Fatal(err)
	}
	n := publish()
	if n.Result == nil || n.Result.Status != messages.StatusOK || string(n.Result.Output) != `{"of":"hook, c"}` || n.Result.Permission.By[0] != "alice" {
		t.Fatalf("told %+v", n.Result)
	}

	records, err := conn.All(t.Context(), conn.Names().Stream(bus.Calls), conn.Names().OfCall(wire.VerbCall, key))
	if err != nil || len(records) != 4 { // four records: parked, granted, claimed, ended
		t.Fatalf("%d records, %v", len(records), err)
	}
	var claim wire.CallRecord
	if err := json.Unmarshal(records[2].Data, &claim); err != nil || claim.State != wire.Claimed || claim.OnCrash != messages.OnCrashIdempotent || claim.Hooks == nil || claim.Approval == nil {
		t.Errorf("claimed with %+v, %v", claim, err)
	}
	lines, err := conn.All(t.Context(), conn.Names().Stream(bus.Audit), conn.Names().OfCall(wire.VerbAudit, key))
	if err != nil || len(lines) != 1 {
		t.Fatalf("%d lines of audit, %v", len(lines), err)
	}
	var line messages.AuditRecord
	if err := json.Unmarshal(lines[0].Data, &line); err != nil || line.Type != messages.AuditGranted || line.Writer != "w1" || line.Approval != q.ID || line.Time.IsZero() {
		t.Errorf("audited %+v, %v", line, err)
	}
	if !lines[0].Time.After(records[2].Time) || !records[3].Time.After(lines[0].Time) {
		t.Errorf("audited at %v, claimed at %v, ended at %v", lines[0].Time, records[2].Time, records[3].Time)
	}
}
