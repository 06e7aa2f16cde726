package client

import (
	"slices"

	"github.com/toolfleet/toolfleet/messages"
)

// feed decides which events of one batch are shown, and when. It gets them from two sources.
// The timeline of the batch has the durable events, in order. Live events come at once, but
// may be lost and may come in any order. So a live event of a durable kind is not shown at
// once: it is the signal to read the timeline. Progress, hook messages, and runs of calls that
// need no claim come only as live events. A feed does no I/O.
type feed struct {
	id    messages.BatchID
	shown map[eventKey]bool
	calls map[int]*callFeed // the calls whose start was shown
	// arrived holds live events that are not shown yet, because the timeline may have events that
	// come before them.
	arrived []messages.Event
}

// callFeed records which events of one call were shown.
type callFeed struct {
	ended   bool
	attempt int // the newest attempt
	counter int // of that attempt's newest progress
}

// eventKey identifies a durable event of a batch.
type eventKey struct {
	kind     messages.EventType
	index    int
	attempt  int    // of a running event
	question string // of an awaiting_approval event
}

func keyOf(e messages.Event) eventKey {
	key := eventKey{kind: e.Type, index: e.Index}
	switch {
	case e.Type == messages.EventRunning:
		key.attempt = e.Attempt
	case e.Approval != nil:
		key.question = e.Approval.ID
	}
	return key
}

func newFeed(id messages.BatchID) *feed {
	return &feed{id: id, shown: map[eventKey]bool{}, calls: map[int]*callFeed{}}
}

// begun reports whether an event was shown.
func (f *feed) begun() bool { return len(f.shown) > 0 }

// maxArrived is how many live events may wait for a timeline. More are dropped: the timeline has
// the durable ones.
const maxArrived = 1 << 12

// live takes a live event and returns the events to show now. hint reports whether the
// timeline should be read, because it may have something new.
func (f *feed) live(e messages.Event) (show []messages.Event, hint bool) {
	if c := f.calls[e.Index]; c != nil {
		switch e.Type {
		case messages.EventHook:
			return f.pass(e), false
		case messages.EventProgress:
			if c.ended || e.Attempt <= c.attempt {
				return f.pass(e), false
			}
		}
	}
	if f.shown[keyOf(e)] {
		return nil, false
	}
	if len(f.arrived) < maxArrived {
		f.arrived = append(f.arrived, e)
	}
	return nil, true
}

// timeline takes the events of a timeline and returns what to show now: the events of the
// timeline that were not shown yet, and then the live events that waited for it. covered is
// how many live events had arrived when the timeline was requested: the timeline surely has
// these, but later ones may be missing from it.
func (f *feed) timeline(events []messages.Event, covered int) (show []messages.Event) {
	live := map[eventKey]messages.Event{}
	for _, e := range f.arrived {
		live[keyOf(e)] = e
	}
	for _, e := range events {
		key := keyOf(e)
		if f.shown[key] {
			continue
		}
		f.shown[key] = true
		switch e.Type {
		case messages.EventRunning:
			if !f.call(e.Index).runs(e.Attempt) {
				continue // a later attempt was already shown, live
			}
		case messages.EventEnd:
			f.call(e.Index).ended = true
		case messages.EventStart:
			f.call(e.Index)
		}
		// The live event may have more than the journal, for example the stage.
		if heard, ok := live[key]; ok {
			e = heard
		}
		show = append(show, e)
	}
	for _, e := range f.arrived[:covered] {
		show = append(show, f.pass(e)...)
	}
	f.arrived = slices.Clone(f.arrived[covered:])
	return show
}

// pass returns what to show for a live event once everything before it was shown: progress, hook
// messages, and new attempts of a call that has not ended.
func (f *feed) pass(e messages.Event) (show []messages.Event) {
	c := f.calls[e.Index]
	if c == nil || c.ended {
		return nil
	}
	switch e.Type {
	case messages.EventHook:
		show = append(show, e)
	case messages.EventRunning, messages.EventProgress:
		if c.runs(e.Attempt) { // its running event may have been missed
			running := e
			running.Type, running.Progress = messages.EventRunning, nil
			f.shown[keyOf(running)] = true
			show = append(show, running)
		}
		if e.Progress != nil && e.Attempt == c.attempt && e.Counter > c.counter {
			c.counter = e.Counter
			show = append(show, e)
		}
	}
	return show
}

func (f *feed) call(index int) *callFeed {
	c := f.calls[index]
	if c == nil {
		c = &callFeed{}
		f.calls[index] = c
	}
	return c
}

// runs records an attempt and reports whether it is new.
func (c *callFeed) runs(attempt int) bool {
	if attempt <= c.attempt {
		return false
	}
	c.attempt, c.counter = attempt, 0
	return true
}
