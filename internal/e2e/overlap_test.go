package e2e

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
)

// An agent that hands over one call at a time gets its reads side by side: three that take a second
// each take about a second.
func TestReadsOfThreeBatchesOverlap(t *testing.T) {
	for coordinators := range 2 {
		t.Run(fmt.Sprint(coordinators+1), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				var l laneBook
				l.tools(f)
				f.worker(worker.Config{})
				for range coordinators + 1 {
					f.coordinator(coordinator.Config{Lookahead: 32})
				}
				began := time.Now()
				var replies sync.WaitGroup
				for n := range 3 {
					replies.Go(func() { f.run(canonical("s", fmt.Sprint("b", n), call{"count", `{"ms":1000}`})) })
				}
				replies.Wait()
				if took := time.Since(began); took > 1500*time.Millisecond {
					t.Errorf("three reads of 1 s took %v", took)
				}
			})
		})
	}
}

// A session's calls are handed over one by one, reads and writes in any order. Three coordinators
// drive them while one after another stops and restarts. Each read sees exactly the
// writes before it, and the writes run in order, one at a time.
func TestOneCallBatchesKeepTheirOrder(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var l laneBook
		l.tools(f)
		f.worker(worker.Config{Slots: 30})
		f.worker(worker.Config{Slots: 30})
		comeAndGo := f.coordinatorsThatComeAndGo(coordinator.Config{Lookahead: 32})
		rng := rand.New(rand.NewPCG(13, 1))
		sessions, batches := 10, repeats(60, 60)
		var p published
		tools := map[string]string{}
		for n := range batches {
			for s := range sessions {
				name := []string{"count", "count", "count", "put"}[rng.IntN(4)]
				b := canonical(fmt.Sprint("s", s), fmt.Sprint("b", n), call{name, fmt.Sprintf(`{"ms":%d}`, rng.IntN(5)*20)})
				tools[fmt.Sprint(b.Session, b.ID)] = name
				p.publish(f, f.conn, b)
			}
		}
		comeAndGo()
		log := map[messages.SessionID][]messages.BatchID{}
		for session, ids := range p.log() {
			puts := 0
			for _, id := range ids {
				reply, err := f.await(messages.Batch{Session: session, ID: id}, 10*time.Minute)
				if err != nil {
					t.Fatalf("batch %s of %s: %v", id, session, err)
				}
				if tools[fmt.Sprint(session, id)] == "put" {
					puts++
					log[session] = append(log[session], id)
				} else if want := fmt.Sprintf(`"%d"`, puts); !strings.Contains(string(reply.Reinjection), want) {
					t.Errorf("batch %s of %s: %d writes came before it, and its read says %s", id, session, puts, reply.Reinjection)
				}
			}
		}
		l.inOrder(t, log, 0)
	})
}

// Coordinators that were told that another one drives a session hear when it has ended. The next
// batch of the session then waits for nobody.
func TestASessionThatHasEndedIsDrivenAtOnce(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var l laneBook
		l.tools(f)
		f.worker(worker.Config{Slots: 30})
		for range 3 {
			f.coordinator(coordinator.Config{Lookahead: 32})
		}
		for s := range 20 {
			session := fmt.Sprint("s", s)
			var replies sync.WaitGroup
			for n := range 3 {
				replies.Go(func() { f.run(canonical(session, fmt.Sprint("b", n), call{"count", `{"ms":1000}`})) })
			}
			replies.Wait()
			began := time.Now()
			f.run(canonical(session, "last", call{"count", `{"ms":0}`}))
			if took := time.Since(began); took > 100*time.Millisecond {
				t.Errorf("session %s: a batch of one call that takes no time took %v after three others", session, took)
			}
		}
	})
}
