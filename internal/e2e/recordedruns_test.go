package e2e

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/audit"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/devserver"
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

// amountsShown configures an audit log that shows the amounts of payments. Its hashes have no
// key, so that a test can compute them.
var amountsShown = audit.Config{Plain: true, Include: []string{"pay.amount"}}

// wantRan checks that an audit line describes the arguments with which its call ran.
func wantRan(t *testing.T, l messages.AuditRecord, status messages.Status, ran string) {
	t.Helper()
	var fields struct{ Amount json.RawMessage }
	if err := json.Unmarshal([]byte(ran), &fields); err != nil {
		t.Fatal(err)
	}
	if l.Status != status || l.ArgsHash != messages.Digest([]byte(ran))[:16] || string(l.Arguments["amount"]) != string(fields.Amount) || l.ToolDigest == "" {
		t.Errorf("the audit line of a call that ran with %s has the status %s, the hash %q, %s and the tool %q", ran, l.Status, l.ArgsHash, rawjson.MustMarshal(l.Arguments), l.ToolDigest)
	}
}

// A hook changes the arguments of a call, and its worker is lost. The audit line describes the
// arguments that ran. The coordinator that ended the call writes the line, or a coordinator
// that finds the batch with its reply.
func TestTheAuditLineOfALostCallShowsWhatRan(t *testing.T) {
	for name, anew := range map[string]bool{"one coordinator": false, "another puts it on record": true} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				f.tool(schemas.Tool{Name: "pay", Kind: messages.KindWrite}, func(ctx context.Context, _ tool.Call) (tool.Output, error) { return waitForStop(ctx) })
				cut := hook.Hook{Name: "cut", Match: "pay", Before: func(context.Context, hook.Call) (hook.Verdict, error) {
					return hook.Verdict{Input: json.RawMessage(`{"amount":10}`)}, nil
				}}
				cfg, freeSpace := fullAuditLog(f)
				cfg.Drain, cfg.Audit = time.Millisecond, amountsShown
				first := f.coordinator(cfg)
				kill := f.killableWorker(worker.Config{Hooks: hooks(t, cut)})
				b := canonical("s", "b", call{"pay", `{"amount":1000}`})
				f.submit(b)
				time.Sleep(3 * time.Second) // simulated: the call runs
				kill()
				f.wantStatuses(f.reply(b, 5*time.Minute), "outcome_unknown")
				ended, _, err := journal.New(f.conn).Newest(context.Background(), wire.KeyOf(messages.OneTenant, b.Session, b.ID).Call(0))
				if r, ran := ended.Record, messages.Digest([]byte(`{"amount":10}`)); err != nil || r.State != wire.Ended || r.ArgsHash != ran || r.ToolDigest == "" || r.Result.Trail == nil || r.Result.Trail.ArgsHash != ran {
					t.Errorf("the end of the call says too little: %+v, %v", r, err)
				}
				if anew {
					first.stop()
					cfg.Provision.MaxBytes = nil
					f.coordinator(cfg)
				}
				freeSpace()
				f.awaitGone(b)
				wantRan(t, f.auditLines(audit.Filter{})[0], messages.StatusOutcomeUnknown, `{"amount":10}`)
			})
		})
	}
}

// A batch has its reply, and the newest record of a call does not hold the arguments. The
// audit line takes them from the older records. Without older records it shows no arguments.
func TestOlderRecordsSayWhatRan(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		f.tool(schemas.Tool{Name: "pay", Kind: messages.KindWrite}, func(context.Context, tool.Call) (tool.Output, error) { return tool.Text("done"), nil })
		if err := provision.Ensure(context.Background(), f.conn, provision.Config{}); err != nil {
			t.Fatal(err)
		}
		b := canonical("s", "b", call{"pay", `{"amount":1000}`}, call{"pay", `{"amount":2000}`})
		f.submit(b)
		ctx, key, log := context.Background(), wire.KeyOf(messages.OneTenant, b.Session, b.ID), journal.New(f.conn)
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		var results []messages.Result
		for i, id := range []messages.CallID{"c0", "c1"} {
			r := messages.Result{V: 1, Index: i, CallID: id, Tool: "pay", Kind: messages.KindWrite, Status: messages.StatusOutcomeUnknown,
				Outcome: messages.Failed(messages.CodeOutcomeUnknown, "lost"), Attempt: 1, Worker: "w"}
			claim := wire.CallRecord{V: 1, State: wire.Claimed, Nonce: "n", Attempt: 1, Worker: "w"}
			if i == 0 {
				claim.Input, claim.ToolDigest = json.RawMessage(`{"amount":10}`), "d"
				claim.ArgsHash = messages.Digest(claim.Input)
			}
			seq, err := log.Write(ctx, key.Call(i), claim, 0)
			must(err)
			_, err = log.Write(ctx, key.Call(i), wire.CallRecord{V: 1, State: wire.Ended, Nonce: "m", Attempt: 1, Result: &r}, seq)
			must(err)
			results = append(results, r)
		}
		a, _, err := log.Open(ctx, key)
		must(err)
		_, err = log.WriteReply(ctx, a, messages.Reply{V: 1, Batch: "b", Session: "s", Provider: b.Provider, Status: messages.ReplyCompleted,
			Digest: messages.Digest(a.Body), Reinjection: json.RawMessage("null"), Results: results})
		must(err)
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{Audit: amountsShown})
		f.awaitGone(b)
		lines := f.auditLines(audit.Filter{})
		if len(lines) != 2 {
			t.Fatalf("%d lines", len(lines))
		}
		wantRan(t, lines[0], messages.StatusOutcomeUnknown, `{"amount":10}`)
		if l := lines[1]; l.ArgsHash != "" || l.Arguments != nil {
			t.Errorf("what ran is not known, and the line shows %q and %s", l.ArgsHash, rawjson.MustMarshal(l.Arguments))
		}
	})
}

// A batch has its reply, but the coordinators that are left cannot decode its body. Its calls
// still have audit lines.
func TestAuditLinesOfABodyThatCannotBeRead(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		if err := provision.Ensure(context.Background(), f.conn, provision.Config{}); err != nil {
			t.Fatal(err)
		}
		b := canonical("s", "b", call{"pay", ""})
		b.Provider = "of-another-version"
		f.submit(b)
		log := journal.New(f.conn)
		a, _, err := log.Open(context.Background(), wire.KeyOf(messages.OneTenant, b.Session, b.ID))
		if err != nil {
			t.Fatal(err)
		}
		reply := messages.Reply{V: 1, Batch: "b", Session: "s", Provider: b.Provider, Status: messages.ReplyCompleted, Digest: messages.Digest(a.Body), Reinjection: json.RawMessage("null"),
			Results: []messages.Result{{V: 1, Index: 0, CallID: "c0", Tool: "pay", Kind: messages.KindWrite, Status: messages.StatusOK, Attempt: 1, Worker: "w"}}}
		if _, err := log.WriteReply(context.Background(), a, reply); err != nil {
			t.Fatal(err)
		}
		f.tool(schemas.Tool{Name: "pay", Kind: messages.KindWrite}, func(context.Context, tool.Call) (tool.Output, error) { return tool.Text("done"), nil })
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		f.wantAuditLines(b, reply)
	})
}
