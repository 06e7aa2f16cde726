package world

import (
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/sim/broker"
)

// fault is what goes wrong with one command on its way to the server or back.
type fault int

const (
	none      fault = iota
	lost            // it Never arrives
	ackLost         // it arrives; the answer does not
	late            // it arrives when its sender has given up waiting
	slow            // it takes its time
	dies            // its sender dies first
	diesAfter       // its sender dies before it hears the answer
	cutOff          // it arrives; the server restarts before it answers, and is away for a while
)

var faultNames = [...]string{
	"", "is lost", "is done, the answer is lost", "arrives late", "is slow", "never given", "is done, and nobody hears the answer",
	"is done, and the server restarts before it answers",
}

// Faults decides what goes wrong.
type Faults interface {
	// before is asked before every command what becomes of it.
	before(p *Process) fault
	// between is asked before anybody goes on: it may kill and pause processes, and restart the
	// server.
	between(w *World)
	// breaks is asked at every step of a driver: a bug in it, or a damaged record, ends the
	// driver's work on the batch.
	breaks(p *Process) bool
	// skip moves the clock on although somebody could act: everybody is slow for a moment.
	skip(w *World) bool
	// delay is how long something takes that takes its time.
	delay() time.Duration
}

// CallTimeout is how long a party waits for the server's answer.
const CallTimeout = 5 * time.Second

// Ask gives the server one command and waits for its answer. bus.ErrUnknown: none came.
func (t *Task) Ask(what, subject string, do func() error) error {
	return t.AskUntil(Never, what, subject, do)
}

// ReadUntil is AskUntil for a command that changes nothing. A server that has restarted takes
// writes before it reads.
func (t *Task) ReadUntil(deadline time.Time, what, subject string, do func() error) error {
	return t.AskUntil(deadline, what, subject, func() error {
		if t.Now.Before(t.unready) {
			return bus.ErrUnknown
		}
		return do()
	})
}

// AskUntil is Ask with a time past which no answer is waited for.
func (t *Task) AskUntil(deadline time.Time, what, subject string, do func() error) error {
	t.Wait(t.Now, nil)
	f := t.order(what, subject)
	giveUp := t.Now.Add(CallTimeout)
	if deadline.Before(giveUp) {
		giveUp = deadline
	}
	arrives := t.Now
	if f == slow || f == late {
		arrives = arrives.Add(t.faults.delay())
	}
	err := error(bus.ErrUnknown)
	away := t.Now.Before(t.away)
	switch {
	case f == lost, away:
	case f == late || arrives.After(giveUp):
		f = late
		t.inFlight = append(t.inFlight, inFlight{arrives, func() { _ = do() }})
	default:
		t.Wait(arrives, nil)
		err = do()
	}
	if f == cutOff && !away {
		t.outage(2 * time.Second)
		err = bus.ErrUnknown
		t.Wait(t.Now.Add(50*time.Millisecond), nil)
	}
	t.mayDie()
	switch {
	case away: // which is known at once
		t.Wait(t.Now.Add(50*time.Millisecond), nil)
	case f == lost || f == ackLost || f == late:
		err = bus.ErrUnknown
		t.Wait(giveUp, nil)
	}
	if err != nil {
		t.Logf(t.Name, "  ->", "%v", err)
	}
	return err
}

// Tell gives the server one command and does not hear what became of it.
func (t *Task) Tell(what, subject string, do func()) {
	t.Wait(t.Now, nil)
	switch f := t.order(what, subject); {
	case t.Now.Before(t.away):
	case f == none, f == ackLost, f == diesAfter:
		do()
	case f == cutOff:
		do()
		t.outage(2 * time.Second)
	case f == late, f == slow:
		t.inFlight = append(t.inFlight, inFlight{t.Now.Add(t.faults.delay()), do})
	}
	t.mayDie()
}

// order counts a command, and asks what goes wrong with it.
func (t *Task) order(what, subject string) fault {
	t.commands++
	f := t.faults.before(t.Process)
	t.Logf(t.Name, what, "%s  %s", subject, faultNames[f])
	t.Count("commands")
	if f != none {
		t.Disturbed = t.Now
		t.Count("faulty commands")
	}
	t.Doomed = t.Doomed || f == dies || f == diesAfter
	if f == dies {
		t.mayDie()
	}
	return f
}

// mayDie does not return in a process that is about to die.
func (t *Task) mayDie() {
	if t.Doomed {
		t.Wait(Never, nil)
	}
}

// Take takes a delivery. One that is lost on the way counts as delivered all the same.
func (t *Task) Take(q *broker.Queue) (d *broker.Delivery) {
	t.Wait(t.Now, nil)
	f := t.order("pull", q.Stream)
	if f != lost && !t.Now.Before(t.away) {
		d = t.Pull(q)
	}
	if f == cutOff {
		t.outage(2 * time.Second)
	}
	t.mayDie()
	if f == ackLost || f == late || f == cutOff {
		d = nil
	}
	if d == nil && t.Now.Before(t.away) {
		t.Wait(t.away, nil)
	}
	if d != nil {
		t.Logf(t.Name, "  <-", "%s at %d, delivery %d", d.Subject, d.Seq, d.Count)
	}
	return d
}

// Nak hands a delivery back.
func (t *Task) Nak(d *broker.Delivery, delay time.Duration) {
	t.Tell("nak", d.Subject, func() { d.Nak(delay) })
}

// Insist repeats what must happen before anything else can, until it does or never can.
func (t *Task) Insist(try func() error) error {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		err := try()
		if err == nil || bus.IsTerminal(err) {
			return err
		}
		t.Sleep(wait)
	}
}
