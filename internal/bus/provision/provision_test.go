package provision_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/bustest"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// Every stream has the configuration that is expected, as the server reports it.
func TestStreams(t *testing.T) {
	srv := natstest.Server(t)
	c, js := bustest.Connect(t, srv), bustest.Raw(t, srv)
	if err := provision.Ensure(t.Context(), c, provision.Config{BatchTTL: time.Minute, ReplyTTL: time.Hour, WorkerTTL: 5 * time.Second}); err != nil {
		t.Fatal(err)
	}
	type row struct {
		Subjects   string
		Retention  string
		PerSubject int64
		PerNew     bool // whether new messages are refused per subject
		MaxAge     time.Duration
		Persist    string
	}
	want := map[string]row{
		"TOOLFLEET_BATCHES":      {"toolfleet.batch.*.*.*", "workqueue", 1, true, 0, "Default"},
		"TOOLFLEET_JOBS":         {"toolfleet.read.> toolfleet.write.>", "workqueue", 1, true, 0, "Async"},
		"TOOLFLEET_CALLS":        {"toolfleet.call.> toolfleet.plan.> toolfleet.hand.> toolfleet.ctl.*.*", "limits", -1, false, 3 * time.Minute, "Default"},
		"TOOLFLEET_RESULTS":      {"toolfleet.result.>", "limits", -1, false, 3 * time.Minute, "Async"},
		"TOOLFLEET_AUDIT":        {"toolfleet.audit.>", "limits", -1, false, 30 * 24 * time.Hour, "Default"},
		"TOOLFLEET_DEAD":         {"toolfleet.dead.>", "limits", -1, false, 7 * 24 * time.Hour, "Default"},
		"TOOLFLEET_REPLIES":      {"toolfleet.final.>", "limits", -1, false, time.Hour, "Default"},
		"KV_TOOLFLEET_keys":      {"$KV.TOOLFLEET_keys.>", "limits", 1, false, 0, "Default"},
		"KV_TOOLFLEET_tools":     {"$KV.TOOLFLEET_tools.>", "limits", 1, false, 0, "Default"},
		"KV_TOOLFLEET_workers":   {"$KV.TOOLFLEET_workers.>", "limits", 1, false, 5 * time.Second, "Async"},
		"KV_TOOLFLEET_approvals": {"$KV.TOOLFLEET_approvals.>", "limits", 1, false, 2 * time.Minute, "Async"},
		"OBJ_TOOLFLEET_OBJECTS":  {"$O.TOOLFLEET_OBJECTS.C.> $O.TOOLFLEET_OBJECTS.M.>", "limits", -1, false, 2 * time.Hour, "Default"},
	}
	got := map[string]row{}
	streams := js.ListStreams(t.Context())
	for info := range streams.Info() {
		s := info.Config
		if s.Discard != jetstream.DiscardNew || s.Storage != jetstream.FileStorage || !s.AllowDirect {
			t.Errorf("%s: discard %v, storage %v, direct %v", s.Name, s.Discard, s.Storage, s.AllowDirect)
		}
		got[s.Name] = row{strings.Join(s.Subjects, " "), retention(t, s), s.MaxMsgsPerSubject, s.DiscardNewPerSubject, s.MaxAge, s.PersistMode.String()}
	}
	if err := streams.Err(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("streams (-want +got):\n%s", diff)
	}
	batches, err := js.Stream(t.Context(), "TOOLFLEET_BATCHES")
	if err != nil {
		t.Fatal(err)
	}
	if d := batches.CachedInfo().Config.Duplicates; d != 100*time.Millisecond {
		t.Errorf("duplicate window of BATCHES is %v", d)
	}
}

func retention(t *testing.T, s jetstream.StreamConfig) string {
	t.Helper()
	var name string
	b, err := json.Marshal(s.Retention)
	if err == nil {
		err = json.Unmarshal(b, &name)
	}
	if err != nil {
		t.Fatal(err)
	}
	return name
}

func TestProvisionTwiceChangesNothing(t *testing.T) {
	srv := natstest.Server(t)
	js := bustest.Raw(t, srv)
	var provisioners sync.WaitGroup
	for range 4 { // at the same time
		c := bustest.Connect(t, srv)
		provisioners.Go(func() {
			if err := provision.Ensure(t.Context(), c, provision.Config{}); err != nil {
				t.Error(err)
			}
		})
	}
	provisioners.Wait()
	before := configs(t, js)
	c := bustest.Connect(t, srv)
	bustest.Provision(t, c)
	if err := provision.Ensure(t.Context(), c, provision.Config{BatchTTL: time.Minute, ReplyTTL: time.Minute, WorkerTTL: time.Second}); err != nil {
		t.Errorf("shorter ages than what is there: %v", err)
	}
	if diff := cmp.Diff(before, configs(t, js)); diff != "" {
		t.Errorf("changed (-before +after):\n%s", diff)
	}
	if err := provision.Ensure(t.Context(), c, provision.Config{BatchTTL: 2 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	if age := configs(t, js)["TOOLFLEET_CALLS"].MaxAge; age != 6*time.Hour {
		t.Errorf("a longer batch_ttl left CALLS at %v", age)
	}
}

// No process can delete or purge records, whatever rights it has: they only expire. Streams of
// an earlier build get this protection. A fleet that is set to be erasable accepts streams
// with and without it.
func TestRecordsCannotBeErased(t *testing.T) {
	records := []string{"TOOLFLEET_AUDIT", "TOOLFLEET_CALLS", "TOOLFLEET_RESULTS", "TOOLFLEET_REPLIES"}
	for _, earlier := range []bool{false, true} {
		t.Run(fmt.Sprintf("streams of an earlier build %v", earlier), func(t *testing.T) {
			srv := natstest.Server(t, natstest.Fast)
			c, js := bustest.Connect(t, srv), bustest.Raw(t, srv)
			if earlier {
				if err := provision.Ensure(t.Context(), c, provision.Config{Erasable: true}); err != nil {
					t.Fatal(err)
				}
				if s := configs(t, js)["TOOLFLEET_AUDIT"]; s.DenyDelete || s.DenyPurge {
					t.Fatalf("an erasable fleet has %+v", s)
				}
			}
			for _, erasable := range []bool{false, true} { // the second round finds the flags of the first, which stay
				if err := provision.Ensure(t.Context(), c, provision.Config{Erasable: erasable}); err != nil {
					t.Fatal(err)
				}
			}
			for name, subject := range map[string]string{
				"TOOLFLEET_AUDIT": "toolfleet.audit.t.s.b.0", "TOOLFLEET_CALLS": "toolfleet.call.t.s.b.0",
				"TOOLFLEET_RESULTS": "toolfleet.result.t.s.b.0", "TOOLFLEET_REPLIES": "toolfleet.final.t.s.b",
			} {
				seq, err := c.Append(t.Context(), subject, nil, []byte("{}"))
				if err != nil {
					t.Fatal(err)
				}
				s, err := js.Stream(t.Context(), name)
				if err != nil {
					t.Fatal(err)
				}
				if s.Purge(t.Context()) == nil || s.DeleteMsg(t.Context(), seq) == nil || s.SecureDeleteMsg(t.Context(), seq) == nil {
					t.Errorf("%s can be erased", name)
				}
				if _, err := s.GetMsg(t.Context(), seq); err != nil {
					t.Errorf("%s lost its record: %v", name, err)
				}
			}
			for name, s := range configs(t, js) {
				if kept := slices.Contains(records, name); s.DenyPurge != kept || kept && !s.DenyDelete {
					t.Errorf("%s: deny_delete %v, deny_purge %v", name, s.DenyDelete, s.DenyPurge)
				}
			}
		})
	}
}

// A process that may write one entry of a bucket cannot remove the others with the header
// Nats-Rollup. Buckets of an earlier build get this protection, unless the fleet is set to be
// erasable. The bucket of workers has no such protection, and its entries come back.
func TestBucketsAllowNoRollup(t *testing.T) {
	srv := natstest.Server(t, natstest.Fast)
	c, js := bustest.Connect(t, srv), bustest.Raw(t, srv)
	buckets := []string{bus.BucketTools, bus.BucketKeys, bus.BucketApprovals}
	for _, tt := range []struct{ erasable, rollup bool }{{true, true}, {false, false}, {true, false}} {
		if err := provision.Ensure(t.Context(), c, provision.Config{Erasable: tt.erasable}); err != nil {
			t.Fatal(err)
		}
		for _, name := range buckets {
			if s := configs(t, js)["KV_"+c.Names().Stream(name)]; s.AllowRollup != tt.rollup {
				t.Errorf("erasable %v: the bucket %s has allow_rollup_hdrs %v", tt.erasable, name, s.AllowRollup)
			}
		}
	}
	for _, name := range buckets {
		bucket, err := c.Bucket(t.Context(), c.Names().Stream(name))
		if err != nil {
			t.Fatal(err)
		}
		if err := bucket.Put(t.Context(), "a", []byte("{}")); err != nil {
			t.Fatal(err)
		}
		subject := "$KV." + c.Names().Stream(name) + ".b"
		if _, err := c.Append(t.Context(), subject, bus.Header{"Nats-Rollup": {"all"}}, []byte("{}")); err == nil {
			t.Errorf("the bucket %s accepts a rollup", name)
		}
		if _, found, err := bucket.GetFromLeader(t.Context(), "a"); !found || err != nil {
			t.Errorf("the bucket %s has lost an entry: %v", name, err)
		}
		if err := bucket.Delete(t.Context(), "a"); err != nil {
			t.Errorf("the bucket %s allows no deletion: %v", name, err)
		}
	}
}

func configs(t *testing.T, js jetstream.JetStream) map[string]jetstream.StreamConfig {
	t.Helper()
	all := map[string]jetstream.StreamConfig{}
	for info := range js.ListStreams(t.Context()).Info() {
		all[info.Config.Name] = info.Config
	}
	return all
}

func TestAStreamMadeDifferentlyIsNamed(t *testing.T) {
	srv := natstest.Server(t, natstest.Fast)
	c, js := bustest.Connect(t, srv), bustest.Raw(t, srv)
	for _, row := range []struct {
		stream  string
		change  func(*jetstream.StreamConfig)
		field   string // "": the configuration is accepted
		because string
	}{
		{"TOOLFLEET_BATCHES", func(s *jetstream.StreamConfig) { s.Retention = jetstream.LimitsPolicy }, "retention", "finished batches would stay"},
		{"TOOLFLEET_BATCHES", func(s *jetstream.StreamConfig) { s.MaxMsgsPerSubject, s.DiscardNewPerSubject = 2, true }, "max_msgs_per_subject", "a running duplicate would be taken"},
		{"TOOLFLEET_BATCHES", func(s *jetstream.StreamConfig) { s.Subjects = []string{"toolfleet.batch.>"} }, "subjects", "batches nobody can address"},
		{"TOOLFLEET_BATCHES", func(s *jetstream.StreamConfig) { s.Duplicates = 2 * time.Minute }, "duplicate_window", "an agent would wait for ever"},
		{"TOOLFLEET_BATCHES", func(s *jetstream.StreamConfig) { s.PersistMode = jetstream.AsyncPersistMode }, "persist_mode", "acknowledged batches would be lost"},
		{"TOOLFLEET_CALLS", func(s *jetstream.StreamConfig) { s.Discard = jetstream.DiscardOld }, "discard", "a full journal would forget"},
		{"TOOLFLEET_CALLS", func(s *jetstream.StreamConfig) { s.Storage = jetstream.MemoryStorage }, "storage", "a restart would forget"},
		{"TOOLFLEET_CALLS", func(s *jetstream.StreamConfig) { s.AllowRollup, s.DenyPurge = true, false }, "allow_rollup_hdrs", "anybody could wipe it with a header"},
		{"TOOLFLEET_CALLS", func(s *jetstream.StreamConfig) { s.AllowDirect = false }, "allow_direct", "reads would get no answer"},
		{"TOOLFLEET_CALLS", func(s *jetstream.StreamConfig) { s.NoAck = true }, "no_ack", "nobody would know what is stored"},
		{"TOOLFLEET_BATCHES", func(s *jetstream.StreamConfig) { s.DenyDelete = true }, "deny_delete", "ended batches would stay"},
		{"TOOLFLEET_DEAD", func(s *jetstream.StreamConfig) { s.DenyDelete = true }, "deny_delete", "dead letters would stay"},
		{"TOOLFLEET_REPLIES", func(s *jetstream.StreamConfig) { s.RePublish = nil }, "republish", "agents would hear nothing"},
		{"TOOLFLEET_CALLS", func(s *jetstream.StreamConfig) { s.MaxBytes, s.MaxMsgs = 1<<30, 1e6 }, "", "limits refuse, they do not forget"},
		{"TOOLFLEET_JOBS", func(s *jetstream.StreamConfig) { s.PersistMode = jetstream.DefaultPersistMode }, "", "only slower"},
		{"TOOLFLEET_CALLS", func(s *jetstream.StreamConfig) { s.MaxAge, s.Duplicates = 0, 0 }, "", "kept for ever"},
	} {
		t.Run(row.stream+" "+row.because, func(t *testing.T) {
			bustest.Provision(t, c)
			config := configs(t, js)[row.stream]
			if err := js.DeleteStream(t.Context(), row.stream); err != nil {
				t.Fatal(err)
			}
			row.change(&config)
			if _, err := js.CreateStream(t.Context(), config); err != nil {
				t.Fatal(err)
			}
			err := provision.Ensure(t.Context(), c, provision.Config{})
			if err := js.DeleteStream(t.Context(), row.stream); err != nil {
				t.Fatal(err)
			}
			var mismatch *bus.Mismatch
			switch {
			case row.field == "" && err != nil:
				t.Errorf("refused: %v", err)
			case row.field == "":
			case !errors.As(err, &mismatch) || mismatch.Field != row.field || !strings.Contains(err.Error(), row.stream) || !bus.IsTerminal(err):
				t.Errorf("got %v; want field %s of %s named", err, row.field, row.stream)
			}
		})
	}
}

func TestPrefixesKeepFleetsApart(t *testing.T) {
	srv := natstest.Server(t)
	for _, prefix := range []string{"", "blue"} {
		c, err := bus.Connect(t.Context(), bus.Options{InProcess: srv, Prefix: prefix})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		bustest.Provision(t, c)
		if _, err := c.Append(t.Context(), c.Names().Of(wire.VerbBatch, bustest.Key("s", "b")), nil, nil); err != nil {
			t.Errorf("prefix %q: %v", prefix, err)
		}
	}
	if n := len(configs(t, bustest.Raw(t, srv))); n != 24 {
		t.Errorf("%d streams for two fleets, want 24", n)
	}
}

// Agents get the notice of a reply only after the reply was stored.
func TestStoredRepliesAreRepublished(t *testing.T) {
	c := bustest.Fleet(t)
	heard := make(chan bus.Msg, 10)
	stop, err := c.Subscribe(c.Names().All(wire.VerbReply), "", func(m bus.Msg) { heard <- m })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	subject := c.Names().Of(wire.VerbFinal, bustest.Key("s", "b"))
	seq, err := c.CompareAndSet(t.Context(), subject, bus.Header{"traceparent": {"00-1"}}, []byte("first"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CompareAndSet(t.Context(), subject, nil, []byte("second"), 0); !errors.Is(err, bus.ErrConflict) {
		t.Fatal(err)
	}
	m := bustest.Receive(t, heard)
	if m.Subject != c.Names().Of(wire.VerbReply, bustest.Key("s", "b")) || string(m.Data) != "first" || m.Header.Get("traceparent") != "00-1" || m.Header.Get("Nats-Sequence") == "" {
		t.Errorf("heard %+v of sequence %d", m, seq)
	}
	if err := c.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(heard) != 0 {
		t.Errorf("heard another: %+v", <-heard)
	}
}

func TestEnsureConsumer(t *testing.T) {
	srv := natstest.Server(t)
	c, js := bustest.Connect(t, srv), bustest.Raw(t, srv)
	batches := provision.BatchesConsumer(c.Names(), 0)
	if err := provision.EnsureConsumer(t.Context(), c, batches); !errors.Is(err, bus.ErrNoStream) {
		t.Errorf("before Provision: %v", err)
	}
	bustest.Provision(t, c)
	pool, err := provision.QueueConsumer(c.Names(), "gpu", 3*time.Second, 40)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []provision.Consumer{batches, pool, batches, pool} {
		if err := provision.EnsureConsumer(t.Context(), c, want); err != nil {
			t.Fatal(err)
		}
	}
	for _, row := range []struct {
		stream, name, filters string
		ackWait               time.Duration
		inFlight              int
	}{
		{"TOOLFLEET_BATCHES", "coordinators", "", 10 * time.Second, -1},
		{"TOOLFLEET_JOBS", "gpu", "toolfleet.read.gpu.> toolfleet.write.gpu.>", 3 * time.Second, 40},
	} {
		consumer, err := js.Consumer(t.Context(), row.stream, row.name)
		if err != nil {
			t.Fatal(err)
		}
		got := consumer.CachedInfo().Config
		if strings.Join(got.FilterSubjects, " ") != row.filters || got.AckWait != row.ackWait || got.MaxAckPending != row.inFlight ||
			got.AckPolicy != jetstream.AckExplicitPolicy || got.MaxDeliver != -1 || got.MaxWaiting != 4096 || got.InactiveThreshold != 0 {
			t.Errorf("%s is %+v", row.name, got)
		}
	}
	pool.AckWait = time.Second
	if err := provision.EnsureConsumer(t.Context(), c, pool); err != nil {
		t.Errorf("another AckWait: %v", err)
	}
	if consumer, err := js.Consumer(t.Context(), pool.Stream, pool.Name); err != nil || consumer.CachedInfo().Config.AckWait != time.Second {
		t.Errorf("AckWait was not brought up to date: %v", err)
	}
	pool.Filters = pool.Filters[:1]
	var mismatch *bus.Mismatch
	if err := provision.EnsureConsumer(t.Context(), c, pool); !errors.As(err, &mismatch) || mismatch.Field != "filter_subjects" {
		t.Errorf("another filter: %v", err)
	}
	if _, err := provision.QueueConsumer(c.Names(), "a.*", 0, 0); err == nil {
		t.Error("a pool named a.*")
	}
}

// The first process has no bounds configured: a later process that has bounds sets them. A
// process without bounds never removes them.
func TestBoundsAreSetLater(t *testing.T) {
	srv := natstest.Server(t, natstest.Fast)
	c := bustest.Connect(t, srv)
	bounded := provision.Config{MaxBatches: 2, MaxBytes: map[string]int64{bus.Calls: 1 << 20}}
	for _, p := range []provision.Config{{}, bounded, {}} {
		if err := provision.Ensure(t.Context(), c, p); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 {
		if _, err := c.Append(t.Context(), fmt.Sprint("toolfleet.batch._.s.b", i), nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Append(t.Context(), "toolfleet.batch._.s.b2", nil, nil); !errors.Is(err, bus.ErrFull) {
		t.Errorf("a third batch where two may wait: %v", err)
	}
	if _, err := c.Append(t.Context(), "toolfleet.call._.s.b.0", nil, make([]byte, 1000_000)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Append(t.Context(), "toolfleet.call._.s.b.1", nil, make([]byte, 100_000)); !errors.Is(err, bus.ErrFull) {
		t.Errorf("more records than there is room for: %v", err)
	}
}

// hushed is a server that leaves some requests unanswered, like a cluster without a leader.
type hushed struct {
	*devserver.Server
	question string
	unheard  atomic.Int32 // how many more requests get no answer
}

func (h *hushed) InProcessConn() (net.Conn, error) {
	conn, err := h.Server.InProcessConn()
	return &hushedConn{conn, h}, err
}

type hushedConn struct {
	net.Conn
	server *hushed
}

func (c *hushedConn) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(c.server.question)) && c.server.unheard.Add(-1) >= 0 {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// A daemon starts while a cluster elects a leader: it waits for the leader, whatever its first
// request is.
func TestProvisionOutlivesAMomentWithoutALeader(t *testing.T) {
	for _, question := range []string{"$JS.API.STREAM.INFO.TOOLFLEET_AUDIT", "$JS.API.CONSUMER.INFO.TOOLFLEET_BATCHES.coordinators", "$JS.API.CONSUMER.CREATE.TOOLFLEET_BATCHES.coordinators"} {
		t.Run(question, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				h := &hushed{Server: srv, question: question}
				h.unheard.Store(1)
				c, err := bus.Connect(t.Context(), bus.Options{InProcess: h})
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				if err := provision.Ensure(t.Context(), c, provision.Config{}, provision.BatchesConsumer(c.Names(), 0)); err != nil {
					t.Error(err)
				}
				if h.unheard.Load() > 0 {
					t.Error("the request was not made")
				}
				h.unheard.Store(1 << 30)
				if err := provision.Ensure(t.Context(), c, provision.Config{}, provision.BatchesConsumer(c.Names(), time.Minute)); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("a cluster without a leader for long: got %v, want the deadline", err)
				}
			})
		})
	}
}

// A put into a bucket at the start of a daemon waits for the bucket's stream.
func TestPatienceWithABucket(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		c, js := bustest.Connect(t, srv), bustest.Raw(t, srv)
		bustest.Provision(t, c)
		bucket, err := c.Bucket(t.Context(), c.Names().Stream(bus.BucketTools))
		if err != nil {
			t.Fatal(err)
		}
		if err := js.DeleteStream(t.Context(), "KV_TOOLFLEET_tools"); err != nil {
			t.Fatal(err)
		}
		put := func(ctx context.Context) error { return bucket.Put(ctx, "pay", []byte("{}")) }
		began := time.Now()
		// The error is that of the last try, or the deadline.
		if err := provision.Patiently(t.Context(), put); err == nil {
			t.Error("put into a bucket that is not there")
		}
		if took := time.Since(began); took < 14*time.Second || took > 20*time.Second {
			t.Errorf("gave up after %v, want 14 to 20 s", took)
		}
		go func() {
			time.Sleep(2 * time.Second)
			bustest.Provision(t, c)
		}()
		if err := provision.Patiently(t.Context(), put); err != nil {
			t.Errorf("once it is there: %v", err)
		}
	})
}
