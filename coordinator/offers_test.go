package coordinator

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// ear records what coordinators publish and what they ask the server.
type ear struct {
	o *office

	mu      sync.Mutex
	jobs    map[string][]wire.Job // by batch; guarded by mu
	reads   [][]byte              // requests for messages of the journal; guarded by mu
	settled map[string]int        // how often each delivery of a batch was settled; guarded by mu
}

func (o *office) listen() *ear {
	o.t.Helper()
	e := &ear{o: o, jobs: map[string][]wire.Job{}, settled: map[string]int{}}
	every := wire.BatchKey{Tenant: "*", Session: "*", Batch: "*"}.Call(0)
	reads := strings.TrimSuffix(o.names.Lane(false, "*", every), ".0") + ".*"
	for subject, on := range map[string]func(bus.Msg){
		reads: func(m bus.Msg) {
			var job wire.Job
			if json.Unmarshal(m.Data, &job) == nil {
				key := wire.KeyOf(string(job.Tenant), job.Session, job.Batch).String()
				e.jobs[key] = append(e.jobs[key], job)
			}
		},
		"$JS.API.DIRECT.GET." + o.names.Stream(bus.Calls): func(m bus.Msg) { e.reads = append(e.reads, m.Data) },
		"$JS.ACK." + o.names.Stream(bus.Batches) + ".>": func(m bus.Msg) {
			if !bytes.HasPrefix(m.Data, []byte("+WPI")) {
				e.settled[m.Subject]++
			}
		},
	} {
		unsubscribe, err := o.conn.Subscribe(subject, "", func(m bus.Msg) {
			e.mu.Lock()
			defer e.mu.Unlock()
			on(m)
		})
		o.must(err)
		o.ends = append(o.ends, unsubscribe)
	}
	o.must(o.conn.Flush(o.t.Context()))
	return e
}

// jobsOf returns the jobs of a batch that were published so far.
func (e *ear) jobsOf(key wire.BatchKey) []wire.Job {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.jobs[key.String()]
}

// pastReads returns how often the plan of a batch was read.
func (e *ear) pastReads(key wire.BatchKey) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, body := range e.reads {
		if bytes.Contains(body, []byte(e.o.names.Of(wire.VerbPlan, key))) {
			n++
		}
	}
	return n
}

// wantSettledOnce checks that every batch has left the log, and that no delivery was settled
// twice.
func (e *ear) wantSettledOnce() {
	e.o.t.Helper()
	e.o.until("the log is empty", 2*time.Minute, func() bool {
		_, found, err := e.o.journal.Head(e.o.t.Context(), messages.OneTenant, "s")
		return err == nil && !found
	})
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.settled) == 0 {
		e.o.t.Error("no delivery was settled")
	}
	for delivery, n := range e.settled {
		if n > 1 {
			e.o.t.Errorf("%s was settled %d times", delivery, n)
		}
	}
}

// busyRun adds a session run to a coordinator. This run takes offers of batches and never
// reads the log.
func (o *office) busyRun(c *Coordinator) *sessionRun {
	o.t.Helper()
	s := c.newSessionRun(wire.BatchKey{Tenant: messages.OneTenant, Session: "s"})
	if c.runs.enter(s) != nil {
		o.t.Fatal("the session has a run")
	}
	return s
}

func (s *sessionRun) held() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.offers)
}

// Batches of a session are sent at once: each is driven by its first delivery. No coordinator
// reads what earlier drivers may have left.
func TestTheNextBatchOfASessionIsFresh(t *testing.T) {
	inOffice(t, messages.KindRead, func(t *testing.T, o *office) {
		c, _ := o.coordinator(Config{Lookahead: 32})
		heard := o.listen()
		first := o.submit("s", "first", 1)
		o.until("the first is driven", time.Minute, func() bool { return c.runs.of(first) != nil })
		for i := range 5 {
			key := o.submit("s", fmt.Sprint("later", i), 1)
			o.until("its job is published", time.Minute, func() bool { return len(heard.jobsOf(key)) > 0 })
			if job, n := heard.jobsOf(key)[0], heard.pastReads(key); job.Dispatch > 0 || n > 0 {
				t.Errorf("%s is not fresh: dispatch %d, its plan was read %d times", key, job.Dispatch, n)
			}
			if live := c.runs.of(key); live == nil || live.lease.current() == nil {
				t.Errorf("%s is not driven, or without its delivery", key)
			}
		}
	})
}

// Each batch is sent at the moment at which the batch before it is answered. So it is offered
// to a run that is ending, and still gets its reply.
func TestAnOfferAtTheEndOfARun(t *testing.T) {
	for _, lookahead := range []int{1, 32} {
		t.Run(fmt.Sprint(lookahead), func(t *testing.T) {
			inOffice(t, messages.KindRead, func(t *testing.T, o *office) {
				const batches = 50
				o.coordinator(Config{Lookahead: lookahead})
				heard := o.listen()
				answered := make(chan struct{}, batches)
				every := wire.BatchKey{Tenant: messages.OneTenant, Session: "*", Batch: "*"}
				unsubscribe, err := o.conn.Subscribe(o.names.Of(wire.VerbReply, every), "", func(bus.Msg) { answered <- struct{}{} })
				o.must(err)
				defer unsubscribe()
				for i := range batches {
					o.submit("s", fmt.Sprint("b", i), 0)
					select {
					case <-answered:
					case <-time.After(time.Minute): // simulated
						t.Fatalf("batch %d is lost", i)
					}
				}
				heard.wantSettledOnce()
			})
		})
	}
}

// A run holds as many offers as it may drive batches, without their bodies. At its end it
// hands the offers back. Between its end and its removal it takes no offer.
func TestAnOfferAroundTheEndOfARun(t *testing.T) {
	inOffice(t, messages.KindRead, func(t *testing.T, o *office) {
		c, _ := o.coordinator(Config{Lookahead: 2})
		heard := o.listen()
		s := o.busyRun(c)
		var keys []wire.BatchKey
		for i := range 4 {
			keys = append(keys, o.submit("s", fmt.Sprint("b", i), 0))
		}
		time.Sleep(50 * time.Millisecond) // simulated: all are delivered
		if s.held() != 2 {
			t.Errorf("%d offers are held, want 2", s.held())
		}
		for _, offer := range s.offers {
			if len(offer.delivery.Data) > 0 {
				t.Error("an offer holds its body")
			}
		}
		s.returnOffers()
		s.end()
		keys = append(keys, o.submit("s", "late", 0))
		time.Sleep(50 * time.Millisecond)
		if s.held() > 0 {
			t.Error("a run that has ended takes an offer")
		}
		c.runs.leaveSession(s)
		for _, key := range keys {
			o.reply(key, time.Minute)
		}
		heard.wantSettledOnce()
	})
}

// A run is so busy that another coordinator starts to drive a batch that the run was offered.
// The run then reads what the other coordinator has done, and the call runs once.
func TestAnOfferThatWaitsForLong(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		busy, _ := o.coordinator(Config{})
		heard := o.listen()
		s := o.busyRun(busy)
		key := o.submit("s", "b", 1)
		o.until("it is offered", time.Minute, func() bool { return s.held() == 1 })
		a, _, err := o.journal.Open(t.Context(), key)
		o.must(err)
		fresh := func() bool {
			d := busy.newRun(s, a, s.offers[0].delivery)
			d.first = true // the run began before the batch was stored
			return d.fresh(t.Context())
		}
		if !fresh() {
			t.Error("a batch that has just come is not fresh")
		}
		o.worker()
		other, _ := o.coordinator(Config{})
		time.Sleep(busy.cfg.AckWait + time.Second)                       // simulated
		o.running.Go(func() { other.driveSession(t.Context(), a, nil) }) // as a peer that does not know of the run
		q := o.rests(key.Call(0), other)
		if fresh() {
			t.Error("a batch that another coordinator may have driven is fresh")
		}
		s.end()
		busy.runs.leaveSession(s)
		s.returnOffers()
		if answer := o.decide(key.Call(0), o.decision(q, messages.VerdictApprove, "alice")); !answer.OK {
			t.Fatalf("answered %+v", answer)
		}
		o.reply(key, time.Minute)
		if n := o.runs.Load(); n != 1 {
			t.Errorf("the call ran %d times", n)
		}
		heard.wantSettledOnce()
	})
}

// Batches come for a session while its coordinator shuts down: each is answered, by this
// coordinator or by another one.
func TestOffersDuringADrain(t *testing.T) {
	for _, lookahead := range []int{1, 2, 32} {
		t.Run(fmt.Sprint(lookahead), func(t *testing.T) {
			inOffice(t, messages.KindRead, func(t *testing.T, o *office) {
				c, stop := o.coordinator(Config{Lookahead: lookahead, Drain: time.Second})
				heard := o.listen()
				o.hold = 10 * time.Second
				o.worker()
				keys := []wire.BatchKey{o.submit("s", "first", 1)}
				if a := o.decide(keys[0].Call(0), o.decision(o.rests(keys[0].Call(0)), messages.VerdictApprove, "alice")); !a.OK {
					t.Fatalf("the decision was refused: %+v", a)
				}
				o.until("the first runs", time.Minute, func() bool { return o.runs.Load() == 1 && c.runs.of(keys[0]) != nil })
				o.coordinator(Config{Lookahead: lookahead})
				var stopping sync.WaitGroup
				for i := range 12 {
					if i == 6 {
						stopping.Go(stop)
					}
					keys = append(keys, o.submit("s", fmt.Sprint("b", i), 0))
				}
				stopping.Wait()
				for _, key := range keys {
					o.reply(key, 2*time.Minute)
				}
				heard.wantSettledOnce()
				if n := o.runs.Load(); n != 1 {
					t.Errorf("the call ran %d times", n)
				}
			})
		})
	}
}
