package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/e2e/fleettest"
	"github.com/toolfleet/toolfleet/internal/fleetgauges"
	"github.com/toolfleet/toolfleet/internal/identities"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// ownPool is a fleet in which a pool belongs to acme: a worker in it, and one of all tenants.
type ownPool struct {
	*identified
	operator *bus.Conn
	globex   func(b messages.Batch) messages.Reply

	stopAcmes func() // ends the worker in acme's pool
}

// present returns the announcements of the workers.
func (f *ownPool) present() (all []wire.Presence) {
	found, err := f.operator.Values(f.t.Context(), f.operator.Names().Stream(bus.BucketWorkers))
	for key, value := range found {
		if w, err := wire.ReadPresence(key, value); err == nil {
			all = append(all, w)
		}
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return all
}

func newOwnPool(t *testing.T, srv *devserver.Server, ids *natstest.Identities, pools map[string]string) *ownPool {
	t.Helper()
	f := &ownPool{identified: newIdentified(t, srv, ids)}
	f.coordinator(coordinator.Config{TenantPools: pools})
	f.operator = f.connect("operator")
	f.stops = append(f.stops, f.operator.Close)
	run := tool.Func(func(context.Context, tool.Call) (tool.Output, error) { return tool.Text("ran"), nil })
	// Some results are readable, so both workers have result_read too.
	both := schemas.Tool{Name: "both", Kind: messages.KindRead, Results: schemas.ResultsReadable}
	f.tool(both, run)
	f.worker(worker.Config{Name: "of-all"})
	own := &tool.Registry{}
	for _, definition := range []schemas.Tool{both, {Name: "own", Kind: messages.KindWrite}} {
		if err := own.Add(definition, run); err != nil {
			t.Fatal(err)
		}
	}
	conn := f.connect("bound")
	w, err := worker.New(conn, own, worker.Config{Name: "of-acme", Logger: f.log, Tenant: "acme", Pool: "acmes"})
	if err != nil {
		t.Fatal(err)
	}
	f.start(conn, w.Run)
	f.stopAcmes = f.stops[len(f.stops)-1]
	f.until("both workers are there", func() bool { return len(f.present()) == 2 })
	agent := f.connect("globex")
	f.stops = append(f.stops, agent.Close)
	f.globex = func(b messages.Batch) messages.Reply {
		reply, err := fleettest.AgentOver(agent, "").Run(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		return reply
	}
	return f
}

func acmesPool(t *testing.T) *natstest.Identities {
	ids := natstest.NewIdentities(t)
	ids.Add(identities.Identity{Kind: identities.Worker, Name: "bound", Tenant: "acme", Pools: []string{"acmes"}})
	return ids
}

// A pool that belongs to a tenant gets the calls of that tenant, and no other tenant sees its
// tools or has a call there. A tool of the same name in a pool of all goes on for the others.
func TestAPoolOfOneTenant(t *testing.T) {
	ids := acmesPool(t)
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newOwnPool(t, srv, ids, map[string]string{"acmes": "acme"})
		defer f.close()
		batch := func(id string) messages.Batch {
			return canonical("s", id, call{"own", `{}`}, call{"both", `{}`})
		}
		for _, r := range f.run(batch("a")).Results {
			if r.Status != messages.StatusOK || r.Worker != "of-acme" {
				t.Errorf("acme's call of %s: %s by %q", r.Tool, r.Status, r.Worker)
			}
		}
		results := f.globex(batch("g")).Results
		if r := results[0]; r.Status != messages.StatusUnknownTool {
			t.Errorf("globex's call of acme's tool: %s by %q", r.Status, r.Worker)
		}
		if r := results[1]; r.Status != messages.StatusOK || r.Worker != "of-all" {
			t.Errorf("globex's call of a tool of all: %s by %q", r.Status, r.Worker)
		}
		list, err := f.client.Tools(t.Context(), messages.GetTools{})
		if err != nil || !strings.Contains(string(list.Tools), `"own"`) {
			t.Errorf("acme is not offered its tool: %v %s", err, list.Tools)
		}
		b := batch("catalogue")
		b.Catalogue = list.Digest // acme's, whose definitions globex knows by chance
		for _, r := range f.globex(b).Results {
			if r.Worker == "of-acme" {
				t.Errorf("with acme's catalogue globex's call of %s came to acme's worker", r.Tool)
			}
		}
	}, natstest.Fast, ids.Option)
}

// The key of a worker in a tenant's pool takes no job of another pool, has no queue made for one,
// and announces nothing that counts for others. Coordinators without the setting send it no call.
func TestAPoolsKey(t *testing.T) {
	ids := acmesPool(t)
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newOwnPool(t, srv, ids, map[string]string{"acmes": "acme"})
		defer f.close()
		f.guests.Store("bound", true)
		hand := f.connect("bound")
		defer hand.Close()
		for _, w := range f.present() {
			for _, q := range w.Queues {
				if q.Token == "acmes" {
					continue
				}
				for _, right := range []string{"$JS.API.CONSUMER.MSG.NEXT.TOOLFLEET_JOBS." + q.Token, "$JS.API.CONSUMER.INFO.TOOLFLEET_JOBS." + q.Token, hand.Names().Queue(q.Token)} {
					if hand.May(t.Context(), right) {
						t.Errorf("it may ask %s", right)
					}
				}
			}
		}
		hostile := wire.Presence{V: 1, Worker: "hostile", Pools: []string{"default"}, Tools: []string{"both"}, Denied: []string{"both"}, Slots: 4096}
		definition, err := schemas.Tool{Name: "both", Kind: messages.KindRead, Pool: "default", Version: "9"}.WithDefaults()
		if err != nil {
			t.Fatal(err)
		}
		hostile.Queues = map[string]wire.Queue{"default": {Token: wire.QueueToken("default", []string{definition.Digest}), Tools: []string{definition.Digest}}}
		for bucket, value := range map[string]any{bus.BucketWorkers: hostile, bus.BucketTools: schemas.Announcement{Tool: definition}} {
			b, err := hand.Bucket(t.Context(), hand.Names().Stream(bucket))
			if err != nil {
				t.Fatal(err)
			}
			for key, want := range map[string]bool{"both": false, "globex.both": false, "acme.hostile": true, "acme.both": true} {
				if (key == "acme.hostile") != (bucket == bus.BucketWorkers) && want {
					continue
				}
				if err := b.Put(t.Context(), key, rawjson.MustMarshal(value)); (err == nil) != want {
					t.Errorf("put %s into the bucket %s: %v", key, bucket, err)
				}
			}
		}
		for _, id := range []string{"1", "2", "3"} {
			if r := f.globex(canonical("s", id, call{"both", `{}`})).Results[0]; r.Status != messages.StatusOK || r.Worker != "of-all" {
				t.Errorf("globex's call after the hostile announcements: %s by %q", r.Status, r.Worker)
			}
		}
	}, natstest.Fast, ids.Option)
}

// The key of a worker in a tenant's pool cannot remove the tools of others with a header. It can
// remove the presence of workers, and they announce it again.
func TestAPoolsKeyRemovesNoTools(t *testing.T) {
	ids := acmesPool(t)
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newOwnPool(t, srv, ids, map[string]string{"acmes": "acme"})
		defer f.close()
		f.guests.Store("bound", true)
		hand := f.connect("bound")
		defer hand.Close()
		rollup := bus.Header{"Nats-Rollup": {"all"}}
		if _, err := hand.Append(t.Context(), "$KV.TOOLFLEET_tools.acme.x", rollup, []byte("{}")); err == nil {
			t.Error("the bucket of tools accepts a rollup")
		}
		tools, err := f.operator.Values(t.Context(), f.operator.Names().Stream(bus.BucketTools))
		if err != nil || tools["both"] == nil || tools["acme.own"] == nil {
			t.Errorf("tools are gone, %d are left: %v", len(tools), err)
		}
		presence := rawjson.MustMarshal(wire.Presence{V: 1, Worker: "x"})
		if _, err := hand.Append(t.Context(), "$KV.TOOLFLEET_workers.acme.x", rollup, presence); err != nil {
			t.Error(err)
		}
		f.until("both workers are there again", func() bool {
			there := map[string]bool{}
			for _, w := range f.present() {
				there[w.Worker] = true
			}
			return there["of-all"] && there["of-acme"]
		})
		if r := f.globex(canonical("s", "1", call{"both", `{}`})).Results[0]; r.Status != messages.StatusOK || r.Worker != "of-all" {
			t.Errorf("globex's call after the rollup: %s by %q", r.Status, r.Worker)
		}
	}, natstest.Fast, ids.Option)
}

// A tool of a tenant's pool that nobody serves any more does not hide the tool of the same name in
// a pool of all.
func TestAToolOfAPoolThatIsGone(t *testing.T) {
	ids := acmesPool(t)
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newOwnPool(t, srv, ids, map[string]string{"acmes": "acme"})
		defer f.close()
		f.stopAcmes()
		f.until("acme's worker is gone", func() bool { return len(f.present()) == 1 })
		time.Sleep(time.Second) // for the coordinator to see it too
		if r := f.run(canonical("s", "a", call{"both", `{}`})).Results[0]; r.Status != messages.StatusOK || r.Worker != "of-all" {
			t.Errorf("acme's call: %s by %q", r.Status, r.Worker)
		}
		list, err := f.client.Tools(t.Context(), messages.GetTools{})
		if err != nil || !strings.Contains(string(list.Tools), `"both"`) {
			t.Errorf("acme is not offered the tool of all: %v %s", err, list.Tools)
		}
	}, natstest.Fast, ids.Option)
}

// Gauges count a worker of a tenant's pool only in pools of that tenant, whatever it announces.
func TestGaugesOfAPoolOfOneTenant(t *testing.T) {
	ids := acmesPool(t)
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		owners := map[string]string{"acmes": "acme"}
		f := newOwnPool(t, srv, ids, owners)
		defer f.close()
		f.guests.Store("bound", true)
		hand := f.connect("bound")
		defer hand.Close()
		bucket, err := hand.Bucket(t.Context(), hand.Names().Stream(bus.BucketWorkers))
		if err != nil {
			t.Fatal(err)
		}
		hostile := wire.Presence{V: 1, Worker: "hostile", Pools: []string{"default", "acmes"}, Slots: 4096}
		if err := bucket.Put(t.Context(), "acme.hostile", rawjson.MustMarshal(hostile)); err != nil {
			t.Fatal(err)
		}
		registry := prometheus.NewRegistry()
		registry.MustRegister(fleetgauges.New(f.operator, fleetgauges.Config{Tools: func() []schemas.Tool { return nil }, Owners: owners}))
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, family := range families {
			for _, m := range family.GetMetric() {
				if family.GetName() == "toolfleet_pool_workers" {
					got[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
				}
			}
		}
		if got["default"] != 1 || got["acmes"] != 2 {
			t.Errorf("workers by pool: %v", got)
		}
	}, natstest.Fast, ids.Option)
}

// A coordinator that does not know whose pool it is sends it nothing.
func TestAPoolThatNobodyGave(t *testing.T) {
	ids := acmesPool(t)
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newOwnPool(t, srv, ids, nil)
		defer f.close()
		results := f.run(canonical("s", "b", call{"own", `{}`}, call{"both", `{}`})).Results
		if results[0].Status != messages.StatusUnknownTool || results[1].Worker != "of-all" {
			t.Errorf("%+v", results)
		}
	}, natstest.Fast, ids.Option)
}

// A worker of all that ends still runs the jobs that wait in its queue, although a worker that is
// held to a tenant claims to take jobs from that queue.
func TestAWorkerThatDrainsIgnoresPoolsOfTenants(t *testing.T) {
	ids := acmesPool(t)
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := &ownPool{identified: newIdentified(t, srv, ids)}
		defer f.close()
		f.coordinator(coordinator.Config{TenantPools: map[string]string{"acmes": "acme"}})
		f.operator = f.connect("operator")
		f.stops = append(f.stops, f.operator.Close)
		started, finish := make(chan bool, 3), make(chan bool)
		f.tool(schemas.Tool{Name: "slow", Kind: messages.KindRead}, tool.Func(func(context.Context, tool.Call) (tool.Output, error) {
			started <- true
			<-finish
			return tool.Text("ran"), nil
		}))
		f.worker(worker.Config{Name: "of-all", Slots: 1, Drain: time.Minute})
		stop := f.stops[len(f.stops)-1]
		f.until("the worker is there", func() bool { return len(f.present()) == 1 })
		f.guests.Store("bound", true)
		hand := f.connect("bound")
		defer hand.Close()
		bucket, err := hand.Bucket(t.Context(), hand.Names().Stream(bus.BucketWorkers))
		if err != nil {
			t.Fatal(err)
		}
		copied := f.present()[0]
		copied.Worker = "hostile"
		if err := bucket.Put(t.Context(), "acme.hostile", rawjson.MustMarshal(copied)); err != nil {
			t.Fatal(err)
		}
		agent := f.connect("globex")
		defer agent.Close()
		replied := make(chan messages.Reply, 1)
		go func() {
			calls := []call{{"slow", `{}`}, {"slow", `{"n":1}`}, {"slow", `{"n":2}`}}
			reply, err := fleettest.AgentOver(agent, "").Run(t.Context(), canonical("s", "b", calls...))
			if err != nil {
				t.Error(err)
			}
			replied <- reply
		}()
		<-started
		stopped := make(chan bool)
		go func() {
			stop()
			close(stopped)
		}()
		f.until("the worker drains", func() bool {
			for _, w := range f.present() {
				if w.Draining {
					return true
				}
			}
			return false
		})
		close(finish)
		for _, r := range (<-replied).Results {
			if r.Status != messages.StatusOK || r.Worker != "of-all" {
				t.Errorf("globex's call %d: %s by %q", r.Index, r.Status, r.Worker)
			}
		}
		<-stopped
	}, natstest.Fast, ids.Option)
}
