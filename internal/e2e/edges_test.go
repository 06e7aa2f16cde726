package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
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

// A post-hook takes longer than other workers wait for a lost worker. The outcome of the call
// is still known, because the lease of a claim includes the hooks' budget.
func TestASlowHookAfterTheTool(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		pay := f.recordedTool(schemas.Tool{Name: "pay", TimeoutMS: 1000}, func(context.Context, int) (tool.Output, error) { return tool.Text("paid"), nil })
		f.worker(worker.Config{Hooks: hooks(t, hook.Hook{
			Name: "slow", Class: hook.Observe, Budget: 3 * time.Minute,
			After: func(ctx context.Context, _ hook.Call, _ hook.Done) (hook.Change, error) {
				<-ctx.Done()
				return hook.Change{}, ctx.Err()
			},
		})})
		f.coordinator(coordinator.Config{})
		b := canonical("s", "b", call{"pay", `{"amount":1}`})
		f.submit(b)
		reply := f.reply(b, 10*time.Minute)
		f.wantStatuses(reply, string(messages.StatusOK))
		if n := len(pay.all()); n != 1 {
			t.Errorf("paid %d times", n)
		}
	})
}

// The claim of a call with edited input just fits into a message, but the release after it
// does not. The call ends with the error of the failed attempt, and the worker does not keep
// the call.
func TestAReleaseThatIsTooLarge(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		p := newPeople(t, "alice")
		var claim atomic.Int64 // size of the newest claim record in bytes
		tries := f.recordedTool(schemas.Tool{Name: "refund", OnCrash: messages.OnCrashIdempotent, TimeoutMS: 5000, Retry: schemas.Retry{Attempts: 3}}, func(ctx context.Context, _ int) (tool.Output, error) {
			newest, _, err := journal.New(f.conn).Newest(ctx, wire.KeyOf(messages.OneTenant, "s", "small").Call(0))
			if err != nil {
				t.Error(err)
			}
			claim.Store(int64(len(rawjson.MustMarshal(newest.Record))))
			return tool.Output{}, &messages.Error{Code: "busy", Message: strings.Repeat("busy ", 600), Retryable: true}
		})
		f.worker(p.worker(t, refunds))
		f.coordinator(p.coordinator())
		ask := func(id string, room int) {
			b := canonical("s", id, call{"refund", fmt.Sprintf(`{"amount":149.99,"pad":%q}`, strings.Repeat("x", room))})
			f.submit(b)
			if _, err := f.sendDecision(p, "alice", f.question(b, 0), messages.VerdictEdit, func(d *messages.Decision) {
				d.Input = json.RawMessage(fmt.Sprintf(`{"amount":120,"pad":%q}`, strings.Repeat("y", room)))
			}); err != nil {
				t.Fatal(err)
			}
			f.wantStatuses(f.reply(b, 30*time.Second), string(messages.StatusError))
		}
		const small = 1000
		ask("small", small)
		before := len(tries.all())
		// The record holds three copies of the input. Each copy grows by a third of the free
		// bytes.
		ask("large", small+(f.conn.MaxPayload()-int(claim.Load())-1500)/3)
		if n := len(tries.all()) - before; before != 3 || n != 1 {
			t.Errorf("attempted %d times, and %d times with large arguments: want 3 and 1", before, n)
		}
	})
}
