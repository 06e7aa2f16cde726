package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
)

// coordinatorsThatComeAndGo starts three coordinators. comeAndGo stops and restarts one after
// another: some finish their batches first, others hand them back.
func (f *fleet) coordinatorsThatComeAndGo(cfg coordinator.Config) (comeAndGo func()) {
	start := func(drain time.Duration) part {
		cfg.Drain = drain
		return f.coordinator(cfg)
	}
	var alive []part
	for n := range 3 {
		alive = append(alive, start(time.Duration(n)*100*time.Millisecond))
	}
	return func() {
		for n := range 9 {
			time.Sleep(200 * time.Millisecond) // simulated
			alive[n%3].stop()
			time.Sleep(300 * time.Millisecond)
			alive[n%3] = start(time.Duration(n) * 50 * time.Millisecond)
		}
	}
}

// Three publishers publish twenty batches of each session at once, and three coordinators are
// stopped and restarted in turn. The batches of a session run one at a time, in the order of
// the log.
func TestLanesStayInOrderWhileCoordinatorsComeAndGo(t *testing.T) {
	for _, sessions := range []int{1, repeats(20, 50)} {
		t.Run(fmt.Sprint(sessions), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				var l writeLog
				l.tools(f)
				f.worker(worker.Config{Slots: 30})
				f.worker(worker.Config{Slots: 30})
				comeAndGo := f.coordinatorsThatComeAndGo(coordinator.Config{})
				var p publishLog
				const batches = 20
				var publishers sync.WaitGroup
				for who := range 3 {
					conn := f.connect(fmt.Sprint("publisher", who))
					publishers.Go(func() {
						defer conn.Close()
						for n := who; n < batches; n += 3 {
							for s := range sessions {
								p.publish(f, conn, canonical(fmt.Sprint("s", s), fmt.Sprint("b", n),
									call{"put", fmt.Sprintf(`{"ms":%d}`, 20*((n+s)%5))}, call{"count", `{"ms":10}`}, call{"count", `{"ms":30}`}, call{"put", `{"ms":10}`}))
							}
						}
					})
				}
				comeAndGo()
				publishers.Wait()
				for session, ids := range p.log() {
					for n, id := range ids {
						reply, err := f.await(messages.Batch{Session: session, ID: id}, 10*time.Minute)
						if err != nil {
							t.Fatalf("batch %s of %s: %v", id, session, err)
						}
						if want := fmt.Sprintf(`"%d"`, 2*n+1); strings.Count(string(reply.Reinjection), want) != 2 {
							t.Errorf("batch %s of %s is number %d: its reads do not say %s: %s", id, session, n, want, reply.Reinjection)
						}
					}
				}
				l.checkLogOrder(t, p.log(), 0, 3)
			})
		})
	}
}

// The log holds many times more batches than coordinators have slots. All batches run, and
// each session in order.
func TestABacklogDrains(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var l writeLog
		l.tools(f)
		f.worker(worker.Config{Slots: 30})
		f.coordinator(coordinator.Config{Slots: 4}) // creates the log
		var p publishLog
		sessions, batches := repeats(200, 200), 5
		for n := range batches {
			for s := range sessions {
				p.publish(f, f.conn, canonical(fmt.Sprint("s", s), fmt.Sprint("b", n), call{"put", `{"ms":5}`}))
			}
		}
		f.coordinator(coordinator.Config{Slots: 4})
		began := time.Now()
		f.awaitEmptyLog()
		t.Logf("%d batches, 8 slots, writes of 5 ms: drained after %v", sessions*batches, time.Since(began))
		l.checkLogOrder(t, p.log(), 0)
		for session, ids := range p.log() {
			for _, id := range ids {
				if reply, err := f.await(messages.Batch{Session: session, ID: id}, time.Minute); err != nil || reply.Status != messages.ReplyCompleted {
					t.Errorf("batch %s of %s: %s, %v", id, session, reply.Status, err)
				}
			}
		}
	})
}

// messageCount returns how many messages a stream holds.
func (f *fleet) messageCount(stream string) uint64 {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	m, err := f.conn.Request(ctx, "$JS.API.STREAM.INFO."+f.conn.Names().Stream(stream), nil, nil)
	var info struct {
		State struct {
			Msgs uint64 `json:"messages"`
		} `json:"state"`
	}
	if err == nil {
		err = json.Unmarshal(m.Data, &info)
	}
	if err != nil {
		f.t.Fatalf("state of %s: %v", stream, err)
	}
	return info.State.Msgs
}

// awaitEmptyLog waits until the log is empty.
func (f *fleet) awaitEmptyLog() {
	f.t.Helper()
	deadline := time.NewTimer(10 * time.Minute)
	defer deadline.Stop()
	for f.messageCount(bus.Batches) > 0 {
		select {
		case <-deadline.C:
			f.t.Fatalf("%d batches are still in the log", f.messageCount(bus.Batches))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// The head of each of these sessions cannot run, for a reason of its own. A good batch behind
// the head runs soon.
func TestABadHeadDoesNotStopItsSession(t *testing.T) {
	heads := map[string]func(f *fleet, session string){
		"refused": func(f *fleet, session string) {
			b := canonical(session, "head")
			b.Message = json.RawMessage(`{"calls":"none"}`)
			f.submit(b)
		},
		"no such provider": func(f *fleet, session string) {
			b := canonical(session, "head")
			b.Provider = "nobody"
			f.submit(b)
		},
		"too many calls": func(f *fleet, session string) { f.submit(canonical(session, "head", make([]call, 600)...)) },
		"no JSON":        func(f *fleet, session string) { f.append(session+".head", []byte("\x00\xff{")) },
		"empty":          func(f *fleet, session string) { f.append(session+".head", nil) },
		"of another session": func(f *fleet, session string) {
			b := canonical("elsewhere", "head", call{"put", `{"ms":1}`})
			b.V = messages.Version
			f.append(session+".head", rawjson.MustMarshal(b))
		},
		"hostile subject": func(f *fleet, session string) { f.append(session+".a*b", []byte("{}")) },
		"unknown tool":    func(f *fleet, session string) { f.submit(canonical(session, "head", call{"nope", ""})) },
		"nothing to do":   func(f *fleet, session string) { f.submit(canonical(session, "head")) },
		"deep": func(f *fleet, session string) {
			b := canonical(session, "head")
			b.Message = json.RawMessage(strings.Repeat("[", 5000) + strings.Repeat("]", 5000))
			f.submit(b)
		},
		"its plan cannot be read": func(f *fleet, session string) {
			f.record("plan._."+session+".head", []byte("junk"))
			f.submit(canonical(session, "head", call{"put", `{"ms":1}`}))
		},
		"its reply cannot be read": func(f *fleet, session string) {
			f.record("final._."+session+".head", []byte("junk"))
			f.submit(canonical(session, "head", call{"put", `{"ms":1}`}))
		},
	}
	for name, publish := range heads {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				var l writeLog
				l.tools(f)
				f.worker(worker.Config{})
				f.coordinator(coordinator.Config{})
				f.coordinator(coordinator.Config{})
				publish(f, "s")
				next := canonical("s", "next", call{"put", `{"ms":1}`})
				f.submit(next)
				began := time.Now()
				reply, err := f.await(next, 3*time.Hour)
				if err != nil || reply.Results[0].Status != messages.StatusOK {
					t.Fatalf("%+v, %v", reply, err)
				}
				if took := time.Since(began); took > 5*time.Second {
					t.Errorf("the batch behind it took %v", took)
				}
				f.awaitEmptyLog()
			})
		})
	}
}

// append stores a body under a subject of the log, as any agent can.
func (f *fleet) append(address string, body []byte) { f.record("batch._."+address, body) }

func (f *fleet) record(address string, body []byte) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := f.conn.Append(ctx, wire.DefaultPrefix+"."+address, nil, body); err != nil {
		f.t.Fatal(err)
	}
}
