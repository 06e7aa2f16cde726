package coordinator

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

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

// office is a fleet with coordinators, people and one worker. The worker parks every call, so
// that people are asked, and runs it once it is granted.
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
	// ask changes the questions that the worker asks. May be nil.
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
	o.must(provision.Ensure(t.Context(), o.conn, provision.Config{Erasable: true}))
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

// run starts a daemon. It runs until stop is called, or until the test ends.
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
	pool, err := provision.QueueConsumer(conn.Names(), schemas.DefaultPool, 10*time.Second, 0)
	o.must(err)
	o.must(provision.EnsureConsumer(o.t.Context(), conn, pool))
	return o.run(conn, func(ctx context.Context) error {
		defer o.stayPresent(ctx, conn)()
		slots := pull.NewSlots(100)
		err := pull.New(conn, pool.Stream, pool.Name).Run(ctx, slots, func(d *pull.Delivery) { o.work(conn, d) })
		_ = slots.Wait(context.Background())
		return err
	})
}

// stayPresent announces a worker of the default pool until ctx ends, or until done is called.
func (o *office) stayPresent(ctx context.Context, conn *bus.Conn) (done func()) {
	bucket, err := conn.Bucket(ctx, o.names.Stream(bus.BucketWorkers))
	if err != nil {
		o.t.Error(err)
		return func() {}
	}
	key := rand.Text()
	value := rawjson.MustMarshal(wire.Presence{V: 1, Worker: key, Slots: 100, Pools: []string{schemas.DefaultPool}, Tools: []string{o.tool.Name}})
	ctx, cancel := context.WithCancel(ctx)
	var announcing sync.WaitGroup
	announcing.Go(func() {
		for ; ctx.Err() == nil; pause(ctx, 10*time.Second) {
			_ = bucket.Put(ctx, key, value)
		}
		_ = bucket.Delete(context.Background(), key)
	})
	return func() { cancel(); announcing.Wait() }
}

// work plays the worker: it parks a call, or runs it if it was granted.
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

// until waits in simulated time until the function is returns true. If that takes longer than
// the duration within, it fails the test.
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

// rests waits until a person is asked about the call and no coordinator drives its batch. It
// returns the question.
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

// grant stores a decision as the handler does. It resumes nothing, as if the coordinator had
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

// reply waits for the reply of a batch, and returns it.
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
		if !strings.HasSuffix(m.Subject, ".question") {
			continue
		}
		var said wire.AuditLines
		o.must(json.Unmarshal(m.Data, &said))
		for _, line := range said.Whole() {
			types, lines = append(types, line.Type), append(lines, line)
		}
	}
	return types, lines
}

// inOffice runs a test with an office on an embedded server, in simulated time.
func inOffice(t *testing.T, kind messages.Kind, test func(*testing.T, *office)) {
	t.Helper()
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		o := newOffice(t, srv, kind)
		defer o.close()
		test(t, o)
	})
}

// soon is much shorter than session.MaxSuspend and than the poll of a suspended batch. So what
// happens within it was not found by a poll.
const soon = 2 * time.Second

// pretendElsewhere makes a coordinator believe that a peer drives a batch, until stop is
// called.
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
