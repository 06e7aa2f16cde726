package sim

import (
	"cmp"
	"errors"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/recall"
	"github.com/toolfleet/toolfleet/coordinator/session"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// What package coordinator does in suspend.go and resume.go, and coordinator/approvals with
// decisions.

// restAtMost bounds how long nobody looks at a batch that rests.
const restAtMost = 5 * time.Minute

// request is what comes to a coordinator's doors: a decision, or something to say to a session.
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

// openDoors has the coordinator answer requests.
func (c *coordinator) openDoors() {
	door := "doors." + c.name
	c.Subscribe(door)
	bye := c.bye
	c.bye = func() { bye(); c.Unsubscribe(door) }
	c.spawn("doors", func(t *task) {
		for {
			t.wait(never, func() bool { n, _ := t.Heard(door); return n > 0 })
			if m, ok := t.Hear(door); ok {
				c.spawn("door", func(t *task) { c.serve(t, m.(request)) })
			}
		}
	})
}

func (c *coordinator) serve(t *task, r request) {
	answer := func(what any) { t.tell("answer", r.inbox, func() { t.Publish(r.inbox, what) }) }
	switch asked := r.what.(type) {
	case speech:
		if _, err := t.truth().WriteControl(anytime, asked.key.Tenant, asked.key.Session, asked.Control); err != nil {
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

// decide stores what a decision makes of the question that is open now.
func (c *coordinator) decide(t *task, asked decision) (messages.DecisionState, *messages.Refusal) {
	const tries = 10
	busy := &messages.Refusal{Class: messages.ClassBusy}
	for range tries {
		newest, err := journal{t}.newest(asked.key)
		switch {
		case err != nil:
			return "", busy
		case newest.record.State != wire.Parked:
			return "", &messages.Refusal{Class: messages.ClassNotPending}
		}
		q, state, refused := approvers.Take(*newest.record.Approval, asked.Decision, t.Now)
		if refused != nil {
			return "", refused
		}
		_, err = journal{t}.write(asked.key, answered(t, newest.record, q, state), newest.seq, never)
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

// answered is the record that follows a parked one.
func answered(t *task, parked wire.CallRecord, q messages.Approval, state messages.DecisionState) wire.CallRecord {
	next := parked
	next.Nonce, next.Approval, next.ArgsHash, next.Worker = t.nonce(), &q, q.ArgsHash, ""
	t.decidedAt[next.Nonce] = t.Now
	switch state {
	case messages.DecisionGranted:
		next.State = wire.Granted
	case messages.DecisionDenied:
		next.State, next.Result = wire.Ended, &messages.Result{
			Index: q.Index, CallID: q.CallID, Tool: q.Tool, Attempt: parked.Attempt, Status: messages.StatusDenied,
			Outcome: messages.Failed(messages.CodeDeniedByUser, "no"),
		}
	}
	return next
}

// wake has the head of a session driven, where it is due (nil: it is).
func (c *coordinator) wake(t *task, lane wire.BatchKey, due func(*task, wire.BatchKey) (bool, error)) {
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
			if err == nil && (session.DecideResume(seen) == session.Leave || !c.driveLane(t, head, nil)) {
				return
			}
		}
		t.sleep(wait)
	}
}

// waitsForPeople reports whether a batch may rest.
func (c *coordinator) waitsForPeople(t *task, key wire.BatchKey) (bool, error) {
	known, err := t.truth().Calls(anytime, key)
	return err == nil && recall.WaitsForPeople(known), err
}

// rest ends the drive when the batch only waits for people, and reports whether it did.
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
		if d.nudged || len(d.heard) > 0 {
			return false
		}
		d.resting = until
		delete(d.coordinator.live, d.sub.Key)
		d.tally["rests"]++
		return true
	}
	return false
}

// lookOnce is a look that no other follows for minutes.
func (d *drive) lookOnce() {
	var events []batch.Event
	_ = d.insist(func() error {
		known, err := d.truth().Calls(anytime, d.sub.Key)
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

// look reads the journal because somebody said so.
func (d *drive) look() {
	if _, rests := d.machine.Rest(); rests {
		d.lookOnce()
		return
	}
	for _, e := range d.perform(batch.Look{}) {
		d.step(e)
	}
}

// recorded is the record of a call as an event.
func recorded(index int, e entry) batch.Recorded {
	return recall.Recorded(index, e.record, e.seq, local)
}
