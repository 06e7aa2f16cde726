package session

import (
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/batch"
)

// The batches of a session may overlap. A call that may run beside others may start before an
// earlier batch is over, if the earlier batch has only such calls left. An exclusive call
// starts only when every earlier batch is over.
//
// What a batch may start depends only on stored facts about earlier batches. Such a fact stays
// true once it is stored. So a coordinator that knows only some of the facts starts too
// little, never too much.

// Standing is what is known about one batch in the line.
type Standing struct {
	// Over says that the batch is answered: its reply is stored, or a read of the log has
	// found a later batch and no longer this one.
	Over bool
	// Passable says that later batches may start calls beside this one. See
	// [batch.Machine.Passable].
	Passable bool
	// Safe says that the next calls of the batch may run beside other calls, also beside calls
	// of earlier batches.
	Safe    bool
	Running int // calls that have a place in the window
	Held    int // calls that start as soon as the window has room for them
}

// Turns returns what each batch of the line may start. The line has the batches of a session
// in the order of the log and without gaps, from the oldest that is not over. At most window
// calls of the session may be out at once, and earlier batches come first. A batch is Passed
// in two cases: the next batch has safe calls to start beside it, or the next batch is
// Passable and itself Passed.
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
	passed := false // a later batch wants to start calls beside the batch at hand
	for i, s := range slices.Backward(line) {
		if !s.Over {
			turns[i].Passed = passed && turns[i].May != batch.Nothing
			passed = s.Safe || s.Passable && passed
		}
	}
	return turns
}

// Line has the batches of a session that one coordinator drives, in the order of the log and
// without gaps. B is the coordinator's type for a batch.
type Line[B comparable] struct {
	Window  int // calls of the session that may be out at the same time
	members []*member[B]
}

type member[B comparable] struct {
	batch    B
	seq      uint64
	stored   time.Time
	size     int
	standing Standing
	turn     batch.Turn
	resting  time.Time // latest time until which the batch only waits; zero: it has something to do
}

// Add adds a batch to the end of the line. seq is its sequence in the log, stored the time
// when the log stored it, size the size of its body.
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

// GiveTurns works out again what each batch may start. It returns the batches for which this
// has changed.
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

// Rest records that a batch only waits, for people or for an earlier batch, until this time at
// the latest. The zero time records that it has something to do again.
func (l *Line[B]) Rest(b B, until time.Time) { l.find(b).resting = until }

// Resting reports whether every batch only waits. until is the earliest time at which a batch
// must go on.
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

// Last returns the sequence of the last batch that is not over, or 0 if there is none. The
// next batch of the log comes after that sequence. A batch that is over may have a higher
// sequence than the next one: after a restart, the server may give the sequence of a batch
// that has left the log to a new batch.
func (l *Line[B]) Last() uint64 {
	for _, m := range slices.Backward(l.members) {
		if !m.standing.Over {
			return m.seq
		}
	}
	return 0
}

// Holds reports whether the batch with this sequence and time is in the line.
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
