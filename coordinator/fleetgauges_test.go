package coordinator

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/bus/pull"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/fleetgauges"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// The bounds of package fleetgauges that a reader of metrics notices: the longest wait, and
// the greatest age of values.
const (
	scrapeTimeout = 2 * time.Second
	fleetMaxAge   = 5 * time.Second
)

// scraped returns the metrics of a collector as name{label}, except those that count bytes.
func scraped(t *testing.T, collector prometheus.Collector) map[string]float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry() // this registry also compares the descriptions with the metrics
	reg.MustRegister(collector)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			name := strings.TrimPrefix(f.GetName(), "toolfleet_")
			for _, l := range m.Label {
				name += "{" + l.GetValue() + "}"
			}
			if f.GetName() != "toolfleet_stream_bytes" {
				seen[name] = m.GetGauge().GetValue()
			} else if v := m.GetGauge().GetValue(); v < 0 || v > 1<<20 {
				t.Errorf("%s is %v", name, v)
			}
		}
	}
	return seen
}

// some returns only the metrics with one of these names.
func some(seen map[string]float64, names ...string) map[string]float64 {
	out := maps.Clone(seen)
	maps.DeleteFunc(out, func(name string, _ float64) bool {
		name, _, _ = strings.Cut(name, "{")
		return !slices.Contains(names, name)
	})
	return out
}

var poolGauges = []string{"pool_pending", "pool_in_flight", "pool_load", "oldest_pending_call_age_seconds", "pool_slots", "pool_workers", "pool_unserved", "pool_toolsets"}

// present announces a worker with these pools.
func (o *office) present(name string, slots int, pools ...string) {
	o.t.Helper()
	bucket, err := o.conn.Bucket(o.t.Context(), o.names.Stream(bus.BucketWorkers))
	o.must(err)
	o.must(bucket.Put(o.t.Context(), name, rawjson.MustMarshal(wire.Presence{V: 1, Worker: name, Slots: slots, Pools: pools, Tools: []string{o.tool.Name}})))
}

// Three calls wait. Then two workers come, and each takes one call and holds it for a minute.
func TestGaugesOfPools(t *testing.T) {
	inOffice(t, messages.KindRead, func(t *testing.T, o *office) {
		c, _ := o.coordinator(Config{})
		gauges := c.Gauges()
		want := func(when string, pending, inFlight, oldest, slots, workers, unserved, toolsets float64) {
			t.Helper()
			want := map[string]float64{
				"pool_pending{default}": pending, "pool_in_flight{default}": inFlight, "pool_load{default}": pending + inFlight,
				"oldest_pending_call_age_seconds{default}": oldest, "pool_slots{default}": slots, "pool_workers{default}": workers,
				"pool_unserved{default}": unserved, "pool_toolsets{default}": toolsets,
			}
			got := some(scraped(t, gauges), poolGauges...)
			oldestNow := "oldest_pending_call_age_seconds{default}"
			got[oldestNow] = float64(int(got[oldestNow] + 0.5))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got)\n%s", when, diff)
			}
		}
		want("a tool, and nobody who runs it", 0, 0, 0, 0, 0, 0, 0)
		o.submit("s", "b", 3)
		time.Sleep(30 * time.Second)
		want("calls wait", 3, 0, 30, 0, 0, 3, 0)
		o.present("w1", 10, "default")
		o.present("w2", 5, "default", "b*d.pool")
		conn := o.connect("worker")
		pool, err := provision.QueueConsumer(conn.Names(), schemas.DefaultPool, time.Minute, 0)
		o.must(err)
		o.must(provision.EnsureConsumer(t.Context(), conn, pool))
		o.run(conn, func(ctx context.Context) error {
			return pull.New(conn, pool.Stream, pool.Name).Run(ctx, pull.NewSlots(2), func(d *pull.Delivery) { <-ctx.Done() })
		})
		time.Sleep(10 * time.Second)
		want("two are in hand", 1, 2, 10, 15, 2, 0, 1) // the jobs went to the queue of the workers when these were announced
	})
}

func TestGaugesOfQuestionsAndStreams(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		c, _ := o.coordinator(Config{Provision: provision.Config{MaxBytes: map[string]int64{bus.Audit: 1 << 30}}})
		o.worker()
		gauges := c.Gauges()
		if got := some(scraped(t, gauges), "approvals_pending")["approvals_pending{high}"]; got != 0 {
			t.Errorf("%v questions before there is any", got)
		}
		var keys []wire.BatchKey
		for i := range 2 {
			keys = append(keys, o.submit(fmt.Sprint("s", i), "b", 1))
			o.rests(keys[i].Call(0), c)
			time.Sleep(time.Minute)
		}
		got := scraped(t, gauges)
		if age := got["approvals_oldest_age_seconds{high}"]; age < 119 || age > 125 {
			t.Errorf("the oldest question is %v old, want 2 minutes", age)
		}
		want := map[string]float64{
			"fleet_up": 1, "batches_open": 2, "approvals_pending{low}": 0, "approvals_pending{medium}": 0, "approvals_pending{high}": 2, "approvals_pending{critical}": 0,
			"stream_messages{BATCHES}": 2, "stream_messages{JOBS}": 0, "stream_messages{RESULTS}": 0, "stream_messages{REPLIES}": 0, "stream_messages{DEAD}": 0,
			"stream_messages{AUDIT}": 2, "stream_max_bytes{AUDIT}": 1 << 30,
			"stream_messages{CALLS}": 4, // two calls, each with a plan and a parked record
		}
		if diff := cmp.Diff(want, some(got, "fleet_up", "batches_open", "approvals_pending", "stream_messages", "stream_max_bytes")); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		if _, err := o.conn.Request(t.Context(), "$JS.API.STREAM.DELETE.TOOLFLEET_AUDIT", nil, nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		got = scraped(t, gauges)
		if _, shown := got["stream_messages{AUDIT}"]; shown || got["fleet_up"] != 1 || got["batches_open"] != 2 {
			t.Errorf("with one stream gone: %v", some(got, "fleet_up", "batches_open", "stream_messages"))
		}
	})
}

// heads returns the gauges of stuck heads.
func heads(t *testing.T, gauges *fleetgauges.Gauges) map[string]float64 {
	t.Helper()
	return some(scraped(t, gauges), "heads_stuck")
}

// One batch has its reply and is in the log again. Another batch was never driven. Both count
// as stuck, and the batches behind them do not.
func TestGaugesOfHeadsThatAreStuck(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		_, stop := o.coordinator(Config{})
		o.reply(o.submit("replied", "b", 0), soon)
		o.until("the log is empty", soon, func() bool {
			_, open, err := o.journal.Head(context.Background(), messages.OneTenant, "replied")
			return err == nil && !open
		})
		stop()
		gauges := o.idle().Gauges()
		want := func(when string, replied, idle float64) {
			t.Helper()
			if diff := cmp.Diff(map[string]float64{"heads_stuck{replied}": replied, "heads_stuck{idle}": idle}, heads(t, gauges)); diff != "" {
				t.Errorf("%s (-want +got)\n%s", when, diff)
			}
		}
		want("an empty log", 0, 0)
		for _, session := range []string{"replied", "undriven"} {
			o.submit(session, "b", 0)
			o.submit(session, "behind", 0)
		}
		time.Sleep(50 * time.Second)
		want("batches that have just come", 0, 0)
		time.Sleep(time.Minute)
		want("two minutes later", 1, 0)
		time.Sleep(fleetgauges.HeadPatience(time.Minute, []schemas.Tool{o.tool}))
		want("after the patience", 1, 1)
		o.coordinator(Config{})
		time.Sleep(time.Minute)
		want("when a coordinator has driven them", 0, 0)
	})
}

// A batch has its reply, is in the log again, and is never delivered. An abort makes a
// coordinator remove it. `toolfleet doctor` tells operators to use this abort.
func TestAnAbortRemovesAHeadThatHasItsReply(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		empty := func() bool {
			_, open, err := o.journal.Head(context.Background(), messages.OneTenant, "s")
			return err == nil && !open
		}
		_, stop := o.coordinator(Config{})
		before := o.reply(o.submit("s", "b", 0), soon)
		o.until("the log is empty", soon, empty)
		stop()
		conn := o.connect("a consumer that keeps what it is given")
		kept := make(chan struct{})
		o.run(conn, func(ctx context.Context) error {
			return pull.New(conn, o.names.Stream(bus.Batches), bus.CoordinatorsConsumer).Run(ctx, pull.NewSlots(1), func(d *pull.Delivery) {
				close(kept)
				for ctx.Err() == nil {
					_ = d.InProgress()
					pause(ctx, time.Second)
				}
			})
		})
		key := o.submit("s", "b", 0)
		<-kept
		o.coordinator(Config{})
		o.say("s", messages.Control{Abort: []byte(`"b"`)})
		o.until("the batch has left the log", soon, empty)
		if diff := cmp.Diff(before, o.reply(key, soon)); diff != "" {
			t.Errorf("the reply has changed: %s", diff)
		}
	})
}

// idle returns a coordinator that drives nothing.
func (o *office) idle() *Coordinator {
	o.t.Helper()
	conn := o.connect("idle coordinator")
	o.ends = append(o.ends, conn.Close)
	c, err := New(conn, Config{Logger: o.log})
	o.must(err)
	return c
}

// A head waits long for a worker or a person: neither the head nor the batches behind it count
// as stuck.
func TestGaugesOfHeadsThatAreNotStuck(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		o.ask = func(q *messages.Approval) { q.Expires = q.Asked.Add(30 * time.Minute) }
		c, _ := o.coordinator(Config{QueueTimeout: 30 * time.Minute})
		gauges := o.idle().Gauges()
		none := func(when string) {
			t.Helper()
			for reason, n := range heads(t, gauges) {
				if n != 0 {
					t.Errorf("%s: %s is %v, want 0", when, reason, n)
				}
			}
		}
		batch := o.submit("s", "b", 1)
		o.submit("s", "behind", 1)
		time.Sleep(10 * time.Minute)
		none("the call waits for a worker")
		o.worker()
		question := o.rests(batch.Call(0), c)
		time.Sleep(10 * time.Minute)
		none("the call waits for a person")
		_, _, err := o.journal.Forget(t.Context(), batch.Call(0))
		o.must(err)
		time.Sleep(time.Minute)
		none("the question is missing in the list")
		o.decide(batch.Call(0), o.decision(question, messages.VerdictApprove, "alice"))
		o.reply(batch, soon)
		time.Sleep(time.Minute)
		none("the next batch is the head")
	})
}

// Many readers of metrics ask at once: the server is asked once in five seconds. If the server
// does not answer, a reader waits two seconds at most, and gets no values instead of old ones.
func TestGaugesAskTheServerSeldom(t *testing.T) {
	inOffice(t, messages.KindRead, func(t *testing.T, o *office) {
		c, _ := o.coordinator(Config{})
		gauges := c.Gauges()
		show := func() map[string]float64 { return some(scraped(t, gauges), "batches_open", "fleet_up") }
		want := func(when string, want map[string]float64) {
			t.Helper()
			var scrapers sync.WaitGroup
			began := time.Now()
			for range 20 {
				scrapers.Go(func() {
					if diff := cmp.Diff(want, show()); diff != "" {
						t.Errorf("%s (-want +got)\n%s", when, diff)
					}
				})
			}
			scrapers.Wait()
			if took := time.Since(began); took > scrapeTimeout {
				t.Errorf("%s: took %v", when, took)
			}
		}
		want("at first", map[string]float64{"fleet_up": 1, "batches_open": 0})
		o.submit("s", "b", 1)
		want("before five seconds are over", map[string]float64{"fleet_up": 1, "batches_open": 0})
		time.Sleep(fleetMaxAge)
		want("after them", map[string]float64{"fleet_up": 1, "batches_open": 1})
		o.srv.Stop()
		time.Sleep(fleetMaxAge)
		want("without a server", map[string]float64{"fleet_up": 0})
		if all := scraped(t, gauges); len(all) != 1 {
			t.Errorf("without a server there is still %v", all)
		}
		o.must(o.srv.Restart())
		time.Sleep(10 * time.Second)
		want("when it is back", map[string]float64{"fleet_up": 1, "batches_open": 1})
	})
}

// mute is a server that can be made to lose every message that it is sent, while the
// connection stays up.
type mute struct {
	*devserver.Server
	deaf *atomic.Bool
}

func (m mute) InProcessConn() (net.Conn, error) {
	conn, err := m.Server.InProcessConn()
	return mutedConn{conn, m.deaf}, err
}

type mutedConn struct {
	net.Conn
	deaf *atomic.Bool
}

func (c mutedConn) Write(b []byte) (int, error) {
	if c.deaf.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// The server does not answer: a reader of the metrics waits two seconds at most, and only once
// in seven seconds. It gets no values.
func TestGaugesOfASilentServer(t *testing.T) {
	inOffice(t, messages.KindRead, func(t *testing.T, o *office) {
		deaf := new(atomic.Bool)
		conn, err := bus.Connect(t.Context(), bus.Options{InProcess: mute{o.srv, deaf}})
		o.must(err)
		defer conn.Close()
		c, err := New(conn, Config{})
		o.must(err)
		gauges := c.Gauges()
		scrape := func(when string, up float64, want time.Duration) {
			t.Helper()
			began := time.Now()
			got := scraped(t, gauges)
			if took := time.Since(began); got["fleet_up"] != up || took != want || up == 0 && len(got) != 1 {
				t.Errorf("%s: %v after %v, want up %v after %v", when, got, took, up, want)
			}
		}
		scrape("well", 1, 0)
		deaf.Store(true)
		scrape("known from before", 1, 0)
		time.Sleep(fleetMaxAge)
		scrape("silent", 0, scrapeTimeout)
		scrape("known to be", 0, 0)
		time.Sleep(fleetMaxAge)
		scrape("silent still", 0, scrapeTimeout)
		deaf.Store(false)
		time.Sleep(fleetMaxAge)
		scrape("well again", 1, 0)
	})
}
