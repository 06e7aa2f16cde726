package sim

import (
	"cmp"
	"errors"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/recall"
	"github.com/toolfleet/toolfleet/coordinator/session"
	"github.com/toolfleet/toolfleet/internal/approval"
	records "github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/sim/world"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// This file is the counterpart of suspend.go and resume.go in package coordinator, and of
// the part of coordinator/approvals that applies decisions.

// request is what a coordinator is asked to do: store a decision, an abort or a steering
// message.
type request struct {
	inbox string
	what  any
}

type decision struct {
	key wire.CallKey
	messages.Decision
}

type speech struct {
	key wire.BatchKey
	messages.Control
}

// answerRequests starts the tasks that answer requests. door is the coordinator's subject for
// requests.
func (c *coordinator) answerRequests() {
	door := "doors." + c.Name
	c.Subscribe(door)
	bye := c.Bye
	c.Bye = func() { bye(); c.Unsubscribe(door) }
	c.Spawn("doors", func(t *world.Task) {
		for {
			t.Wait(world.Never, func() bool { n, _ := t.Heard(door); return n > 0 })
			if m, ok := t.Hear(door); ok {
				c.Spawn("door", func(t *world.Task) { c.serve(t, m.(request)) })
			}
		}
	})
}

func (c *coordinator) serve(t *world.Task, r request) {
	answer := func(what any) { t.Tell("answer", r.inbox, func() { t.Publish(r.inbox, what) }) }
	switch asked := r.what.(type) {
	case speech:
		if _, err := truth(t).WriteControl(anytime, asked.key.Tenant, asked.key.Session, asked.Control); err != nil {
			return
		}
		answer(messages.ControlAnswer{OK: true})
		c.wake(t, asked.key, c.waitsForPeople)
	case decision:
		state, refused := c.decide(t, asked)
		answer(messages.DecisionAnswer{OK: refused == nil, State: state, Error: refused})
		if refused == nil && state != messages.DecisionWaiting {
			c.wake(t, asked.key.BatchKey, nil)
		}
	}
}

// decide applies a decision to the open question, and stores the result.
func (c *coordinator) decide(t *world.Task, asked decision) (messages.DecisionState, *messages.Refusal) {
	const tries = 10
	busy := &messages.Refusal{Class: messages.ClassBusy}
	for range tries {
		entry, err := truth(t).Question(anytime, asked.key)
		var none *records.NoQuestion
		switch {
		case errors.As(err, &none):
			return "", &messages.Refusal{Class: messages.ClassNotPending}
		case err != nil:
			return "", busy
		}
		q, state, refused := approvers.Take(*entry.Record.Approval, asked.Decision, t.Now)
		if refused != nil {
			return "", refused
		}
		record := approval.Answered(entry.Record, q, state, t.Nonce())
		c.fleet.judge.Decided(record.Nonce)
		_, err = journal{t}.write(asked.key, record, entry.Seq, world.Never)
		var lost *lostTo
		switch {
		case err == nil:
			return state, nil
		case !errors.As(err, &lost):
			return "", busy
		}
	}
	return "", busy
}

// wake drives the head of a session if due is nil or returns true.
func (c *coordinator) wake(t *world.Task, lane wire.BatchKey, due func(*world.Task, wire.BatchKey) (bool, error)) {
	var first uint64
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		head, found, err := c.nextHead(t, lane)
		if err == nil {
			seen := session.Suspended{Due: true}
			if found {
				seen.Head = head.Seq
			}
			first = cmp.Or(first, seen.Head)
			seen.First = first
			if due != nil && found && seen.Head == first {
				seen.Due, err = due(t, head.Key)
			}
			if err == nil && (session.DecideResume(seen) == session.Leave || !c.driveLine(t, head, nil)) {
				return
			}
		}
		t.Sleep(wait)
	}
}

// waitsForPeople reports whether a batch may be suspended.
func (c *coordinator) waitsForPeople(t *world.Task, key wire.BatchKey) (bool, error) {
	known, err := truth(t).Calls(anytime, key)
	return err == nil && recall.WaitsForPeople(known), err
}

// rest ends the driver if the batch only waits for people. It reports whether the driver has
// to end.
func (d *drive) rest() bool {
	for !d.broken {
		until, waits := d.machine.Rest()
		switch session.DecideSuspend(session.Quiet{Waits: waits, Until: until, Now: d.Now, Sure: d.sure}) {
		case session.Ask:
			d.lookOnce()
			continue
		case session.Continue:
			return false
		}
		d.line.batches.Rest(d, until)
		return d.line.suspendIfQuiet()
	}
	return false
}

// lookOnce reads the journal from the leader. It tries until it succeeds, because no poll
// follows for minutes.
func (d *drive) lookOnce() {
	var events []batch.Event
	_ = d.Insist(func() error {
		known, err := truth(d.Task).Calls(anytime, d.sub.Key)
		if err != nil {
			return err
		}
		said, err := d.controls()
		events = append(said, d.events(known)...)
		return err
	})
	for _, e := range events {
		d.step(e)
	}
	d.sure = true
}

// look reads the journal after another task has set nudged.
func (d *drive) look() {
	if _, rests := d.machine.Rest(); rests {
		d.lookOnce()
		return
	}
	for _, e := range d.perform(batch.Look{}) {
		d.step(e)
	}
}

// recorded returns the record of a call as an event.
func recorded(index int, e entry) batch.Recorded {
	return recall.Recorded(index, e.record, e.seq, local)
}
