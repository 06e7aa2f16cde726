package handlers

import (
	"encoding/json"
	"testing"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// TestAListHasABatchThatIsEnding: between its reply and its leaving the log a batch is open and has
// ended. A list that gave it as open, and a place past its reply, would be followed by lists
// without it: a watcher would never learn of its end.
func TestAListHasABatchThatIsEnding(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		conn, err := bus.Connect(t.Context(), bus.Options{URL: srv.URL(), InProcess: srv})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := provision.Ensure(t.Context(), conn, provision.Config{}); err != nil {
			t.Fatal(err)
		}
		j := journal.New(conn)
		h := &Handlers{journal: j, limiter: newPerTenantLimiter(maxHistories)}
		key := wire.KeyOf(messages.OneTenant, "s", "b")
		body, err := messages.Batch{ID: "b", Session: "s", Provider: messages.Canonical, Message: []byte(`{"calls":[]}`)}.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Append(t.Context(), conn.Names().Of(wire.VerbBatch, key), nil, body); err != nil {
			t.Fatal(err)
		}
		list := func() (list messages.BatchList) {
			t.Helper()
			body, err := h.list(t.Context(), key, messages.Get{Batches: true})
			if err == nil {
				err = json.Unmarshal(body, &list)
			}
			if err != nil {
				t.Fatal(err)
			}
			return list
		}
		if l := list(); len(l.Batches) != 1 || !l.Batches[0].Open() {
			t.Errorf("before its reply: %+v, want it to be open", l.Batches)
		}
		accepted, _, err := j.Open(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := j.WriteReply(t.Context(), accepted, messages.Reply{Batch: "b", Session: "s", Status: messages.ReplyCompleted}); err != nil {
			t.Fatal(err)
		}
		if l := list(); len(l.Batches) != 1 || l.Batches[0].Open() || l.Place != l.Batches[0].Place {
			t.Errorf("after its reply, and in the log: %+v, place %d; want it to have ended at that place", l.Batches, l.Place)
		}
		if err := j.Remove(t.Context(), accepted); err != nil {
			t.Fatal(err)
		}
		if l := list(); len(l.Batches) != 0 {
			t.Errorf("out of the log: %+v, want nothing", l.Batches)
		}
	})
}
