package client

import (
	"cmp"
	"slices"

	"github.com/toolfleet/toolfleet/messages"
)

// story records what was delivered of a batch, so that each event is delivered once and in a
// sensible order: for each call its start, then its questions and attempts, its end, its result;
// then the reply. Events over core NATS may be lost. They come again when another coordinator takes
// a batch over, or from a timeline.
type story struct {
	calls map[int]*toldCall
	// results wait: every call ends before the first result is delivered, and results come in call
	// order.
	results []messages.Event
	inOrder int // how many results were delivered; the index of the next
	replied bool
}

// toldCall is how far one call was delivered.
type toldCall struct {
	started, ended, result bool // result: it is known, maybe not delivered yet
	attempt                int  // the newest attempt that was delivered
	counter                int  // of that attempt's newest progress
	fraction               float64
	questions              map[string]bool
}

func newStory() *story { return &story{calls: map[int]*toldCall{}} }

// gap reports whether a durable event that comes before e must have been missed: the call of e has
// not been started, its ended attempt is not known, or e is the reply and a call has no result (or
// no call is known at all).
func (s *story) gap(e messages.Event) bool {
	switch e.Type {
	case messages.EventStart:
		return false
	case messages.EventReply:
		for _, c := range s.calls {
			if !c.result {
				return true
			}
		}
		return len(s.calls) == 0
	}
	if e.Index < 0 || e.Index >= messages.MaxCalls { // the event is about no call
		return false
	}
	c := s.call(e.Index)
	ends := e.Type == messages.EventEnd || e.Type == messages.EventResult
	// A call that never ran ends with attempt 0.
	return !c.started || ends && !c.ended && e.Attempt > c.attempt
}

func (s *story) call(index int) *toldCall {
	c := s.calls[index]
	if c == nil {
		c = &toldCall{questions: map[string]bool{}}
		s.calls[index] = c
	}
	return c
}

// next returns the events to deliver because of e: e itself, or nothing if e was delivered or
// overtaken. An attempt that is only known from its progress is delivered too, as a running event:
// for a call that does not claim, the journal knows no more.
func (s *story) next(e messages.Event) []messages.Event {
	if s.replied || e.Index >= messages.MaxCalls {
		return nil
	}
	if e.Index < 0 {
		if s.replied = e.Type == messages.EventReply; !s.replied {
			return nil
		}
		return append(s.outcomes(), e)
	}
	c := s.call(e.Index)
	switch e.Type {
	case messages.EventStart:
		defer func() { c.started = true }()
		return only(!c.started, e)
	case messages.EventRunning:
		return only(c.runs(e.Attempt), e)
	case messages.EventProgress:
		return c.progress(e)
	case messages.EventAwaiting:
		if e.Approval == nil || c.questions[e.Approval.ID] {
			return nil
		}
		c.questions[e.Approval.ID] = true
		return only(!c.ended, e)
	case messages.EventEnd:
		told := only(!c.ended, e)
		c.ended = true
		return append(told, s.outcomes()...)
	case messages.EventResult:
		if !c.result {
			c.result, s.results = true, append(s.results, e)
		}
		return s.outcomes()
	}
	return only(!c.ended, e)
}

// outcomes returns the results that can be delivered now. It makes an end event from the result of
// each call whose end was missed, and puts these first.
func (s *story) outcomes() (told []messages.Event) {
	if len(s.results) == 0 {
		return nil
	}
	for _, c := range s.calls {
		if !c.ended && !c.result && !s.replied {
			return nil
		}
	}
	slices.SortStableFunc(s.results, func(a, b messages.Event) int { return cmp.Compare(a.Index, b.Index) })
	for _, e := range s.results {
		if c := s.call(e.Index); !c.ended {
			c.ended, e.Type = true, messages.EventEnd
			told = append(told, e)
		}
	}
	for len(s.results) > 0 && (s.results[0].Index == s.inOrder || s.replied) {
		told, s.results = append(told, s.results[0]), s.results[1:]
		s.inOrder++
	}
	return told
}

// only returns e if it is fresh, and else nothing.
func only(fresh bool, e messages.Event) []messages.Event {
	if !fresh {
		return nil
	}
	return []messages.Event{e}
}

// runs records an attempt, and reports whether it is new.
func (c *toldCall) runs(attempt int) bool {
	if c.ended || attempt <= c.attempt {
		return false
	}
	c.attempt, c.counter, c.fraction = attempt, 0, 0
	return true
}

// progress returns the progress event if it is newer than the last, and before it a running event
// if its attempt was not known. A fraction never goes back within one attempt.
func (c *toldCall) progress(e messages.Event) []messages.Event {
	var told []messages.Event
	if e.Progress == nil {
		return nil
	}
	if c.runs(e.Attempt) {
		running := e
		running.Type, running.Progress = messages.EventRunning, nil
		told = append(told, running)
	}
	if c.ended || e.Attempt != c.attempt || e.Counter <= c.counter || e.Progress.Fraction < c.fraction {
		return told
	}
	c.counter, c.fraction = e.Counter, e.Progress.Fraction
	return append(told, e)
}
