package world

import (
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/sim/broker"
)

// fault is what happens to a command on its way to the server and back.
type fault int

const (
	none      fault = iota
	lost            // the command never arrives
	ackLost         // the command arrives, but its answer does not
	late            // the command arrives after its sender has given up waiting
	slow            // the command takes long
	dies            // the sender dies before it sends the command
	diesAfter       // the sender dies before it gets the answer
	cutOff          // the command arrives; the server restarts before it answers
)

var faultNames = [...]string{
	"", "is lost", "is done, the answer is lost", "arrives late", "is slow", "never given", "is done, and nobody hears the answer",
	"is done, and the server restarts before it answers",
}

// Faults decides which faults are injected.
type Faults interface {
	// before returns the fault of a command. It is called before every command.
	before(p *Process) fault
	// between is called before every step. It may kill and pause processes, and restart the
	// server.
	between(w *World)
	// breaks is called at every step of a driver. If it returns true, the driver cannot
	// continue the batch, as after a bug or with a damaged record.
	breaks(p *Process) bool
	// skip reports whether the clock moves although a process could act. It simulates a moment
	// in which all processes are slow.
	skip(w *World) bool
	// delay returns how long a slow command takes.
	delay() time.Duration
}

// CallTimeout is how long a process waits for an answer of the server.
const CallTimeout = 5 * time.Second

// Ask sends one command to the server and waits for the answer. If no answer comes, it returns
// bus.ErrUnknown.
func (t *Task) Ask(what, subject string, do func() error) error {
	return t.AskUntil(Never, what, subject, do)
}

// ReadUntil is like AskUntil, for a command that only reads. After a restart, the server needs
// longer until it answers reads than until it answers writes.
func (t *Task) ReadUntil(deadline time.Time, what, subject string, do func() error) error {
	return t.AskUntil(deadline, what, subject, func() error {
		if t.Now.Before(t.unready) {
			return bus.ErrUnknown
		}
		return do()
	})
}

// AskUntil is like Ask, but stops waiting at the deadline.
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
	case away: // the sender notices at once that the server is away
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

// Tell sends one command to the server. It does not wait for an answer.
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

// order counts a command and returns the fault that hits it.
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

// mayDie ends the task at this point if its process is about to die.
func (t *Task) mayDie() {
	if t.Doomed {
		t.Wait(Never, nil)
	}
}

// Take takes a delivery from a queue. A delivery that is lost on its way counts as delivered.
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

// Insist repeats try until it succeeds, or until its error is terminal.
func (t *Task) Insist(try func() error) error {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		err := try()
		if err == nil || bus.IsTerminal(err) {
			return err
		}
		t.Sleep(wait)
	}
}
