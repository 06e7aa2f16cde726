package coordinator

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/bus/pull"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// newer announces another definition of the tool, with this schema, and returns it.
func (o *office) newer(schema string) schemas.Tool {
	o.t.Helper()
	other := o.tool
	other.InputSchema, other.Description, other.Digest = []byte(schema), "newer", ""
	other, err := other.WithDefaults()
	o.must(err)
	bucket, err := o.conn.Bucket(o.t.Context(), o.names.Stream(bus.BucketTools))
	o.must(err)
	both := schemas.Announcement{}.With([]schemas.Tool{o.tool}, false).With([]schemas.Tool{other}, false)
	o.must(bucket.Put(o.t.Context(), o.tool.Name, rawjson.MustMarshal(both)))
	return other
}

// staffWith announces a worker with this tool. The worker takes jobs from its own queue, or
// from the queue of the pool.
func (o *office) staffWith(worker string, t schemas.Tool, fromPool bool) {
	o.t.Helper()
	bucket, err := o.conn.Bucket(o.t.Context(), o.names.Stream(bus.BucketWorkers))
	o.must(err)
	tools := []string{t.Digest}
	token := wire.QueueToken(schemas.DefaultPool, tools)
	if fromPool {
		token = schemas.DefaultPool
	}
	o.must(bucket.Put(o.t.Context(), worker, rawjson.MustMarshal(wire.Presence{
		V: 1, Worker: worker, Slots: 100, Pools: []string{schemas.DefaultPool}, Queues: map[string]wire.Queue{schemas.DefaultPool: {Token: token, Tools: tools}},
	})))
}

// slowed makes a coordinator learn of workers late, as in a fleet of thousands: it waits nine
// times as long as its last change took.
func slowed(c *Coordinator, change time.Duration) {
	changed := c.toolsets.changed
	c.toolsets.changed = func() { pause(context.Background(), change); changed() }
}

// The newest announcement came from a worker that is gone. A coordinator that starts now takes
// as current the version that the present workers have.
func TestTheCurrentVersionAfterAStart(t *testing.T) {
	inOffice(t, messages.KindRead, func(t *testing.T, o *office) {
		o.announce("first")
		o.newer(`{"type":"object"}`)
		c, _ := o.coordinator(Config{})
		o.until("the coordinator is ready", time.Minute, c.Ready)
		pause(t.Context(), 5*time.Second)
		if got := c.announced.Digest("_", o.tool.Name); got != o.tool.Digest {
			t.Errorf("the current version is %.8s, want %.8s, which is served", got, o.tool.Digest)
		}
	})
}

// The planned version is gone, and a worker of a newer version asks a person about the call:
// after the approval, the call runs in the version that the person was asked about.
func TestAnApprovedCallRunsInTheVersionThatWasShown(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		_, leave := o.announce("first")
		c, _ := o.coordinator(Config{})
		o.until("the coordinator is ready", time.Minute, c.Ready)
		key := o.submit("s", "b", 1)
		o.until("its job is queued", time.Minute, func() bool { return len(o.jobs()) == 1 })
		newer := o.newer(string(o.tool.InputSchema))
		conn := o.connect("worker")
		pool, err := provision.QueueConsumer(conn.Names(), schemas.DefaultPool, 10*time.Second, 0)
		o.must(err)
		o.must(provision.EnsureConsumer(t.Context(), conn, pool))
		o.run(conn, func(ctx context.Context) error {
			go func() {
				for ; ctx.Err() == nil; pause(ctx, 10*time.Second) {
					o.staffWith("second", newer, true)
				}
			}()
			slots := pull.NewSlots(100)
			err := pull.New(conn, pool.Stream, pool.Name).Run(ctx, slots, func(d *pull.Delivery) { o.work(conn, d) })
			_ = slots.Wait(context.Background())
			return err
		})
		// The coordinator has to know the newer version first. Otherwise the job goes to the queue of
		// the pool as it is, and this worker does not look at its version.
		o.until("the coordinator knows the newer version", time.Minute, func() bool { return c.announced.Digest("_", o.tool.Name) == newer.Digest })
		leave()
		q := o.rests(key.Call(0), c)
		if q.ToolDigest != newer.Digest {
			t.Fatalf("a person is asked about version %.8s, want %.8s", q.ToolDigest, newer.Digest)
		}
		o.decide(key.Call(0), o.decision(q, messages.VerdictApprove, "alice"))
		if r := o.reply(key, 10*time.Minute).Results[0]; r.Status != messages.StatusOK {
			t.Errorf("the call ended %s %+v", r.Status, r.Outcome)
		}
	})
}

// A call waits for a version whose worker is away for a moment. The workers that are there
// have another version, which the input does not fit. The call does not end before its worker
// is back.
func TestAVersionThatIsAwayForAMoment(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		_, leave := o.announce("first")
		c, _ := o.coordinator(Config{})
		o.until("the coordinator is ready", time.Minute, c.Ready)
		key := o.submit("s", "b", 1)
		o.until("its job is queued", time.Minute, func() bool { return len(o.jobs()) == 1 })
		other := o.newer(`{"type":"object","required":["other"]}`)
		for range 2 {
			o.staffWith("second", other, false)
			pause(t.Context(), 8*time.Second)
			leave()
			pause(t.Context(), 8*time.Second)
			o.announce("first")
		}
		if _, found, err := o.journal.Reply(t.Context(), key); found || err != nil {
			t.Errorf("the call has ended (%v)", err)
		}
		leave()
		r := o.reply(key, 30*time.Second).Results[0]
		if r.Err == nil || r.Err.Code != messages.CodeToolVersionGone {
			t.Errorf("the version is gone for good, and the call ended %s %+v", r.Status, r.Outcome)
		}
	})
}

// A worker is back, and the coordinator does not know it yet: the coordinator reads the list
// of workers before it ends the call.
func TestACallDoesNotEndBeforeTheWorkersAreRead(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		_, leave := o.announce("first")
		c, _ := o.coordinator(Config{})
		o.until("the coordinator is ready", time.Minute, c.Ready)
		key := o.submit("s", "b", 1)
		o.until("its job is queued", time.Minute, func() bool { return len(o.jobs()) == 1 })
		o.staffWith("second", o.newer(`{"type":"object","required":["other"]}`), false)
		pause(t.Context(), 5*time.Second)
		slowed(c, 10*time.Second) // so the coordinator learns nothing for 90 s after the next change
		leave()
		pause(t.Context(), time.Second)
		o.announce("first")
		pause(t.Context(), 25*time.Second)
		if r, found, err := o.journal.Reply(t.Context(), key); found || err != nil {
			t.Errorf("the call has ended: %s, %v", r, err)
		}
	})
}

// An agent gets the newest definitions and uses them at once, before the coordinator knows of
// the worker that has them: the call runs in the newest version.
func TestACatalogueThatIsNewerThanTheCoordinatorKnows(t *testing.T) {
	inOffice(t, messages.KindRead, func(t *testing.T, o *office) {
		o.announce("first")
		c, _ := o.coordinator(Config{})
		o.until("the coordinator is ready", time.Minute, c.Ready)
		slowed(c, 2*time.Second)
		o.announce("another")
		pause(t.Context(), 3*time.Second)
		o.staffWith("second", o.newer(`{"type":"object","required":["other"]}`), false)
		m, err := o.conn.Request(t.Context(), o.names.OfTenant(wire.VerbTools, messages.OneTenant), nil, nil)
		o.must(err)
		var list messages.ToolList
		o.must(json.Unmarshal(m.Data, &list))
		key := o.store(messages.Batch{
			V: 1, ID: "b", Session: "s", Provider: messages.Canonical, Catalogue: list.Digest,
			Message: []byte(`{"calls":[{"id":"c","name":"refund","input":{"other":1}}]}`),
		})
		o.until("its job waits for a worker", 10*time.Second, func() bool { return len(o.jobs()) == 1 })
		if r, found, err := o.journal.Reply(t.Context(), key); found || err != nil {
			t.Errorf("the call has ended: %s, %v", r, err)
		}
	})
}

// One announcement cannot be read: agents still get the definitions.
func TestDefinitionsBesideAnUnreadableAnnouncement(t *testing.T) {
	inOffice(t, messages.KindRead, func(t *testing.T, o *office) {
		o.announce("first")
		c, _ := o.coordinator(Config{})
		o.until("the coordinator is ready", time.Minute, c.Ready)
		bucket, err := o.conn.Bucket(t.Context(), o.names.Stream(bus.BucketWorkers))
		o.must(err)
		o.must(bucket.Put(t.Context(), "odd", []byte(`{"slots":"many"}`)))
		m, err := o.conn.Request(t.Context(), o.names.OfTenant(wire.VerbTools, messages.OneTenant), nil, nil)
		o.must(err)
		var list messages.ToolList
		o.must(json.Unmarshal(m.Data, &list))
		if list.Error != nil || !strings.Contains(string(list.Tools), o.tool.Name) {
			t.Errorf("got %s", m.Data)
		}
	})
}
