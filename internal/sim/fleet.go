package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/plan"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/sim/broker"
	"github.com/toolfleet/toolfleet/internal/sim/judge"
	"github.com/toolfleet/toolfleet/internal/sim/staff"
	"github.com/toolfleet/toolfleet/internal/sim/world"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Settings of every fleet. They are the defaults of the daemons, except Slots.
const (
	AckWait  = judge.AckWait
	Lease    = judge.Lease
	Grace    = judge.Grace
	Poll     = AckWait / 3
	BatchTTL = judge.BatchTTL
	Slots    = 3 // fewer than the daemons have, so that calls have to wait for a slot
)

var machineConfig = batch.Config{
	Window: 3, FirstPoll: 200 * time.Millisecond, Poll: Poll, QueueTimeout: time.Minute, Unserved: 30 * time.Second, Grace: Grace, Waits: BatchTTL, Poison: judge.Lapses,
}

// Shape is the size of a fleet and its work.
type Shape struct {
	Coordinators, Workers int
	// Sessions has the batches of each session, each as a list of the tools that the batch
	// calls:
	//
	//   - read, sum: reads that may overlap
	//   - alone: a read that may not overlap
	//   - shifty: a read that may not overlap in the second version
	//   - once: a write that may run only once
	//   - again: an idempotent write
	//   - shell: a write that may overlap
	//   - late: a write that only the second version has
	//   - stern, sternshell: planned to overlap, and then handed back
	//   - nope: an unknown tool
	//   - askread, askonce, askagain, sternask: one person is asked; askboth: two
	//     people are asked
	//
	// A batch "?" cannot be decoded.
	Sessions [][]string
	// Says is the number of aborts and steering messages that are sent.
	Says int
	// AskFor is how long a question stays open. With Prompt, people answer every question
	// soon.
	AskFor time.Duration
	Prompt bool
	// Reforms is how many times the policy or the version of the tools changes in a run.
	Reforms int
	// Parts says which part of the tools each worker has, beginning with the first worker.
	// Workers after the last part have all tools. Old is the number of workers of the previous
	// version.
	Parts []staff.Part
	Old   int
	// Bounded says that the pool has max_in_flight. Then all workers share its queue.
	Bounded bool
	// Gaps is how many times workers are away for a while: those of one part, or all.
	Gaps int
	// Late makes agents send some batches only after others are answered, and send some
	// batches again after everything about them but the reply is deleted.
	Late bool
}

// Fleet is a fleet on one broker: agents, coordinators and workers.
type Fleet struct {
	*world.World
	judge   *judge.Ledger
	log     *broker.Queue
	queues  map[string]*jobQueue // by token
	staff   *staff.Bucket        // what workers have announced
	agents  int                  // agents that still wait for a reply
	shape   Shape
	policy  policy // policy of workers that start from now on
	version int    // tools file version of workers that start from now on
	people  *world.Process
	// workers, posts and coordinators include those of the run that have ended.
	workers      []*worker
	posts        []*post
	coordinators []*coordinator
	// submissions has every batch that agents publish, by its bytes in the log.
	submissions map[string]*Submission
}

// NewFleet returns a fleet before its first step.
func NewFleet(shape Shape, faults world.Faults, rng *rand.Rand) *Fleet {
	w := world.New(broker.NewBroker(world.Epoch, broker.Streams(names, BatchTTL, 24*time.Hour)...), faults, rng)
	f := &Fleet{World: w, shape: shape, policy: policies[0], submissions: map[string]*Submission{}, queues: map[string]*jobQueue{}, staff: staff.NewBucket()}
	f.people = f.Start("p", nil)
	f.judge = judge.New(w, f, shape.Coordinators)
	w.Stored = f.judge.Stored
	f.log = w.Queue(broker.Queues(names, AckWait, 0)[0])
	for range shape.Coordinators {
		f.startCoordinator()
	}
	f.hire()
	for s, batches := range shape.Sessions {
		for b, tools := range batches {
			f.startAgent(submission(fmt.Sprint("s", s), fmt.Sprint("b", b), strings.Fields(tools)))
		}
	}
	for range shape.Says {
		f.startSpeaker(wire.BatchKey{Tenant: messages.OneTenant, Session: fmt.Sprint("s", rng.IntN(len(shape.Sessions)))})
	}
	for range shape.Reforms {
		f.startReform()
	}
	for range shape.Gaps {
		f.startGap()
	}
	return f
}

// Slowest returns the longest time between a grant and the job that follows it.
func (f *Fleet) Slowest() time.Duration { return f.judge.Slowest() }

// startSpeaker starts a process that sends one control to a session at a random time.
func (f *Fleet) startSpeaker(key wire.BatchKey) {
	control := []messages.Control{
		{Abort: []byte(`"b0"`)}, {Abort: []byte("true")}, {When: messages.SteerBetweenGroups}, {When: messages.SteerImmediate},
	}[f.Rng.IntN(4)]
	p := f.Start("s", nil)
	p.Spawn("say", func(t *world.Task) {
		within := 6 * time.Second
		if f.Rng.IntN(2) == 0 {
			within += f.shape.AskFor
		}
		t.Sleep(time.Duration(f.Rng.Int64N(int64(within))))
		for ok := false; !ok; {
			_, ok = f.request(t, speech{key, control})
		}
	})
}

// stopCall tells every worker to stop a call.
func (f *Fleet) stopCall(key wire.CallKey) {
	for _, w := range f.workers {
		if f.Alive(w.Process) {
			w.stop(key)
		}
	}
}

func submission(session, id string, tools []string) *Submission {
	sub := &Submission{Key: wire.KeyOf(messages.OneTenant, messages.SessionID(session), messages.BatchID(id))}
	if slices.Equal(tools, []string{"?"}) {
		sub.Refused = true
		return sub
	}
	var calls []messages.ToolCall
	for i, tool := range tools {
		calls = append(calls, messages.ToolCall{Index: i, ID: messages.CallID(fmt.Sprint("call", i)), Name: tool, Input: []byte("{}")})
	}
	sub.Calls, sub.Plan = calls, plan.New(calls, staff.First)
	return sub
}

// startAgent starts an agent, which publishes a batch until the batch is acknowledged and then
// waits for the reply. Sometimes the agent forgets the batch and publishes it again.
func (f *Fleet) startAgent(sub *Submission) {
	f.agents++
	p := f.Start("a", nil)
	p.Spawn("submit", func(t *world.Task) {
		within := 3 * time.Second
		if f.shape.Late && f.Rng.IntN(2) == 0 { // the other batches have their replies by then
			within = 90 * time.Second
		}
		t.Sleep(time.Duration(f.Rng.Int64N(int64(within))))
		final := names.Of(wire.VerbFinal, sub.Key)
		late, odds := f.shape.Late, 8
		if late {
			odds = 3
		}
		for again := true; again; again = f.Rng.IntN(odds) == 0 {
			if late && f.Stream(repliesStream).Last(final) != nil {
				t.Sleep(4 * BatchTTL)
				late = false
			}
			subject := names.Of(wire.VerbBatch, sub.Key)
			f.submissions[subject] = sub
			_ = t.Insist(func() error {
				err := t.Ask("submit", subject, func() error {
					_, err := f.Append(subject, broker.Packet{Body: sub, Data: []byte(subject)})
					return err
				})
				if errors.Is(err, bus.ErrExists) {
					return nil
				}
				return err
			})
			t.Wait(world.Never, func() bool { return f.Stream(repliesStream).Last(final) != nil })
		}
		f.agents--
	})
}

// Run runs the fleet until every batch is answered and no task has anything to do. The error
// says which rule was broken.
func (f *Fleet) Run() (err error) {
	defer f.Close()
	defer func() {
		switch cause := recover().(type) {
		case nil:
		case judge.Violation:
			err = cause
		default:
			panic(cause)
		}
	}()
	for at, steps := f.Now, 0; f.unfinished(); steps++ {
		if f.Now.After(at) {
			at, steps = f.Now, 0
		}
		if steps > restless {
			f.judge.Fail("%d steps, and the clock stands still", steps)
		}
		if !f.Step() && f.unfinished() {
			f.judge.Fail("nobody waits for anything, and %d agents have no reply", f.agents)
		}
		f.judge.Look()
		if f.Now.Sub(world.Epoch) > patience {
			f.judge.Fail("no end after %v: %d agents have no reply, %d batches are in the log, %d jobs in the queue", patience, f.agents, f.log.Len(), len(f.Stream(jobsStream).Messages()))
		}
	}
	f.judge.AtTheEnd()
	return nil
}

func (f *Fleet) unfinished() bool {
	return f.agents > 0 || f.log.Len() > 0 || len(f.Stream(jobsStream).Messages()) > 0
}

// restless is more steps than any fleet needs at one moment. A fleet that takes more steps is
// stuck.
const restless = 100_000

// patience is longer than any fleet may take, even with every fault.
const patience = 12 * time.Hour
