package coordinator

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/session"
	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/bus/pull"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// office has coordinators, people, and a worker that parks every call until it is granted, and then
// runs it.
type office struct {
	t       *testing.T
	srv     *devserver.Server
	conn    *bus.Conn
	journal *journal.Journal
	names   wire.Names
	people  map[string]approval.Key
	list    approval.Approvers
	log     *slog.Logger
	tool    schemas.Tool

	ends    []func()
	running sync.WaitGroup
	runs    atomic.Int32
	hold    time.Duration // how long a call runs
	// ask shapes the questions that the worker asks. May be nil
	ask func(*messages.Approval)
}

func newOffice(t *testing.T, srv *devserver.Server, kind messages.Kind) *office {
	t.Helper()
	o := &office{t: t, srv: srv, people: map[string]approval.Key{}, log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))}
	var list []messages.Approver
	for _, name := range []string{"alice", "bob", "agent"} {
		key, err := approval.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		o.people[name] = key
		list = append(list, messages.Approver{Name: name, Key: key.Public(), ActsAs: map[string][]string{"agent": {messages.OneTenant}}[name]})
	}
	var err error
	if o.list, err = approval.NewApprovers(list); err != nil {
		t.Fatal(err)
	}
	o.conn = o.connect("test")
	o.journal, o.names = journal.New(o.conn), o.conn.Names()
	o.must(provision.Ensure(t.Context(), o.conn, provision.Config{}))
	tool := schemas.Tool{
		Name: "refund", Kind: kind, InputSchema: []byte(`{"type":"object","properties":{"amount":{"type":"number"}},"required":["amount"],"additionalProperties":false}`),
	}
	o.tool, err = tool.WithDefaults()
	o.must(err)
	bucket, err := o.conn.Bucket(t.Context(), o.names.Stream(bus.BucketTools))
	o.must(err)
	o.must(bucket.Put(t.Context(), tool.Name, rawjson.MustMarshal(tool)))
	return o
}

func (o *office) must(err error) {
	o.t.Helper()
	if err != nil {
		o.t.Fatal(err)
	}
}

func (o *office) connect(name string) *bus.Conn {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := bus.Connect(ctx, bus.Options{InProcess: o.srv, Name: name, Logger: o.log})
	o.must(err)
	return conn
}

// run runs a daemon until stop, at the latest at the end of the test.
func (o *office) run(conn *bus.Conn, daemon func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	o.running.Go(func() {
		defer close(done)
		if err := daemon(ctx); err != nil {
			o.t.Errorf("a daemon ended with: %v", err)
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		<-done
		conn.Close()
	})
	o.ends = append(o.ends, stop)
	return stop
}

func (o *office) close() {
	for _, end := range o.ends {
		end()
	}
	o.running.Wait()
	o.conn.Close()
}

func (o *office) coordinator(cfg Config) (*Coordinator, func()) {
	o.t.Helper()
	conn := o.connect("coordinator")
	cfg.Logger, cfg.Approvers = o.log, o.list
	c, err := New(conn, cfg)
	o.must(err)
	stop := o.run(conn, c.Run)
	o.until("the coordinator is ready", time.Minute, c.Ready)
	return c, stop
}

func (o *office) worker() (stop func()) {
	o.t.Helper()
	conn := o.connect("worker")
	pool, err := provision.PoolConsumer(conn.Names(), schemas.DefaultPool, 10*time.Second, 0)
	o.must(err)
	o.must(provision.EnsureConsumer(o.t.Context(), conn, pool))
	return o.run(conn, func(ctx context.Context) error {
		slots := pull.NewSlots(100)
		err := pull.New(conn, pool.Stream, pool.Name).Run(ctx, slots, func(d *pull.Delivery) { o.work(conn, d) })
		_ = slots.Wait(context.Background())
		return err
	})
}

// work parks a call, or runs it if it was granted.
func (o *office) work(conn *bus.Conn, d *pull.Delivery) {
	var job wire.Job
	_ = json.Unmarshal(d.Data, &job)
	key := wire.KeyOf(string(job.Tenant), job.Session, job.Batch).Call(job.Index)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	j := journal.New(conn)
	newest, found, err := j.Newest(ctx, key)
	if err != nil {
		return
	}
	tell := func(n wire.Notice) {
		n.Batch, n.Index = key.BatchKey.String(), key.Index
		_ = conn.Publish(o.names.Notify(job.Notify), nil, rawjson.MustMarshal(n))
		_ = d.Ack()
	}
	switch {
	case !found:
		q := o.question(conn.Now(ctx), job)
		record := wire.CallRecord{State: wire.Parked, Nonce: fmt.Sprint(key, d.Delivered), ArgsHash: q.ArgsHash, Approval: &q, Span: d.Header.Get("traceparent")}
		if seq, err := j.Write(ctx, key, record, 0); err == nil {
			tell(wire.Notice{Record: &record, Seq: seq})
		}
	case newest.Record.State == wire.Granted && job.TakeOver == newest.Seq:
		now := conn.Now(ctx)
		if err := o.list.Holds(*newest.Record.Approval, now); err != nil || now.After(job.NotAfter) {
			o.t.Errorf("a granted call does not hold: %v, not after %v, now %v", err, job.NotAfter, now)
		}
		o.runs.Add(1)
		result := messages.Result{V: 1, Index: job.Index, CallID: job.CallID, Tool: job.Tool, Kind: job.Kind, Status: messages.StatusOK, Attempt: 1, Outcome: messages.Outcome{Output: newest.Record.Approval.Input}}
		claim := newest.Record
		claim.State, claim.Nonce, claim.Attempt, claim.LeaseMS = wire.Claimed, fmt.Sprint(key, "claim", d.Delivered), 1, 600_000
		seq, err := j.Write(ctx, key, claim, newest.Seq)
		if err != nil {
			return
		}
		time.Sleep(o.hold)
		claim.State, claim.Nonce, claim.Fence, claim.Result = wire.Ended, claim.Nonce+"e", seq, &result
		if _, err := j.Write(ctx, key, claim, seq); err == nil {
			tell(wire.Notice{Result: &result})
		}
	default:
		_ = d.Term("nothing to do")
	}
}

func (o *office) question(now time.Time, job wire.Job) messages.Approval {
	canonical, _ := rawjson.Canonical(job.Input)
	q := messages.Approval{
		V: 1, Tenant: job.Tenant, Session: job.Session, Batch: job.Batch, Index: job.Index, CallID: job.CallID, Tool: job.Tool, Kind: job.Kind,
		ToolDigest: job.ToolDigest, Input: job.Input, ArgsHash: messages.Digest(canonical), Line: approval.Line(job.Tool, job.Input),
		Requester: string(job.Tenant), Rule: "large refunds", Tier: messages.TierHigh, Approvers: 1, Policy: "p1",
		Asked: now.UTC(), Expires: now.UTC().Add(15 * time.Minute),
	}
	if o.ask != nil {
		o.ask(&q)
	}
	q.ID = approval.ID(q)
	return q
}

// until waits in simulated time until is returns true.
func (o *office) until(what string, within time.Duration, is func() bool) {
	o.t.Helper()
	for began := time.Now(); !is(); {
		waited := time.Since(began)
		if waited > within {
			o.t.Fatalf("waited in vain until %s", what)
		}
		time.Sleep(min(max(5*time.Millisecond, waited/100), 500*time.Millisecond))
	}
}

// submit stores a batch with the given number of calls.
func (o *office) submit(session, id string, calls int) wire.BatchKey {
	o.t.Helper()
	var list []map[string]any
	for i := range calls {
		list = append(list, map[string]any{"id": fmt.Sprint("c", i), "name": "refund", "input": map[string]any{"amount": 149.99 + float64(i)}})
	}
	b := messages.Batch{V: 1, ID: messages.BatchID(id), Session: messages.SessionID(session), Provider: messages.Canonical, Message: rawjson.MustMarshal(map[string]any{"calls": list})}
	key := wire.KeyOf(messages.OneTenant, b.Session, b.ID)
	_, err := o.conn.Append(o.t.Context(), o.names.Of(wire.VerbBatch, key), nil, rawjson.MustMarshal(b))
	o.must(err)
	return key
}

// rests waits until the call is parked and no coordinator drives its batch.
func (o *office) rests(key wire.CallKey, all ...*Coordinator) messages.Approval {
	o.t.Helper()
	var q messages.Approval
	o.until("the batch rests", time.Minute, func() bool {
		entry, err := o.journal.Question(context.Background(), key)
		if err != nil {
			return false
		}
		q = *entry.Record.Approval
		for _, c := range all {
			if c.runs.of(key.BatchKey) != nil {
				return false
			}
		}
		return true
	})
	return q
}

// decision returns a signed decision of a person.
func (o *office) decision(q messages.Approval, v messages.Verdict, by string, more ...func(*messages.Decision)) []byte {
	o.t.Helper()
	d := approval.Answer(q, v, by)
	d.At = time.Now()
	for _, f := range more {
		f(&d)
	}
	d, err := o.people[by].Sign(d)
	o.must(err)
	return rawjson.MustMarshal(d)
}

func (o *office) decide(key wire.CallKey, body []byte) messages.DecisionAnswer {
	o.t.Helper()
	m, err := o.conn.Request(o.t.Context(), o.names.OfCall(wire.VerbDecide, key), nil, body)
	o.must(err)
	var answer messages.DecisionAnswer
	o.must(json.Unmarshal(m.Data, &answer))
	return answer
}

func (o *office) say(session string, control messages.Control) {
	o.t.Helper()
	_, err := o.conn.Request(o.t.Context(), o.names.OfSession(wire.VerbControl, messages.OneTenant, session), nil, rawjson.MustMarshal(control))
	o.must(err)
}

// grant stores a decision as the decide handler does, but resumes nothing, as if the coordinator
// died after the write.
func (o *office) grant(key wire.CallKey) {
	o.t.Helper()
	entry, err := o.journal.Question(o.t.Context(), key)
	o.must(err)
	var d messages.Decision
	o.must(json.Unmarshal(o.decision(*entry.Record.Approval, messages.VerdictApprove, "alice"), &d))
	q, state, refused := o.list.Take(*entry.Record.Approval, d, time.Now())
	if refused != nil {
		o.t.Fatal(refused)
	}
	if state != messages.DecisionGranted {
		o.t.Fatalf("the decision makes it %s", state)
	}
	granted := entry.Record
	granted.State, granted.Nonce, granted.Approval, granted.ArgsHash, granted.Worker = wire.Granted, rand.Text(), &q, q.ArgsHash, ""
	_, err = o.journal.Write(o.t.Context(), key, granted, entry.Seq)
	o.must(err)
}

// reply waits for the reply of a batch.
func (o *office) reply(key wire.BatchKey, within time.Duration) (reply messages.Reply) {
	o.t.Helper()
	o.until("batch "+key.String()+" has its reply", within, func() bool {
		body, found, err := o.journal.Reply(context.Background(), key)
		return err == nil && found && json.Unmarshal(body, &reply) == nil
	})
	return reply
}

func (o *office) pending() []messages.Pending {
	o.t.Helper()
	m, err := o.conn.Request(o.t.Context(), o.names.OfTenant(wire.VerbList, messages.OneTenant), nil, nil)
	o.must(err)
	var list messages.PendingList
	o.must(json.Unmarshal(m.Data, &list))
	return list.Pending
}

// audited returns the audit lines about questions and decisions.
func (o *office) audited() (types []messages.AuditType, lines []messages.AuditRecord) {
	o.t.Helper()
	msgs, err := o.conn.All(o.t.Context(), o.names.Stream(bus.Audit), o.names.All(wire.VerbAudit))
	o.must(err)
	for _, m := range msgs {
		if strings.HasSuffix(m.Subject, ".lines") {
			continue
		}
		var line messages.AuditRecord
		o.must(json.Unmarshal(m.Data, &line))
		types, lines = append(types, line.Type), append(lines, line)
	}
	return types, lines
}

// inOffice runs a test with a server in a bubble.
func inOffice(t *testing.T, kind messages.Kind, test func(*testing.T, *office)) {
	t.Helper()
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		o := newOffice(t, srv, kind)
		defer o.close()
		test(t, o)
	})
}

// soon is much shorter than session.MaxSuspend, and than the poll of a suspended batch.
const soon = 2 * time.Second

func TestADecisionWakesItsBatchAtOnce(t *testing.T) {
	for _, kind := range []messages.Kind{messages.KindWrite, messages.KindRead} {
		for _, coordinators := range []int{1, 3} {
			t.Run(fmt.Sprint(kind, coordinators), func(t *testing.T) {
				inOffice(t, kind, func(t *testing.T, o *office) {
					var all []*Coordinator
					for range coordinators {
						c, _ := o.coordinator(Config{})
						all = append(all, c)
					}
					o.worker()
					key := o.submit("s", "b", 1)
					o.rests(key.Call(0), all...)
					time.Sleep(12 * time.Minute) // the broker has delivered it again meanwhile
					q := o.rests(key.Call(0), all...)
					if answer := o.decide(key.Call(0), o.decision(q, messages.VerdictApprove, "alice")); answer.State != messages.DecisionGranted {
						t.Fatalf("answered %+v", answer)
					}
					r := o.reply(key, soon)
					if r.Results[0].Status != messages.StatusOK || o.runs.Load() != 1 || r.Results[0].CallID != "c0" {
						t.Errorf("ran %d times: %+v", o.runs.Load(), r.Results[0])
					}
					if got := o.pending(); len(got) != 0 {
						t.Errorf("still in the list: %+v", got)
					}
				})
			})
		}
	}
}

// A coordinator dies right after it stored a decision, before it resumed the batch. The broker
// delivers the batch again.
func TestAnAnswerThatWokeNobodyIsFollowed(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		c, _ := o.coordinator(Config{})
		o.worker()
		key := o.submit("s", "b", 1)
		o.rests(key.Call(0), c)
		time.Sleep(time.Minute)
		o.grant(key.Call(0))
		if r := o.reply(key, session.MaxSuspend); r.Results[0].Status != messages.StatusOK || o.runs.Load() != 1 {
			t.Errorf("ran %d times: %+v", o.runs.Load(), r.Results[0])
		}
		if got := o.pending(); len(got) != 0 {
			t.Errorf("still in the list: %+v", got)
		}
	})
}

func TestNobodyAnswers(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		const given = 13 * time.Minute // not a multiple of the time between two looks
		o.ask = func(q *messages.Approval) { q.Expires = q.Asked.Add(given) }
		var all []*Coordinator
		for range 2 {
			c, _ := o.coordinator(Config{})
			all = append(all, c)
		}
		o.worker()
		key := o.submit("s", "b", 1)
		q := o.rests(key.Call(0), all...)
		late := o.decision(q, messages.VerdictApprove, "alice")
		began := time.Now()
		r := o.reply(key, given+soon).Results[0]
		if took := time.Since(began); took < given-soon {
			t.Errorf("ended after %v", took)
		}
		if r.Status != messages.StatusExpired || r.Err.Code != messages.CodeApprovalExpired || r.Permission == nil || r.Permission.Rule != "large refunds" {
			t.Errorf("ended as %+v, %+v", r, r.Err)
		}
		if answer := o.decide(key.Call(0), late); answer.OK || answer.Error.Class != messages.ClassNotPending {
			t.Errorf("a decision that came too late was answered %+v", answer)
		}
		if got := o.pending(); len(got) != 0 || o.runs.Load() != 0 {
			t.Errorf("ran %d times, still in the list: %+v", o.runs.Load(), got)
		}
		types, _ := o.audited()
		if want := "[approval_asked approval_expired decision_refused]"; fmt.Sprint(types) != want {
			t.Errorf("audited %v, want %v", types, want)
		}
	})
}

// An abort, or a steering message, reaches a batch that is suspended.
func TestARestingBatchHearsWhatIsSaid(t *testing.T) {
	for name, say := range map[string]messages.Control{
		"abort": {Abort: []byte(`"b"`), By: "ops"}, "abort the session": {Abort: []byte(`true`)},
		"steer": {Steer: []byte(`"wait"`), When: messages.SteerImmediate},
	} {
		for _, coordinators := range []int{1, 2} {
			t.Run(fmt.Sprint(name, coordinators), func(t *testing.T) {
				inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
					var all []*Coordinator
					for range coordinators {
						c, _ := o.coordinator(Config{})
						all = append(all, c)
					}
					o.worker()
					key := o.submit("s", "b", 2)
					o.rests(key.Call(0), all...)
					time.Sleep(7 * time.Minute)
					o.rests(key.Call(0), all...)
					o.say("s", say)
					r := o.reply(key, soon)
					if len(r.Results) != 2 {
						t.Fatalf("replied %+v, want a result of each call", r)
					}
					want := messages.StatusAborted
					if len(say.Steer) > 0 {
						want = messages.StatusSkipped
					}
					for _, result := range r.Results {
						if result.Status != want || o.runs.Load() != 0 {
							t.Errorf("ran %d times: %+v, want %s", o.runs.Load(), result, want)
						}
					}
					if got := o.pending(); len(got) != 0 {
						t.Errorf("still in the list: %+v", got)
					}
				})
			})
		}
	}
}

// The server restarts while a batch is suspended: the batch is delivered again and suspended again,
// and nothing is published twice.
func TestAServerRestartWhileABatchRests(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		c, _ := o.coordinator(Config{})
		stop := o.worker()
		news := make(chan bus.Msg, 100)
		for _, subject := range []string{o.names.All(wire.VerbEvent), o.names.All(wire.VerbNews)} {
			unsubscribe, err := o.conn.Subscribe(subject, "", func(m bus.Msg) {
				if m.Header.Get(messages.EventHeader) != string(messages.EventStart) {
					news <- m
				}
			})
			o.must(err)
			defer unsubscribe()
		}
		key := o.submit("s", "b", 1)
		q := o.rests(key.Call(0), c)
		o.srv.Stop()
		time.Sleep(30 * time.Second)
		o.must(o.srv.Restart())
		time.Sleep(time.Minute)
		stop()
		o.worker()
		o.rests(key.Call(0), c)
		c2, _ := o.coordinator(Config{})
		time.Sleep(time.Minute)
		if len(news) != 2 {
			t.Errorf("heard %d times of the question; want an event and the news", len(news))
		}
		if got := o.pending(); len(got) != 1 || got[0].ID != q.ID {
			t.Errorf("in the list: %+v", got)
		}
		o.rests(key.Call(0), c, c2)
		if answer := o.decide(key.Call(0), o.decision(q, messages.VerdictApprove, "alice")); !answer.OK {
			t.Fatalf("answered %+v", answer)
		}
		if r := o.reply(key, soon); r.Results[0].Status != messages.StatusOK || o.runs.Load() != 1 {
			t.Errorf("ran %d times: %+v", o.runs.Load(), r.Results[0])
		}
	})
}

// A coordinator shuts down while it drives a batch that it resumed, so it has no delivery to give
// back. Another coordinator goes on.
func TestAWokenBatchOutlivesItsCoordinator(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		stops := map[*Coordinator]func(){}
		var all []*Coordinator
		for range 3 {
			c, stop := o.coordinator(Config{Drain: time.Second})
			all, stops[c] = append(all, c), stop
		}
		o.hold = 10 * time.Second
		o.worker()
		key := o.submit("s", "b", 1)
		q := o.rests(key.Call(0), all...)
		o.decide(key.Call(0), o.decision(q, messages.VerdictApprove, "alice"))
		o.until("the call runs", soon, func() bool { return o.runs.Load() == 1 })
		driver := slices.IndexFunc(all, func(c *Coordinator) bool { return c.runs.of(key) != nil })
		if driver < 0 {
			t.Fatal("a call runs of a batch that nobody drives")
		}
		stops[all[driver]]()
		if r := o.reply(key, o.hold+10*time.Second); r.Results[0].Status != messages.StatusOK || o.runs.Load() != 1 {
			t.Errorf("ran %d times: %+v", o.runs.Load(), r.Results[0])
		}
	})
}

// Suspended batches use nothing of a coordinator, and the batches behind them go on in order.
func TestManyRestingBatchesCostNothing(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		const sessions = 300
		c, _ := o.coordinator(Config{Slots: 16})
		o.worker()
		var keys []wire.BatchKey
		for i := range sessions {
			keys = append(keys, o.submit(fmt.Sprint("s", i), "b", 1))
		}
		o.until("all rest", 5*time.Minute, func() bool {
			c.runs.mu.Lock()
			defer c.runs.mu.Unlock()
			return len(c.runs.byKey) == 0 && len(o.pending()) == sessions
		})
		r := c.resumer
		if free := r.slots.TryAcquire(r.size); !free || len(r.waiting) != 0 {
			t.Errorf("a coordinator at rest is to resume %d, all slots free: %v", len(r.waiting), free)
		} else {
			r.slots.Release(r.size)
		}
		next := o.submit("s7", "b2", 1)
		var answered sync.WaitGroup
		for _, i := range []int{3, 7, 250} {
			q := o.rests(keys[i].Call(0))
			body := o.decision(q, messages.VerdictApprove, "bob")
			answered.Go(func() { o.decide(keys[i].Call(0), body) })
		}
		answered.Wait()
		for _, i := range []int{3, 7, 250} {
			o.reply(keys[i], soon)
		}
		o.rests(next.Call(0), c)
		if got, ran := len(o.pending()), o.runs.Load(); got != sessions-2 || ran != 3 {
			t.Errorf("%d questions are open and %d calls ran", got, ran)
		}
	})
}

// News for a session that is about to be suspended reach its run, or find that nobody drives it.
func TestASessionWithNewsIsNotSuspended(t *testing.T) {
	cfg := Config{}.withDefaults()
	c := &Coordinator{cfg: cfg, log: cfg.Logger, runs: newRuns(cfg.Metrics.Live, cfg.Logger)}
	accepted := journal.Accepted{Key: wire.BatchKey{Tenant: "_", Session: "s", Batch: "b"}}
	enter := func() (s *sessionRun, d *batchRun, other *sessionRun) {
		s = c.newSessionRun(accepted.Key)
		d = c.newRun(s, accepted, nil)
		if other = c.runs.enter(s); other == nil {
			s.line.Add(d, 1, 0)
			c.runs.add(d)
		}
		return s, d, other
	}
	first, d, _ := enter()
	until := time.Now().Add(time.Hour)
	if _, _, other := enter(); other != first {
		t.Fatal("two drive one session")
	}
	if first.rest(d, until) {
		t.Error("suspended, although a nudge has come")
	}
	<-d.nudge
	if first.suspendIfQuiet() {
		t.Error("suspended, although the log may hold another batch")
	}
	<-first.more
	d.notices <- wire.Notice{}
	if first.suspendIfQuiet() {
		t.Error("suspended, although a worker's notice has come")
	}
	<-d.notices
	if !first.wake(d) {
		t.Error("a batch with news cannot go on")
	}
	if first.suspendIfQuiet() {
		t.Error("suspended, although the batch goes on")
	}
	if !first.rest(d, until) || !first.suspendedUntil().Equal(until) {
		t.Error("not suspended")
	}
	if first.wake(d) || !first.again {
		t.Error("news at the last moment are lost")
	}
	second, next, other := enter()
	if other != nil {
		t.Error("a suspended session cannot be driven again")
	}
	c.runs.leave(d)
	c.runs.leaveSession(first)
	if c.runs.of(accepted.Key) != next || c.runs.ofSession(sessionName(accepted.Key)) != second {
		t.Error("a run that has ended took the next one away")
	}
}

// A control that was stored just before a call was parked is found before the batch is suspended,
// even if its writer resumed nothing.
func TestTheLastLookBeforeABatchRests(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		o.coordinator(Config{})
		o.ask = func(*messages.Approval) {
			if _, err := o.journal.WriteControl(t.Context(), messages.OneTenant, "s", messages.Control{Abort: []byte(`"b"`)}); err != nil {
				t.Error(err)
			}
		}
		o.worker()
		if r := o.reply(o.submit("s", "b", 1), soon).Results[0]; r.Status != messages.StatusAborted {
			t.Errorf("ended %s", r.Status)
		}
	})
}

// A read with a question takes no result from elsewhere: its own journal says how it ends.
func TestAParkedReadEndsInItsJournal(t *testing.T) {
	inOffice(t, messages.KindRead, func(t *testing.T, o *office) {
		c, _ := o.coordinator(Config{})
		o.worker()
		key := o.submit("s", "b", 1)
		q := o.rests(key.Call(0), c)
		stray := messages.Result{V: 1, CallID: "c0", Tool: "refund", Kind: messages.KindRead, Status: messages.StatusOK, Outcome: messages.Text("stray")}
		_, err := o.journal.WriteResult(t.Context(), key.Call(0), stray)
		o.must(err)
		time.Sleep(session.MaxSuspend + soon)
		o.rests(key.Call(0), c)
		o.decide(key.Call(0), o.decision(q, messages.VerdictApprove, "alice"))
		if r := o.reply(key, soon); o.runs.Load() != 1 || strings.Contains(string(r.Reinjection), "stray") {
			t.Errorf("ran %d times: %s", o.runs.Load(), r.Reinjection)
		}
	})
}

// One goroutine waits to resume a batch, however many controls come. An answer needs a goroutine of
// its own: the one of a control leaves once no question is open, and the batch has still to be
// driven.
func TestAFloodOfControlsKeepsOneWaiting(t *testing.T) {
	const flood = 200
	for name, row := range map[string]struct {
		hold func(*office, *Coordinator, wire.BatchKey) (free func())
	}{
		"driven elsewhere": {(*office).pretendElsewhere},
		"no slot": {func(_ *office, c *Coordinator, _ wire.BatchKey) func() {
			c.resumer.slots.TryAcquire(1)
			return func() { c.resumer.slots.Release(1) }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
				c, _ := o.coordinator(Config{Slots: 1})
				o.worker()
				key := o.submit("s", "b", 1)
				q := o.rests(key.Call(0), c)
				free := row.hold(o, c, key)
				before := runtime.NumGoroutine()
				for range flood {
					o.say("s", messages.Control{Steer: []byte(`"hurry"`)})
				}
				time.Sleep(20 * time.Second)
				if more := runtime.NumGoroutine() - before; more > flood/10 {
					t.Errorf("%d goroutines wait after %d controls", more, flood)
				}
				if answer := o.decide(key.Call(0), o.decision(q, messages.VerdictDeny, "alice")); !answer.OK {
					t.Fatalf("answered %+v", answer)
				}
				time.Sleep(20 * time.Second)
				free()
				if r := o.reply(key, 5*time.Second+soon).Results[0]; r.Status != messages.StatusDenied {
					t.Errorf("ended %s", r.Status)
				}
			})
		})
	}
}

// A goroutine that waits to resume a batch does not resume the next one. So a request for the next
// batch gets a goroutine of its own.
func TestAWaitForOneHeadIsNoneForTheNext(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		c, _ := o.coordinator(Config{Poll: time.Second})
		o.worker()
		deny := func(key wire.BatchKey, q messages.Approval) (stop func()) {
			stop = o.pretendElsewhere(c, key)
			if answer := o.decide(key.Call(0), o.decision(q, messages.VerdictDeny, "alice")); !answer.OK {
				t.Fatalf("answered %+v", answer)
			}
			return stop
		}
		first, second := o.submit("s", "b", 1), o.submit("s", "b2", 1)
		deny(first, o.rests(first.Call(0), c))
		time.Sleep(17 * time.Second) // the goroutine sleeps for four more seconds
		head, _, err := o.journal.Head(t.Context(), first.Tenant, first.Session)
		o.must(err)
		// As another driver would: this batch, and the next until it is suspended.
		c.driveSession(t.Context(), head, nil, nil)
		// The second batch has been delivered, and comes again in minutes.
		time.Sleep(3 * time.Second)
		stop := deny(second, o.rests(second.Call(0), c))
		time.Sleep(20 * time.Second)
		stop()
		o.reply(second, 5*time.Second+soon)
	})
}

// A goroutine waits for a slot to resume a batch when its coordinator shuts down. Another
// coordinator resumes the batch.
func TestAWakeWithoutRoomOutlivesItsCoordinator(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		c, stop := o.coordinator(Config{Slots: 1, Drain: time.Second})
		o.worker()
		key := o.submit("s", "b", 1)
		q := o.rests(key.Call(0), c)
		c.resumer.slots.TryAcquire(1)
		if answer := o.decide(key.Call(0), o.decision(q, messages.VerdictDeny, "alice")); !answer.OK {
			t.Fatalf("answered %+v", answer)
		}
		o.coordinator(Config{})
		stop()
		o.reply(key, soon)
	})
}

// pretendElsewhere makes a coordinator believe that a peer drives a batch, until stop is called.
func (o *office) pretendElsewhere(c *Coordinator, key wire.BatchKey) (stop func()) {
	notice := func(n wire.Notice) {
		n.Batch, n.Worker = key.String(), "a peer"
		c.peers.OnNotice(bus.Msg{Data: rawjson.MustMarshal(n)})
	}
	notice(wire.Notice{Running: true})
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticks := time.NewTicker(c.cfg.AckWait / 3)
		defer ticks.Stop()
		for {
			select {
			case <-ticks.C:
				notice(wire.Notice{Running: true})
			case <-done:
				return
			}
		}
	}()
	stop = sync.OnceFunc(func() {
		close(done)
		<-ended
		notice(wire.Notice{LetGo: &wire.LetGo{AfterMS: 1}})
	})
	o.ends = append(o.ends, stop)
	return stop
}

// A run that has told the peers that it drives a batch also tells them that it has ended, even if
// it got a delivery of its own meanwhile. Otherwise they would take the batch for driven, and no
// coordinator would act on the next decision.
func TestWhoSaidThatItDrivesSaysThatItRests(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		key := o.submit("s", "b", 1)
		one, err := New(o.conn, Config{Logger: o.log})
		o.must(err)
		other, err := New(o.connect("other"), Config{Logger: o.log})
		o.must(err)
		defer other.conn.Close()
		unsubscribe, err := other.conn.Subscribe(o.names.Coordinators(), "", other.peers.OnNotice)
		o.must(err)
		defer unsubscribe()
		o.must(other.conn.Flush(t.Context())) // a message over another connection may overtake the subscription
		consumer := provision.BatchesConsumer(o.conn.Names(), one.cfg.AckWait)
		o.must(provision.EnsureConsumer(t.Context(), o.conn, consumer))
		came := make(chan *pull.Delivery, 1)
		conn := o.connect("pull")
		o.run(conn, func(ctx context.Context) error {
			return pull.New(conn, consumer.Stream, consumer.Name).Run(ctx, pull.NewSlots(1), func(d *pull.Delivery) { came <- d })
		})
		head, _, err := o.journal.Head(t.Context(), key.Tenant, key.Session)
		o.must(err)
		d := one.newRun(nil, head, nil)
		d.lease.publishRunning()
		o.until("the other has heard that the batch is driven", soon, func() bool { return other.peers.Drive(key) })
		d.lease.adopt(<-came)
		d.suspended = time.Now().Add(time.Minute)
		d.lease.release(t.Context(), false, d.suspended)
		o.until("the other has heard that it rests", soon, func() bool { return !other.peers.Drive(key) })
		if len(other.peers.Abandoned()) > 0 {
			t.Error("the other is to drive a batch that rests")
		}
	})
}
