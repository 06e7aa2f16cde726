package sim

import "time"

// fault is what goes wrong with one command on its way to the server or back.
type fault int

const (
	none      fault = iota
	lost            // it never arrives
	ackLost         // it arrives; the answer does not
	late            // it arrives when its sender has given up waiting
	slow            // it takes its time
	dies            // its sender dies first
	diesAfter       // its sender dies before it hears the answer
)

var faultNames = [...]string{"", "is lost", "is done, the answer is lost", "arrives late", "is slow", "never given", "is done, and nobody hears the answer"}

// Faults decides what goes wrong.
type Faults interface {
	// before is asked before every command what becomes of it.
	before(p *process) fault
	// between is asked before anybody goes on: it may kill and pause processes, and restart the server.
	between(w *World)
	// skip moves the clock on although somebody could act: everybody is slow for a moment.
	skip(w *World) bool
	// delay is how long something takes that takes its time.
	delay() time.Duration
}

// callTimeout is how long a party waits for the server's answer.
const callTimeout = 5 * time.Second

// ask gives the server one command and waits for its answer. ErrUnknown: none came.
func (t *task) ask(what, subject string, do func() error) error {
	return t.askUntil(never, what, subject, do)
}

// askUntil is ask with a time past which no answer is waited for.
func (t *task) askUntil(deadline time.Time, what, subject string, do func() error) error {
	t.wait(t.Now, nil)
	f := t.order(what, subject)
	giveUp := t.Now.Add(callTimeout)
	if deadline.Before(giveUp) {
		giveUp = deadline
	}
	arrives := t.Now
	if f == slow || f == late {
		arrives = arrives.Add(t.faults.delay())
	}
	err := error(ErrUnknown)
	switch {
	case f == lost:
	case f == late || arrives.After(giveUp):
		f = late
		t.inFlight = append(t.inFlight, inFlight{arrives, func() { _ = do() }})
	default:
		t.wait(arrives, nil)
		err = do()
	}
	t.mayDie()
	if f == lost || f == ackLost || f == late {
		err = ErrUnknown
		t.wait(giveUp, nil)
	}
	if err != nil {
		t.logf(t.name, "  ->", "%v", err)
	}
	return err
}

// tell gives the server one command and does not hear what became of it.
func (t *task) tell(what, subject string, do func()) {
	t.wait(t.Now, nil)
	switch t.order(what, subject) {
	case none, ackLost, diesAfter:
		do()
	case late, slow:
		t.inFlight = append(t.inFlight, inFlight{t.Now.Add(t.faults.delay()), do})
	}
	t.mayDie()
}

// order counts a command, and asks what goes wrong with it.
func (t *task) order(what, subject string) fault {
	t.commands++
	f := t.faults.before(t.process)
	t.logf(t.name, what, "%s  %s", subject, faultNames[f])
	t.tally["commands"]++
	if f != none {
		t.tally["faulty commands"]++
	}
	t.doomed = t.doomed || f == dies || f == diesAfter
	if f == dies {
		t.mayDie()
	}
	return f
}

// mayDie does not return in a process that is about to die.
func (t *task) mayDie() {
	if t.doomed {
		t.wait(never, nil)
	}
}

// pull takes a delivery. One that is lost on the way counts as delivered all the same.
func (t *task) pull(q *Queue) (d *Delivery) {
	t.wait(t.Now, nil)
	f := t.order("pull", q.Stream)
	if f != lost {
		d = t.Pull(q)
	}
	t.mayDie()
	if f == ackLost || f == late {
		d = nil
	}
	if d != nil {
		t.logf(t.name, "  <-", "%s at %d, delivery %d", d.Subject, d.Seq, d.Count)
	}
	return d
}

func (t *task) nak(d *Delivery, delay time.Duration) {
	t.tell("nak", d.Subject, func() { d.Nak(delay) })
}
