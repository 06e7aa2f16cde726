package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/e2e/fleettest"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// onEveryNode is a configuration that keeps each stream on every node of a cluster.
var onEveryNode = provision.Config{Replicas: natstest.Nodes}

// clusterFleet is a fleet whose daemons are connected to different nodes of a cluster.
type clusterFleet struct {
	*fleet
	cl *natstest.Cluster
}

func newClusterFleet(t testing.TB) *clusterFleet {
	t.Helper()
	f := &clusterFleet{
		fleet: &fleet{t: t, tools: &tool.Registry{}, log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))},
		cl:    natstest.StartCluster(t, natstest.Fast),
	}
	f.conn = f.dial("agent", f.cl.URL())
	f.client = fleettest.AgentOver(f.conn, "")
	if err := provision.Ensure(t.Context(), f.conn, onEveryNode); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *clusterFleet) dial(name, url string) *bus.Conn {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := bus.Connect(ctx, bus.Options{URL: url, Name: name, Logger: f.log})
	if err != nil {
		f.t.Fatalf("connect %s: %v", name, err)
	}
	return conn
}

// daemons starts two workers and two coordinators. Each of them tries another node first.
func (f *clusterFleet) daemons() {
	f.t.Helper()
	for i := range 2 {
		conn := f.dial("worker", f.cl.URLOf(i))
		w, err := worker.New(conn, f.tools, worker.Config{Logger: f.log, Provision: onEveryNode})
		if err != nil {
			f.t.Fatal(err)
		}
		f.start(conn, w.Run)
		conn = f.dial("coordinator", f.cl.URLOf(i+1))
		c, err := coordinator.New(conn, coordinator.Config{Logger: f.log, Provision: onEveryNode})
		if err != nil {
			f.t.Fatal(err)
		}
		f.start(conn, c.Run)
		f.until("the coordinator is ready", c.Ready)
	}
}

// ledger records the writes of tools: each idempotency key, and the order in each session.
type ledger struct {
	mu      sync.Mutex
	effects map[string]int      // number of writes by idempotency key
	order   map[string][]string // inputs of the writes by session
}

// tools registers the writes pay (on crash: once) and put (idempotent), and the read look,
// which returns what the session wrote last.
func (l *ledger) tools(f *fleet) {
	l.effects, l.order = map[string]int{}, map[string][]string{}
	for name, crash := range map[string]messages.OnCrash{"pay": messages.OnCrashOnce, "put": messages.OnCrashIdempotent} {
		f.tool(schemas.Tool{Name: name, OnCrash: crash}, func(_ context.Context, c tool.Call) (tool.Output, error) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.effects[c.IdempotencyKey]++
			l.order[string(c.Session)] = append(l.order[string(c.Session)], string(c.Input))
			return tool.Output{Value: c.Input}, nil
		})
	}
	f.tool(schemas.Tool{Name: "look", Kind: messages.KindRead}, func(_ context.Context, c tool.Call) (tool.Output, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		written := l.order[string(c.Session)]
		if len(written) == 0 {
			return tool.Text("nothing"), nil
		}
		return tool.Output{Value: json.RawMessage(written[len(written)-1])}, nil
	})
}

// done returns how many writes have run.
func (l *ledger) done() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, written := range l.order {
		n += len(written)
	}
	return n
}

// Leaders change, and a node is lost and comes back, while batches run. Each batch ends
// exactly once, and the writes of a session run in order. No write is applied twice, and each
// read sees the write before it.
func TestAClusterLosesLeadersAndANode(t *testing.T) {
	t.Parallel()
	f := newClusterFleet(t)
	defer f.close()
	var l ledger
	l.tools(f.fleet)
	f.daemons()
	sessions, each := 4, repeats(12, 24)
	if testing.Short() {
		each = 8
	}
	total := sessions * each * 2
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()

	var agents sync.WaitGroup
	defer agents.Wait()
	var ended atomic.Int64
	for s := range sessions {
		agents.Go(func() {
			for n := range each {
				if f.lookWriteLook(ctx, fmt.Sprint("s", s), n) {
					ended.Add(1)
				}
			}
		})
	}
	// Each fault waits until some writes have run since the fault before, so that it hits
	// running batches.
	faults := []func(){}
	for _, stream := range []string{bus.Batches, bus.Calls, bus.Jobs, bus.Replies, bus.Results} {
		faults = append(faults, func() { f.cl.StepDown(f.conn.Names().Stream(stream)) })
	}
	var lost int
	calls := f.conn.Names().Stream(bus.Calls)
	faults = append(faults,
		func() { lost = f.cl.Leader(calls); f.cl.Stop(lost) },
		func() { f.cl.Restart(lost); f.cl.Current(lost, calls) },
	)
	for i, fault := range faults {
		f.until(fmt.Sprint("there is progress before fault ", i), func() bool { return l.done() >= total*(i+1)/(len(faults)+2) || t.Failed() })
		fault()
	}
	agents.Wait()

	if got := int(ended.Load()); got != sessions*each {
		t.Errorf("%d of %d batches ended well", got, sessions*each)
	}
	for key, n := range l.effects {
		if n != 1 {
			t.Errorf("the effect %s was applied %d times", key, n)
		}
	}
	for s := range sessions {
		var want []string
		for n := range each {
			want = append(want, fmt.Sprintf(`{"n":%d,"w":"pay"}`, n), fmt.Sprintf(`{"n":%d,"w":"put"}`, n))
		}
		if got := l.order[fmt.Sprint("s", s)]; !slices.Equal(got, want) {
			t.Errorf("session %d wrote %v", s, got)
		}
	}
	// Batches and jobs are deleted a moment after the reply.
	for _, stream := range []string{bus.Batches, bus.Jobs} {
		f.until("nothing is left in "+stream, func() bool {
			_, err := f.conn.First(ctx, f.conn.Names().Stream(stream), ">")
			return errors.Is(err, bus.ErrNotFound)
		})
	}
}

// lookWriteLook runs a batch of reads and two writes, and checks its reply.
func (f *clusterFleet) lookWriteLook(ctx context.Context, session string, n int) bool {
	pay, put := fmt.Sprintf(`{"n":%d,"w":"pay"}`, n), fmt.Sprintf(`{"n":%d,"w":"put"}`, n)
	b := canonical(session, fmt.Sprint("b", n), call{"look", ""}, call{"look", ""}, call{"pay", pay}, call{"look", ""}, call{"put", put}, call{"look", ""})
	for {
		err := f.client.Submit(ctx, b)
		if err == nil {
			break
		}
		if ctx.Err() != nil || bus.IsTerminal(err) {
			f.t.Errorf("%s.%s: %v", session, b.ID, err)
			return false
		}
	}
	reply, err := f.client.Await(ctx, b.Session, b.ID)
	if err != nil {
		f.t.Errorf("%s.%s: %v", session, b.ID, err)
		return false
	}
	_, texts := answers(f.t, messages.Canonical, reply.Reinjection)
	if want := []string{pay, pay, put, put}; !slices.Equal(texts[2:], want) || texts[0] != texts[1] {
		f.t.Errorf("%s.%s: answered %v, want %v in the end", session, b.ID, texts, want)
		return false
	}
	return true
}

// Two writers claim the same call over and over, at different nodes, while the journal's
// leader changes. Each claim goes to one writer, and the other learns who has it.
func TestTwoRacingClaimsOnACluster(t *testing.T) {
	t.Parallel()
	f := newClusterFleet(t)
	defer f.close()
	stream := f.conn.Names().Stream(bus.Calls)
	rounds := repeats(180, 600)
	if testing.Short() {
		rounds = 100
	}
	var writers [2]*journal.Journal
	for i := range writers {
		conn := f.dial("writer", f.cl.URLOf(i))
		defer conn.Close()
		writers[i] = journal.New(conn)
	}
	key := wire.KeyOf(messages.OneTenant, "s", "b")
	for round := range rounds {
		var race sync.WaitGroup
		var seqs [len(writers)]uint64
		var lost [len(writers)]*journal.Lost
		for i, j := range writers {
			race.Go(func() {
				rec := wire.CallRecord{State: wire.Claimed, Nonce: fmt.Sprint("writer ", i), Worker: fmt.Sprint(i)}
				for range 100 {
					var err error
					seqs[i], err = j.Write(t.Context(), key.Call(round), rec, 0)
					if err == nil || errors.As(err, &lost[i]) {
						return
					}
				}
				t.Errorf("round %d: writer %d came to no end", round, i)
			})
		}
		if round%(rounds/6) == rounds/12 {
			f.cl.StepDown(stream)
		}
		race.Wait()
		winner := 0
		if seqs[0] == 0 {
			winner = 1
		}
		loser := 1 - winner
		newest, found, err := writers[loser].Newest(t.Context(), key.Call(round))
		switch {
		case err != nil || !found:
			t.Fatalf("round %d: no claim: %v", round, err)
		case seqs[winner] == 0 || seqs[loser] != 0 || lost[loser] == nil:
			t.Fatalf("round %d: claims %v, lost %v; want one winner", round, seqs, lost)
		case newest.Seq != seqs[winner] || lost[loser].Newest.Seq != seqs[winner] || newest.Record.Worker != fmt.Sprint(winner):
			t.Fatalf("round %d: writer %d has claim %d; the journal says %+v, the loser was told %+v", round, winner, seqs[winner], newest, lost[loser].Newest)
		}
	}
}

// A record is acknowledged to one daemon. From then on every other daemon sees it, even at a
// node that lags.
func TestWhatIsStoredIsSeenEverywhere(t *testing.T) {
	t.Parallel()
	f := newClusterFleet(t)
	defer f.close()
	names := f.conn.Names()
	at := f.dial("reader", f.cl.URLOf(f.cl.Follower(names.Stream(bus.Batches))))
	defer at.Close()
	w, r, ctx := journal.New(f.conn), journal.New(at), t.Context()
	rounds := repeats(200, 800)
	if testing.Short() {
		rounds = 100
	}
	for n := range rounds {
		key := wire.KeyOf(messages.OneTenant, "s", messages.BatchID(fmt.Sprint("b", n)))
		seq, err := f.conn.Append(ctx, names.Of(wire.VerbBatch, key), nil, []byte("{}"))
		if err != nil {
			t.Fatal(err)
		}
		if a, found, err := r.Open(ctx, key); err != nil || !found || a.Seq != seq {
			t.Fatalf("round %d: accepted as %d, open is %v, %v, %v", n, seq, a.Seq, found, err)
		}
		if _, err := w.WritePlan(ctx, key, wire.PlanRecord{Digest: "d"}, 0); err != nil {
			t.Fatal(err)
		}
		if plans, err := r.Plans(ctx, key); err != nil || len(plans) != 1 {
			t.Fatalf("round %d: plans %v, %v", n, plans, err)
		}
		if _, err := w.WriteResult(ctx, key.Call(0), messages.Result{V: 1}); err != nil {
			t.Fatal(err)
		}
		if _, found, err := r.Result(ctx, key.Call(0)); err != nil || !found {
			t.Fatalf("round %d: result %v, %v", n, found, err)
		}
		if _, err := w.WriteReply(ctx, journal.Accepted{Key: key, Seq: seq}, messages.Reply{V: 1, Digest: "d"}); err != nil {
			t.Fatal(err)
		}
		if _, found, err := r.Reply(ctx, key); err != nil || !found {
			t.Fatalf("round %d: reply %v, %v", n, found, err)
		}
		accepted, _, err := r.Head(ctx, key.Tenant, key.Session)
		if err == nil {
			err = w.Remove(ctx, accepted)
		}
		if err != nil {
			t.Fatal(err)
		}
		if a, found, err := r.Head(ctx, key.Tenant, key.Session); err != nil || found {
			t.Fatalf("round %d: nothing is left, the head is %v, %v", n, a.Seq, err)
		}
	}
}
