package session

import (
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/batch"
)

// The batches of a session overlap: a call that may run beside others starts although an earlier
// batch still runs such calls. An exclusive call starts when every earlier batch is over.
//
// Stored facts about earlier batches decide what a batch may start, and a stored fact stays true.
// So a coordinator that knows only some of the facts starts nothing that may not start.

// Standing is what is known about one batch of the line.
type Standing struct {
	// Over says that it is answered: its reply is stored, or a reading of the log found a later
	// batch and not this one.
	Over bool
	// Passable says that later batches may start calls beside it. See [batch.Machine.Passable].
	Passable bool
	// Safe says that the calls which it starts next may run beside others, also beside those of
	// earlier batches.
	Safe    bool
	Running int // calls that have a place in the window
	Held    int // calls that start as soon as the window has room for them
}

// Turns returns what each batch of the line may start. The line has the batches of a session in the
// order of the log, from the oldest that is not over, without gaps. At most window calls of the
// session may be out at a time, and earlier batches come first. A batch is passed if the next batch
// starts safe calls beside it, or is passed itself.
func Turns(line []Standing, window int) []batch.Turn {
	turns := make([]batch.Turn, len(line))
	running := 0
	for _, s := range line {
		running += s.Running
	}
	may, held := batch.Everything, 0
	for i, s := range line {
		turns[i].May = may
		if may != batch.Nothing {
			turns[i].Room = max(window-(running-s.Running)-held, 0)
		}
		held += s.Held
		switch {
		case s.Over:
		case s.Passable && may != batch.Nothing:
			may = batch.SafeCalls
		default:
			may = batch.Nothing
		}
	}
	passed := false // a later batch wants to pass this one
	for i, s := range slices.Backward(line) {
		if !s.Over {
			turns[i].Passed = passed && turns[i].May != batch.Nothing
			passed = s.Safe || s.Passable && passed
		}
	}
	return turns
}

// Line is the batches of a session that one coordinator drives, in the order of the log and without
// gaps. B is what the coordinator uses to name a batch.
type Line[B comparable] struct {
	Window  int // calls of the session that may have a place at the same time
	members []*member[B]
}

type member[B comparable] struct {
	batch    B
	seq      uint64
	stored   time.Time
	size     int
	standing Standing
	turn     batch.Turn
	resting  time.Time // until when it only waits; zero: it does not
}

// Add adds a batch to the end of the line, with its sequence in the log, the time when the log
// stored it, and the size of its body.
func (l *Line[B]) Add(b B, seq uint64, stored time.Time, size int) {
	l.members = append(l.members, &member[B]{batch: b, seq: seq, stored: stored, size: size})
	l.members[len(l.members)-1].turn.May = batch.Nothing
}

// Remove removes a batch that has left the log.
func (l *Line[B]) Remove(b B) {
	l.members = slices.DeleteFunc(l.members, func(m *member[B]) bool { return m.batch == b })
}

// Set updates the standing of a batch. A batch that is over stays over.
func (l *Line[B]) Set(b B, s Standing) {
	m := l.find(b)
	s.Over = s.Over || m.standing.Over
	m.standing = s
}

// Over records that the reply of a batch is stored.
func (l *Line[B]) Over(b B) { l.find(b).standing.Over = true }

// Turn returns what a batch may start.
func (l *Line[B]) Turn(b B) batch.Turn { return l.find(b).turn }

// GiveTurns works out anew what each batch may start. It returns the batches for which that has
// changed.
func (l *Line[B]) GiveTurns() (changed []B) {
	standings := make([]Standing, len(l.members))
	for i, m := range l.members {
		standings[i] = m.standing
	}
	for i, turn := range Turns(standings, l.Window) {
		if m := l.members[i]; m.turn != turn {
			m.turn = turn
			changed = append(changed, m.batch)
		}
	}
	return changed
}

// Rest records that a batch only waits, for people or for an earlier batch, and until when at most.
// The zero time says that it has something to do again.
func (l *Line[B]) Rest(b B, until time.Time) { l.find(b).resting = until }

// Resting reports whether every batch only waits, and until when at most.
func (l *Line[B]) Resting() (until time.Time, rests bool) {
	for i, m := range l.members {
		if m.resting.IsZero() {
			return time.Time{}, false
		}
		if i == 0 || m.resting.Before(until) {
			until = m.resting
		}
	}
	return until, len(l.members) > 0
}

// All returns the batches, in the order of the log.
func (l *Line[B]) All() []B {
	all := make([]B, len(l.members))
	for i, m := range l.members {
		all[i] = m.batch
	}
	return all
}

// Head returns the oldest batch that is not over.
func (l *Line[B]) Head() (b B, found bool) {
	for _, m := range l.members {
		if !m.standing.Over {
			return m.batch, true
		}
	}
	return b, false
}

// Empty reports whether the line holds no batch.
func (l *Line[B]) Empty() bool { return len(l.members) == 0 }

// Last returns the sequence of the last batch that is not over; 0: there is none. The next batch of
// the log is behind it, although a batch that is over may have a higher sequence: a server that
// restarts may give the sequence of a batch that has left the log to a new one.
func (l *Line[B]) Last() uint64 {
	for _, m := range slices.Backward(l.members) {
		if !m.standing.Over {
			return m.seq
		}
	}
	return 0
}

// Holds reports whether a batch of the log is in the line.
func (l *Line[B]) Holds(seq uint64, stored time.Time) bool {
	return slices.ContainsFunc(l.members, func(m *member[B]) bool { return m.seq == seq && m.stored.Equal(stored) })
}

// Successors returns the number of batches behind the first, and the size of their bodies.
func (l *Line[B]) Successors() (n, size int) {
	for _, m := range l.members[min(1, len(l.members)):] {
		n++
		size += m.size
	}
	return n, size
}

func (l *Line[B]) find(b B) *member[B] {
	for _, m := range l.members {
		if m.batch == b {
			return m
		}
	}
	return &member[B]{}
}
