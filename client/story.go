package client

import (
	"cmp"
	"slices"

	"github.com/toolfleet/toolfleet/messages"
)

// story is what was told of a batch, so that everything is told once and in an order that makes sense: of each call its start,
// then its questions and attempts one after another, its end, its result; then the reply. News over core NATS may be lost, and
// comes again when a batch is taken over by another coordinator or told from the journal.
type story struct {
	calls   map[int]*toldCall
	results []messages.Event // that wait: all calls have ended before the first is told, and they are told in call order
	inOrder int              // how many were told
	replied bool
}

// toldCall is how far the telling of one call is.
type toldCall struct {
	started, ended, result bool // of its result: that it is known
	attempt                int  // the newest that was told
	counter                int  // of its newest report
	fraction               float64
	questions              map[string]bool
}

func newStory() *story { return &story{calls: map[int]*toldCall{}} }

// gap reports whether something durable must have been missed that comes before an event: its call has not been started, its
// attempt is not known and has ended, or the batch has a reply and a call of it has no result.
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
	if e.Index < 0 || e.Index >= messages.MaxCalls { // of no call
		return false
	}
	c := s.call(e.Index)
	ends := e.Type == messages.EventEnd || e.Type == messages.EventResult
	return !c.started || ends && !c.ended && e.Attempt > c.attempt // of one that never ran it is 0
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

// outcomes is the results that can be told, and before them the ends that were missed: a result says what they did.
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
