package client

import (
	"github.com/toolfleet/toolfleet/messages"
)

// story is what was told of a batch, so that everything is told once and in an order that makes sense: of each call its start,
// then its questions and attempts one after another, its end, its result; then the reply. News over core NATS may be lost, and
// comes again when a batch is taken over by another coordinator or told from the journal.
type story struct {
	calls   map[int]*toldCall
	replied bool
}

// toldCall is how far the telling of one call is.
type toldCall struct {
	started, ended, result bool
	attempt                int // the newest that was told
	counter                int // of its newest report
	fraction               float64
	questions              map[string]bool
}

func newStory() *story { return &story{calls: map[int]*toldCall{}} }

// gap reports whether something durable must have been missed that comes before an event: its call has not been started, its
// attempt is not known and it has ended, or the batch has a reply and a call of it has no result.
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
	case messages.EventResult:
		return !s.call(e.Index).ended
	case messages.EventEnd:
		return !s.call(e.Index).started || e.Attempt > s.call(e.Index).attempt // of one that never ran it is 0
	}
	return !s.call(e.Index).started
}

func (s *story) call(index int) *toldCall {
	c := s.calls[index]
	if c == nil {
		c = &toldCall{questions: map[string]bool{}}
		s.calls[index] = c
	}
	return c
}

// next is what is to be told because of an event: the event, or nothing where it was told or has been overtaken. An attempt
// that is only known by its progress is told as well: of a call that does not claim the journal knows no more.
func (s *story) next(e messages.Event) []messages.Event {
	if s.replied || e.Index >= messages.MaxCalls {
		return nil
	}
	if e.Index < 0 {
		s.replied = e.Type == messages.EventReply
		return only(s.replied, e)
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
		defer func() { c.ended = true }()
		return only(!c.ended, e)
	case messages.EventResult:
		defer func() { c.ended, c.result = true, true }()
		return only(!c.result, e)
	}
	return only(!c.ended, e)
}

func only(fresh bool, e messages.Event) []messages.Event {
	if !fresh {
		return nil
	}
	return []messages.Event{e}
}

// runs notes down an attempt, and reports whether it is a new one.
func (c *toldCall) runs(attempt int) bool {
	if c.ended || attempt <= c.attempt {
		return false
	}
	c.attempt, c.counter, c.fraction = attempt, 0, 0
	return true
}

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
