package session

import (
	"fmt"
	"slices"
	"testing"
)

func TestTurn(t *testing.T) {
	for _, tt := range []struct {
		what string
		seen Observation
		want Action
	}{
		{"the oldest of its session", Observation{Seq: 5, Head: 5}, Drive},
		{"another comes first", Observation{Seq: 5, Head: 4}, AskPeers},
		{"another comes first, and it is delivered for the first time", Observation{Seq: 5, Head: 4, Deliveries: 1}, AskPeers},
		{"it has left the log, and a later one is the head", Observation{Seq: 5, Head: 9}, AskPeers},
		{"it has left the log, and nothing is behind it", Observation{Seq: 5}, Vanished},
		{"another comes first, and it was delivered before", Observation{Seq: 5, Head: 4, Deliveries: 2}, TakeOver},
		{"another comes first, and it was delivered a few times", Observation{Seq: 5, Head: 4, Deliveries: 3}, TakeOver},
		{"another comes first, and the session was suspended here lately", Observation{Seq: 5, Head: 4, Rests: true, Deliveries: 3}, Wait},
		{"the oldest of a session that was suspended here lately", Observation{Seq: 5, Head: 5, Rests: true, Deliveries: 3}, Drive},
		{"another comes first, and its session is driven here", Observation{Seq: 5, Head: 4, Here: true, Deliveries: 2}, Wait},
		{"another comes first, and its session is driven elsewhere", Observation{Seq: 5, Head: 4, Peer: true, Deliveries: 2}, Wait},
		{"another comes first, and this one is driven elsewhere", Observation{Seq: 5, Head: 4, Elsewhere: true, Deliveries: 2}, Wait},
		{"the oldest of a session that was driven elsewhere", Observation{Seq: 5, Head: 5, Peer: true, Deliveries: 1}, Drive},
		{"the oldest of its session, delivered again", Observation{Seq: 5, Head: 5, Deliveries: 2}, Drive},
		{"driven by another", Observation{Seq: 5, Head: 5, Elsewhere: true}, Wait},
		{"driven by another, and its reply is stored", Observation{Seq: 5, Head: 5, Elsewhere: true, Replied: true}, Answer},
		{"driven here", Observation{Seq: 5, Head: 5, Driven: true}, Join},
		{"driven here, and its reply is just stored", Observation{Seq: 5, Head: 5, Replied: true, Driven: true}, Join},
		{"submitted again after its end", Observation{Seq: 5, Head: 5, Replied: true}, Answer},
		{"submitted again behind another that runs", Observation{Seq: 5, Head: 4, Replied: true}, Answer},
		{"replied to, and out of the log already", Observation{Seq: 5, Replied: true}, Answer},
	} {
		if got := Decide(tt.seen); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.what, got, tt.want)
		}
	}
}

// entry is one batch in the log of a session, as the slow twin of the lane rule sees it.
type entry struct {
	seq     uint64
	gone    bool // it has left the log
	replied bool
	stray   bool // it came back into the log after its end, and the broker never delivers it again
}

// obvious decides by the lane rule with a view of the whole log.
func obvious(log []entry, i int, driven bool) Action {
	inLog := slices.ContainsFunc(log, func(e entry) bool { return !e.gone })
	before := slices.ContainsFunc(log[:i], func(e entry) bool { return !e.gone })
	switch {
	case driven:
		return Join
	case log[i].replied:
		return Answer
	case !inLog:
		return Vanished
	case log[i].gone || before:
		return AskPeers
	}
	return Drive
}

func headOf(log []entry) uint64 {
	for _, e := range log {
		if !e.gone {
			return e.seq
		}
	}
	return 0
}

func TestTurnAgreesWithItsTwin(t *testing.T) {
	for n := 1; n <= 4; n++ {
		for bits := range 1 << (2 * n) {
			log := make([]entry, n)
			for i := range log {
				log[i] = entry{seq: uint64(10 + i), gone: bits>>(2*i)&1 == 1, replied: bits>>(2*i)&2 == 2}
			}
			for i := range log {
				for _, driven := range []bool{false, true} {
					got := Decide(Observation{Seq: log[i].seq, Head: headOf(log), Replied: log[i].replied, Driven: driven})
					if want := obvious(log, i, driven); got != want {
						t.Errorf("log %+v, batch %d, driven %v: %v, want %v", log, i, driven, got, want)
					}
				}
			}
		}
	}
}

// hand is a coordinator in the model: what it does now, and what it has seen.
type hand struct {
	at      int // 0: nothing; 1: has seen whether there is a reply; 2: has seen the head too; 3: drives; 4: has stored the reply
	batch   int
	replied bool
	head    uint64
}

// lanes explores every state of a lane that two coordinators can bring about, even if what
// they have seen is old.
type lanes struct {
	t    *testing.T
	seen map[string]bool
	ends int
}

// explore goes on from a state by every step that is possible in it.
func (w *lanes) explore(log []entry, hands [2]hand) {
	state := fmt.Sprint(log, hands)
	if w.seen[state] || w.t.Failed() {
		return
	}
	w.seen[state] = true
	if headOf(log) == 0 {
		w.ends++
	}
	for who, h := range hands {
		step := func(h hand, log []entry) {
			next := hands
			next[who] = h
			w.explore(log, next)
		}
		switch h.at {
		case 0:
			for i, e := range log {
				if len(log) < 4 && !e.gone && e.replied && !e.stray { // a restart of the server brings it back
					left := with(log, i, func(e *entry) { e.stray = true })
					w.explore(left, hands)
				}
				if !e.gone && !e.stray { // the broker may deliver it at any time to any coordinator
					step(hand{at: 1, batch: i, replied: e.replied}, log)
				}
			}
		case 1:
			h.at, h.head = 2, headOf(log)
			step(h, log)
		case 2:
			switch Decide(Observation{Seq: log[h.batch].seq, Head: h.head, Replied: h.replied, Deliveries: 2}) {
			case TakeOver: // heads with a reply are removed, and the next one is driven
				for i, e := range log {
					if !e.gone && e.seq == headOf(log) && e.replied {
						step(h, with(log, i, func(e *entry) { e.gone = true }))
					}
					if !e.gone && e.seq == headOf(log) && !e.replied {
						driven := hand{at: 3, batch: i}
						w.leads(log, driven)
						step(driven, log)
					}
				}
				step(hand{}, log)
			case Drive:
				w.leads(log, h)
				h.at = 3
				step(h, log)
			case Answer:
				step(hand{}, with(log, h.batch, func(e *entry) { e.gone = true }))
			case Wait, AskPeers, Vanished:
				step(hand{}, log)
			case Join:
				w.t.Fatalf("%s: joined a drive that is not there", state)
			}
		case 3:
			h.at = 4
			step(h, with(log, h.batch, func(e *entry) { e.replied = true }))
			step(hand{}, log) // the coordinator dies or gives up the batch
		case 4:
			step(hand{}, log) // the coordinator dies after it stored the reply and before it removed the batch
			left := with(log, h.batch, func(e *entry) { e.gone = true })
			next := hand{}
			for i, e := range left {
				if e.seq == headOf(left) && !e.replied { // the next head
					next = hand{at: 3, batch: i}
					w.leads(left, next)
				}
			}
			step(next, left)
		}
	}
}

// leads checks the order of the lane: a batch is driven only if all earlier ones have ended.
func (w *lanes) leads(log []entry, h hand) {
	for _, e := range log[:h.batch] {
		if !e.replied {
			w.t.Errorf("log %+v: batch %d is driven before the end of %d", log, log[h.batch].seq, e.seq)
		}
	}
}

func with(log []entry, i int, change func(*entry)) []entry {
	log = slices.Clone(log)
	change(&log[i])
	return log
}

// Two coordinators drive up to four batches of a session, and some batches are submitted again
// after their end. The test tries every order of reads, ends and crashes: no batch is driven
// before an earlier one has ended.
func TestALaneStaysInOrderHoweverOldTheLooks(t *testing.T) {
	for n := 1; n <= 4; n++ {
		for again := range 1 << n {
			log := make([]entry, n)
			for i := range log {
				log[i] = entry{seq: uint64(1 + i), replied: again>>i&1 == 1}
			}
			w := lanes{t: t, seen: map[string]bool{}}
			w.explore(log, [2]hand{})
			if w.ends == 0 {
				t.Errorf("log %+v never drains", log)
			}
		}
	}
}

// A coordinator that reads the log now drives its head, whatever happened to the log before.
func TestAFreshLookAtTheHeadGoesOn(t *testing.T) {
	for _, replied := range []bool{false, true} {
		for _, driven := range []bool{false, true} {
			if got := Decide(Observation{Seq: 3, Head: 3, Replied: replied, Driven: driven}); got == Wait || got == AskPeers || got == Vanished {
				t.Errorf("the head (replied %v, driven %v) waits: %v", replied, driven, got)
			}
		}
	}
}
