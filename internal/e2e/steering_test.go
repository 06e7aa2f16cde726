package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

func (f *fleet) steer(session, message string, when messages.SteerWhen) {
	f.t.Helper()
	seq, err := f.client.Steer(context.Background(), messages.SessionID(session), json.RawMessage(message), when, client.Reason{By: "Ada", Text: "use the other account"})
	if err != nil || seq == 0 {
		f.t.Fatalf("steer: sequence %d, err %v", seq, err)
	}
}

// wantSteering checks the steering messages of a reply. They are JSON, or "" for none.
func (f *fleet) wantSteering(r messages.Reply, want string) {
	f.t.Helper()
	if string(r.Steering) != want {
		f.t.Errorf("the reply of %s has the steering messages %.200s, want %.200s", r.Batch, r.Steering, want)
	}
	wantValid(f.t, "reply", rawjson.MustMarshal(r))
}

// A batch runs, and another batch waits, when steering messages are sent. Running calls keep
// their real results, and skipped calls say who skipped them. Both batches are steered, but
// only one reply has the messages, in the order in which they were sent.
func TestSteering(t *testing.T) {
	for _, row := range []struct {
		when messages.SteerWhen
		want string // ten reads, eight of which run, a write and a read
		next string // the batch that waits
	}{
		{messages.SteerAfterBatch, "ok ok ok ok ok ok ok ok ok ok ok ok", "ok ok"},
		{"", "ok ok ok ok ok ok ok ok ok ok ok ok", "ok ok"},
		{messages.SteerBetweenGroups, "ok ok ok ok ok ok ok ok ok ok skipped skipped", "skipped skipped"},
		{messages.SteerImmediate, "ok ok ok ok ok ok ok ok skipped skipped skipped skipped", "skipped skipped"},
	} {
		t.Run(string(row.when), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				look, pay := f.gated(schemas.Tool{Name: "look", Kind: messages.KindRead}), f.gated(schemas.Tool{Name: "pay"})
				f.worker(worker.Config{})
				f.coordinator(coordinator.Config{})
				var calls []call
				for range 10 {
					calls = append(calls, call{"look", ""})
				}
				b := canonical("s", "b", append(calls, call{"pay", through}, call{"look", through})...)
				waiting := canonical("s", "waiting", call{"pay", through}, call{"look", through})
				f.submit(b)
				f.submit(waiting)
				f.atGate(look, 8)
				f.steer("s", `{"role":"user","content":"stop"}`, row.when)
				f.steer("s", `"and wait"`, messages.SteerAfterBatch)
				time.Sleep(10 * time.Second)
				close(look.open)
				reply, next := f.reply(b, time.Minute), f.reply(waiting, time.Minute)
				f.wantStatuses(reply, row.want)
				f.wantStatuses(next, row.next)
				var all []json.RawMessage // exactly one reply has both messages
				for _, r := range []messages.Reply{reply, next} {
					if len(r.Steering) > 0 {
						all = append(all, r.Steering)
					}
				}
				if want := `[[{"role":"user","content":"stop"},"and wait"]]`; string(rawjson.MustMarshal(all)) != want {
					t.Errorf("the replies have the steering messages %s, want %s", rawjson.MustMarshal(all), want)
				}
				if reply.Status != messages.ReplyCompleted {
					t.Errorf("the reply is %s", reply.Status)
				}
				if strings.HasSuffix(row.want, "skipped") {
					f.wantWords(reply.Results[11], "Not run", "Ada", "use the other account")
				}
				if want := int32(strings.Count(row.next, "ok")); pay.runs.Load() != want {
					t.Errorf("%d writes ran, want %d", pay.runs.Load(), want)
				}
			})
		})
	}
}

// Even the most urgent steering message does not stop a write that has started.
func TestSteeringStopsNoWrite(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		pay := f.gated(schemas.Tool{Name: "pay"})
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		b := canonical("s", "b", call{"pay", ""}, call{"pay", ""})
		f.submit(b)
		f.atGate(pay, 1)
		f.steer("s", `"stop"`, messages.SteerImmediate)
		time.Sleep(time.Minute)
		close(pay.open)
		f.wantStatuses(f.reply(b, time.Minute), "ok skipped")
	})
}

// Messages are sent while nothing runs. The next reply that can hold them has them, and no
// other reply does.
func TestSteeringWaitsForAReply(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		f.gated(schemas.Tool{Name: "pay"})
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		f.coordinator(coordinator.Config{})
		f.wantSteering(f.run(canonical("s", "before", call{"pay", through})), "")
		f.steer("s", `"one"`, messages.SteerImmediate)
		f.steer("s", `["two"]`, "")
		refused := canonical("s", "refused")
		refused.Message = json.RawMessage(`{"calls":"none"}`)
		if _, err := f.client.Run(context.Background(), refused); err == nil {
			t.Error("a batch without calls was not refused")
		}
		f.wantSteering(f.run(canonical("other", "b", call{"pay", through})), "")
		first := f.run(canonical("s", "first", call{"pay", through}))
		f.wantStatuses(first, "ok") // this call came after the message
		f.wantSteering(first, `["one",["two"]]`)
		f.wantSteering(f.run(canonical("s", "second", call{"pay", through})), "")
		f.steer("s", `3`, "")
		empty := f.run(canonical("s", "empty"))
		f.wantSteering(empty, `[3]`)
	})
}

// A coordinator dies after it recorded that a reply has the message and before it stored that
// reply. The next coordinator stores the reply with that message, and no later reply has it.
func TestSteeringOutlivesItsCoordinator(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		pay := f.gated(schemas.Tool{Name: "pay"})
		f.worker(worker.Config{})
		kill := f.killableCoordinator(coordinator.Config{})
		b := canonical("s", "b", call{"pay", ""})
		f.submit(b)
		f.atGate(pay, 1)
		f.steer("s", `"one"`, "")
		time.Sleep(10 * time.Second)
		j := journal.New(f.conn)
		said, err := j.Controls(context.Background(), "_", "s")
		if err != nil || len(said) != 1 {
			t.Fatalf("%d controls, err %v", len(said), err)
		}
		if err := j.TakeSteering(context.Background(), wire.KeyOf("_", "s", "b"), said[0].Seq); err != nil {
			t.Fatal(err)
		}
		kill()
		f.coordinator(coordinator.Config{})
		f.coordinator(coordinator.Config{})
		f.steer("s", `"two"`, "")
		close(pay.open)
		f.wantSteering(f.reply(b, time.Minute), `["one","two"]`)
		f.wantSteering(f.run(canonical("s", "next", call{"pay", through})), "")
	})
}

// Steering messages that are together too large for a message on NATS are stored as a large
// reply is.
func TestLargeSteering(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		f.gated(schemas.Tool{Name: "pay"})
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		var want []string
		for n := range 5 {
			message := fmt.Sprintf(`"%d%s"`, n, strings.Repeat("x", 250_000))
			want = append(want, message)
			f.steer("s", message, "")
		}
		f.wantSteering(f.run(canonical("s", "b", call{"pay", through})), "["+strings.Join(want, ",")+"]")
		f.wantSteering(f.run(canonical("s", "next", call{"pay", through})), "")
	})
}

// A batch waits behind another batch of its session. Its time limit does not run meanwhile.
func TestTheTimeLimitDoesNotRunBehindAnotherBatch(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		pay := f.gated(schemas.Tool{Name: "pay"})
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		head, waiting := canonical("s", "head", call{"pay", ""}), canonical("s", "waiting", call{"pay", through})
		waiting.TimeoutMS = 5000
		f.submit(head)
		f.submit(waiting)
		f.atGate(pay, 1)
		time.Sleep(time.Minute)
		close(pay.open)
		f.wantStatuses(f.reply(head, time.Minute), "ok")
		f.wantStatuses(f.reply(waiting, time.Minute), "ok")
	})
}

// The time of a batch is up. Calls that have ended keep their results, running calls are
// stopped and say what is known about them, and the other calls never start.
func TestTheTimeLimitOfABatchIsReached(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		look, pay := f.gated(schemas.Tool{Name: "look", Kind: messages.KindRead}), f.gated(schemas.Tool{Name: "pay"})
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		timed := func(id string, calls ...call) messages.Batch {
			b := canonical("s", id, calls...)
			b.TimeoutMS = 10_000
			return b
		}
		began := time.Now()
		f.wantStatuses(f.run(timed("read", call{"look", through}, call{"look", ""}, call{"pay", through})), "ok timeout timeout")
		f.wantStatuses(f.run(timed("write", call{"pay", ""}, call{"look", through}, call{"pay", through})), "outcome_unknown timeout skipped")
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("two batches of 10 s took %v", took)
		}
		if look.stopped.Load() != 1 || pay.stopped.Load() != 1 || pay.runs.Load() != 1 {
			t.Errorf("stopped %d reads and %d writes, started %d writes", look.stopped.Load(), pay.stopped.Load(), pay.runs.Load())
		}
	})
}

// The time limit of a batch also runs while its calls wait for a slot of the worker.
func TestTheTimeLimitRunsInTheQueue(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		look := f.gated(schemas.Tool{Name: "look", Kind: messages.KindRead, TimeoutMS: 8000})
		f.worker(worker.Config{Slots: 1})
		f.coordinator(coordinator.Config{})
		b := canonical("s", "b", call{"look", ""}, call{"look", ""}, call{"look", ""})
		b.TimeoutMS = 10_000
		began := time.Now()
		f.wantStatuses(f.run(b), "timeout timeout timeout")
		if took := time.Since(began); took > 14*time.Second {
			t.Errorf("a batch with 10 s took %v and ran %d calls", took, look.runs.Load())
		}
	})
}

// A coordinator takes a batch over. The batch keeps the time that its newest plan record
// leaves.
func TestTheTimeLimitSurvivesATakeover(t *testing.T) {
	for _, kind := range []messages.Kind{messages.KindRead, messages.KindWrite} {
		t.Run(string(kind), func(t *testing.T) { timeSurvivesATakeover(t, kind) })
	}
}

func timeSurvivesATakeover(t *testing.T, first messages.Kind) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		look, pay, book := f.gated(schemas.Tool{Name: "look", Kind: first}), f.gated(schemas.Tool{Name: "pay"}), f.gated(schemas.Tool{Name: "book"})
		f.worker(worker.Config{})
		kill := f.killableCoordinator(coordinator.Config{})
		b := canonical("s", "b", call{"look", ""}, call{"pay", ""}, call{"book", ""})
		b.TimeoutMS = 60_000
		f.submit(b)
		f.atGate(look, 1)
		time.Sleep(50 * time.Second)
		close(look.open)
		f.atGate(pay, 1)
		kill()
		f.coordinator(coordinator.Config{})
		time.Sleep(5 * time.Second)
		close(pay.open)
		f.atGate(book, 1)
		began := time.Now()
		f.wantStatuses(f.reply(b, 2*time.Minute), "ok ok outcome_unknown")
		if took := time.Since(began); took > 12*time.Second {
			t.Errorf("10 of its 60 s were left, and it went on for %v", took)
		}
	})
}

// Coordinators are killed and replaced while a client steers a session many times. Each
// message is in exactly one reply.
func TestEachSteeringMessageComesOnce(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var naps atomic.Int64
		sleepTool(f, "nap", messages.KindRead, time.Minute, "", &naps)
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		kill := f.killableCoordinator(coordinator.Config{})
		heard := map[string]int{}
		const rounds = 25
		for n := range rounds {
			b := canonical("s", fmt.Sprint("b", n), call{"nap", `{"ms":100}`})
			f.submit(b)
			// The message is sent before, at or after the end of the batch.
			time.Sleep(time.Duration(n*9) * time.Millisecond)
			f.steer("s", fmt.Sprintf(`"m%d"`, n), "")
			if n%3 == 2 {
				kill()
				kill = f.killableCoordinator(coordinator.Config{})
			}
			f.countSteering(heard, f.reply(b, time.Minute))
		}
		kill()
		f.countSteering(heard, f.run(canonical("s", "last", call{"nap", ""})))
		for n := range rounds {
			if got := heard[fmt.Sprint("m", n)]; got != 1 {
				t.Errorf("message %d came %d times", n, got)
			}
		}
	})
}

// countSteering counts the steering messages of a reply.
func (f *fleet) countSteering(counts map[string]int, r messages.Reply) {
	f.t.Helper()
	var messages []string
	if len(r.Steering) == 0 {
		return
	}
	if err := json.Unmarshal(r.Steering, &messages); err != nil {
		f.t.Errorf("steering %s: %v", r.Steering, err)
	}
	for _, m := range messages {
		counts[m]++
	}
}
