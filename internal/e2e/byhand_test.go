package e2e

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Somebody publishes a job of a write by hand, once as a write that runs alone, once as one
// that may overlap. Neither job runs. A batch with the same call then runs it once.
func TestAWriteThatWasPublishedByHand(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		runs := startBounded(f, provision.Config{}, nil)
		f.run(canonical("s", "first", call{"put", ""}))
		put, _ := f.tools.Lookup("put")
		records := journal.New(f.conn)
		for i, alone := range []bool{true, false} {
			key := wire.KeyOf(messages.OneTenant, "s", "by hand").Call(i)
			now := f.conn.Now(t.Context())
			job := wire.Job{
				V: 1, Tenant: messages.OneTenant, Session: "s", Batch: "by hand", Index: i, CallID: "c", Tool: "put", ToolDigest: put.Digest,
				Kind: messages.KindWrite, ConcurrencySafe: !alone, Input: json.RawMessage("{}"), Notify: "nobody", QueuedAt: now, NotAfter: now.Add(time.Hour),
			}
			if _, err := f.conn.Append(t.Context(), f.conn.Names().Lane(alone, "default", key), nil, wire.Encode(job)); err != nil {
				t.Fatal(err)
			}
		}
		f.until("one job is a dead letter, and the other is handed back", func() bool {
			letters, err := records.DeadLetters(t.Context(), 2)
			known, readErr := records.Calls(t.Context(), wire.KeyOf(messages.OneTenant, "s", "by hand"))
			return err == nil && readErr == nil && len(letters) == 1 && len(known.Hands) == 1
		})
		if runs.Load() != 1 {
			t.Errorf("the write ran %d times, and one batch asked for it", runs.Load())
		}
	})
}
