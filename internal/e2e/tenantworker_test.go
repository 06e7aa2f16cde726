package e2e

import (
	"context"
	"testing"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/identities"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// A worker has a key that is bound to one tenant. It serves that tenant, and the server lets
// it write no record, result, event or audit line of another tenant.
func TestAWorkerOfOneTenant(t *testing.T) {
	ids := natstest.NewIdentities(t)
	ids.Add(identities.Identity{Kind: identities.Worker, Name: "bound", Tenant: "acme"})
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newIdentified(t, srv, ids)
		defer f.close()
		f.recordedTool(schemas.Tool{Name: "pay", Kind: messages.KindWrite}, func(context.Context, int) (tool.Output, error) { return tool.Text("paid"), nil })
		f.coordinator(coordinator.Config{})
		conn := f.connect("bound")
		w, err := worker.New(conn, f.tools, worker.Config{Logger: f.log})
		if err != nil {
			t.Fatal(err)
		}
		f.start(conn, w.Run)
		if r := f.run(canonical("s", "b", call{"pay", `{}`})).Results[0]; r.Status != messages.StatusOK {
			t.Errorf("a call of its tenant: %+v", r)
		}
		own, other := wire.KeyOf("acme", "s", "made-up").Call(0), wire.KeyOf("globex", "s", "made-up").Call(0)
		hand := f.fleet.connect("bound")
		defer hand.Close()
		for _, verb := range []wire.Verb{wire.VerbCall, wire.VerbResult, wire.VerbHand, wire.VerbAudit} {
			if _, err := hand.Append(t.Context(), hand.Names().OfCall(verb, own), nil, []byte(`{}`)); err != nil {
				t.Errorf("%s of its tenant: %v", verb, err)
			}
			if _, err := hand.Append(t.Context(), hand.Names().OfCall(verb, other), nil, []byte(`{}`)); err == nil {
				t.Errorf("it has written %s of another tenant", verb)
			}
		}
	}, natstest.Fast, ids.Option)
}
