package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/fleet"
	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/clientconn"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

var question = messages.Approval{
	V: 1, ID: "ab12", Tenant: "_", Session: "a session", Batch: "b", Index: 1, CallID: "call-1", Tool: "refund",
	Input: json.RawMessage(`{"cents":14999}`), ArgsHash: "00ff", Line: "refund(cents: 14999)", Tier: messages.TierHigh, Approvers: 1,
}

// door answers every request on a subject, in chunks of at most size bytes, as a handler of
// the fleet does. If answer returns nil, the request gets no answer.
func door(t *testing.T, conn *bus.Conn, subject string, size int, answer func(bus.Msg) any) {
	t.Helper()
	stop, err := conn.Subscribe(subject, "", func(m bus.Msg) {
		value := answer(m)
		if value == nil {
			return
		}
		body := rawjson.MustMarshal(value)
		parts := (len(body) + size - 1) / size
		for i := range parts {
			var h bus.Header
			if parts > 1 {
				h = bus.Header{messages.ChunkHeader: {fmt.Sprintf("%d/%d", i+1, parts)}}
			}
			if err := conn.Respond(m, h, body[i*size:min(len(body), (i+1)*size)]); err != nil {
				t.Error(err)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
}

func connected(t *testing.T) (*client.Client, *bus.Conn, context.Context) {
	t.Helper()
	srv := natstest.Server(t, natstest.Fast)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	conn, err := bus.Connect(ctx, bus.Options{InProcess: srv, Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return over(t, conn), conn, ctx
}

func TestApprovalsOfAHandler(t *testing.T) {
	c, conn, ctx := connected(t)
	if _, err := c.Approvals(ctx); !errors.Is(err, client.ErrNoFleet) {
		t.Errorf("Approvals without a fleet: got %v, want ErrNoFleet", err)
	}
	names := conn.Names()
	call := wire.KeyOf("_", question.Session, question.Batch).Call(question.Index)
	door(t, conn, names.OfTenant(wire.VerbList, "_"), 40, func(bus.Msg) any {
		return messages.PendingList{V: 1, Pending: []messages.Pending{question.Pending()}}
	})
	door(t, conn, names.OfTenant(wire.VerbList, "other"), 1<<10, func(bus.Msg) any {
		return messages.PendingList{V: 1, Error: &messages.Refusal{Class: messages.ClassBusy, Message: "later"}}
	})
	door(t, conn, names.OfCall(wire.VerbShow, call), 40, func(bus.Msg) any {
		return messages.ApprovalAnswer{V: 1, Approval: &question}
	})
	door(t, conn, names.OfCall(wire.VerbDecide, call), 1<<10, func(m bus.Msg) any {
		var d messages.Decision
		if err := json.Unmarshal(m.Data, &d); err != nil || d.Verdict != messages.VerdictApprove {
			return messages.DecisionAnswer{Error: &messages.Refusal{Class: messages.ClassNotPending, Message: "decided"}}
		}
		return messages.DecisionAnswer{OK: true, State: messages.DecisionGranted}
	})

	other, err := client.Connect(ctx, fleet.Options{}, clientconn.Over(conn), client.Tenant("other"))
	if err != nil {
		t.Fatal(err)
	}
	list, err := c.Approvals(ctx)
	if diff := cmp.Diff([]messages.Pending{question.Pending()}, list); err != nil || diff != "" {
		t.Errorf("Approvals, in parts: %v\n%s", err, diff)
	}
	var refusal *messages.Refusal
	if _, err := other.Approvals(ctx); !errors.As(err, &refusal) || refusal.Class != messages.ClassBusy {
		t.Errorf("Approvals of another tenant: got %v, want its refusal", err)
	}
	shown, err := c.Approval(ctx, question.Session, question.Batch, question.Index)
	if diff := cmp.Diff(question, shown); err != nil || diff != "" {
		t.Errorf("Approval, in parts: %v\n%s", err, diff)
	}
	d := messages.Decision{V: 1, Tenant: "_", Session: question.Session, Batch: "b", Index: 1, Verdict: messages.VerdictApprove}
	if answer, err := c.Decide(ctx, d); err != nil || answer.State != messages.DecisionGranted {
		t.Errorf("Decide: got %+v, %v; want granted", answer, err)
	}
	d.Verdict = messages.VerdictDeny
	if _, err := c.Decide(ctx, d); !errors.As(err, &refusal) || refusal.Class != messages.ClassNotPending {
		t.Errorf("Decide too late: got %v, want the refusal", err)
	}
}

// WatchApprovals yields the open questions, then the changes that are announced for its own tenant,
// and within a minute a question whose announcement it missed.
func TestWatchApprovals(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		s := newStage(t, srv)
		first, second, third := question.Pending(), question.Pending(), question.Pending()
		second.ID, third.ID = "second", "missed"
		lists := [][]messages.Pending{{first}, {first, third}}
		door(t, s.conn, s.conn.Names().OfTenant(wire.VerbList, "_"), 1<<10, func(bus.Msg) any {
			list := messages.PendingList{V: 1, Pending: lists[0]}
			if len(lists) > 1 {
				lists = lists[1:]
			}
			return list
		})
		ctx, end := context.WithTimeout(t.Context(), 10*time.Minute)
		defer end()
		var got []messages.Pending
		for p, err := range s.c.WatchApprovals(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			if got = append(got, p); len(got) == 1 {
				for _, tenant := range []string{"other", "_"} {
					if err := s.conn.Publish(s.conn.Names().OfCall(wire.VerbNews, wire.KeyOf(tenant, p.Session, p.Batch).Call(1)), nil, rawjson.MustMarshal(second)); err != nil {
						t.Fatal(err)
					}
				}
			}
			if len(got) == 4 {
				break
			}
		}
		if diff := cmp.Diff([]messages.Pending{first, second, first, third}, got); diff != "" {
			t.Error(diff)
		}
	})
}

func TestWatchApprovalsWithoutAFleet(t *testing.T) {
	c, _, ctx := connected(t)
	for p, err := range c.WatchApprovals(ctx) {
		if !errors.Is(err, client.ErrNoFleet) {
			t.Errorf("got %v, %v; want %v", p, err, client.ErrNoFleet)
		}
	}
}

// A signer signs only a question whose arguments fit its id and its hash, and only with the key of
// a user (SU...).
func TestSignerRefuses(t *testing.T) {
	if _, err := client.NewSigner("alice", []byte("SU nothing")); err == nil || strings.Contains(err.Error(), "nothing") {
		t.Errorf("a signer without a key: %v", err)
	}
	file := filepath.Join(t.TempDir(), "alice.nk")
	key, err := approval.NewKey()
	if err == nil {
		err = key.Write(file)
	}
	if err != nil {
		t.Fatal(err)
	}
	seed, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	alice, err := client.NewSigner("alice", seed)
	if err != nil {
		t.Fatal(err)
	}
	q := question
	q.ArgsHash = messages.Digest(q.Input)
	q.ID = approval.ID(q)
	d, err := alice.Sign(q, messages.Decision{Verdict: messages.VerdictDeny, Reason: "too much", Tool: "another"})
	if err != nil || d.Approval != q.ID || d.Tool != q.Tool || d.By != "alice" || d.Key != key.Public() || d.Reason != "too much" || d.Sig == "" {
		t.Errorf("signed %+v, %v", d, err)
	}
	q.Input = json.RawMessage(`{"cents":1}`)
	if d, err := alice.Sign(q, messages.Decision{Verdict: messages.VerdictApprove}); err == nil {
		t.Errorf("signed %+v about other arguments", d)
	}
}
