package coordinator

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/session"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/bus/pull"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

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
					time.Sleep(12 * time.Minute) // the broker delivers the batch again meanwhile
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

// A coordinator dies right after it stored a decision and before it resumed the batch: the
// batch goes on when the broker delivers it again.
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

// An abort or a steering message comes for a suspended batch: it takes effect at once.
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

// The server restarts while a batch is suspended: the batch is delivered again and suspended
// again, and nothing is published twice.
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

// A coordinator resumes a batch, so it has no delivery of it to give back, and shuts down:
// another coordinator goes on with the batch.
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

// Suspended batches take no slot of a coordinator, and the batches behind them go on in order.
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

// A session is about to be suspended, and something new comes for it: its run gets the news,
// or the sender finds that nobody drives the session.
func TestASessionWithNewsIsNotSuspended(t *testing.T) {
	cfg := Config{}.withDefaults()
	c := &Coordinator{cfg: cfg, log: cfg.Logger, runs: newRuns(cfg.Metrics.Live, cfg.Logger)}
	accepted := journal.Accepted{Key: wire.BatchKey{Tenant: "_", Session: "s", Batch: "b"}}
	enter := func() (s *sessionRun, d *batchRun, other *sessionRun) {
		s = c.newSessionRun(accepted.Key)
		d = c.newRun(s, accepted, nil)
		if other = c.runs.enter(s); other == nil {
			s.take(d)
			<-d.turned
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

// A control was stored just before a call was parked, and its writer resumed nothing: the
// driver finds the control before it suspends the batch.
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

// A person was asked about a read. A result outside the call's own journal does not count: the
// journal says how the read ends.
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

// Many aborts and steering messages come for a suspended batch: a single goroutine waits to
// resume the batch for all of them. A decision needs a goroutine of its own. The first
// goroutine ends once no question is open, but after a decision the batch still has to be
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

// A goroutine waits to resume a batch: it does not resume the next batch of the session. A
// request for the next batch gets its own goroutine.
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
		// This is what another driver would do: it drives this batch, and then the next one
		// until that is suspended.
		c.driveSession(t.Context(), head, nil)
		// The second batch has been delivered. The broker delivers it again only in minutes.
		time.Sleep(3 * time.Second)
		stop := deny(second, o.rests(second.Call(0), c))
		time.Sleep(20 * time.Second)
		stop()
		o.reply(second, 5*time.Second+soon)
	})
}

// A goroutine waits for a slot to resume a batch, and its coordinator shuts down: another
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

// A run has told the other coordinators that it drives a batch. It also tells them when it has
// ended, even if it got a delivery of its own meanwhile. Otherwise they would think that it
// still drives the batch, and none would act on the next decision.
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
		d.lease.announce()
		o.until("the other has heard that the batch is driven", soon, func() bool { return other.peers.Drive(key) })
		d.lease.adopt(<-came)
		d.suspended = time.Now().Add(time.Minute)
		d.lease.release(false, false, d.suspended)
		o.until("the other has heard that it rests", soon, func() bool { return !other.peers.Drive(key) })
		if len(other.peers.Abandoned()) > 0 {
			t.Error("the other is to drive a batch that rests")
		}
	})
}
