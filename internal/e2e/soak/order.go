package soak

import (
	"github.com/toolfleet/toolfleet/messages"
)

// order checks each session: a write starts after every earlier call has ended, and a call
// starts after every earlier write has ended. The calls are in the order of the session's
// batches, and within a batch in the order of the provider message.
func (c *checker) order() {
	type progress struct {
		write, any  int // last ledger lines at which a write, or any call, had ended
		writer, who callKey
	}
	sessions := map[string]*progress{}
	for _, b := range c.Batches {
		p := sessions[b.Session]
		if p == nil {
			p = &progress{write: -1, any: -1}
			sessions[b.Session] = p
		}
		for i, call := range b.Calls {
			key := callKey{b.ID, i}
			r := c.runs[key]
			if r == nil {
				continue
			}
			writes := Tools[call.Tool].Kind == messages.KindWrite
			before, whose := p.write, p.writer
			if writes {
				before, whose = p.any, p.who
			}
			for _, s := range r.starts {
				if s.place < before {
					c.report(Order, key.String(), "%s started it in line %d, and %s ended in line %d",
						s.Worker, s.place+1, whose, before+1)
				}
			}
			at := lastPlace(r, b.result(i), writes)
			if at > p.any {
				p.any, p.who = at, key
			}
			if writes && at > p.write {
				p.write, p.writer = at, key
			}
		}
	}
}

// result returns the result of a call, or nil if the batch has no reply.
func (b *Batch) result(i int) *messages.Result {
	if i >= len(b.Reply.Results) {
		return nil
	}
	return &b.Reply.Results[i]
}

// lastPlace returns the line of the ledger after which a call has ended, or -1 if the ledger
// does not show it.
//
// A write with a known outcome ends with the run that gave the result. A write with an unknown
// outcome ends with its last start that a tool which checks fences accepts, because the run of
// a lost worker may end at any time. A read that succeeded ends with its first end, because a
// later run of it has no effect. Any other read has no known end, because the fleet may have
// ended it before it ran.
func lastPlace(r *runs, result *messages.Result, write bool) int {
	at := -1
	if !write {
		if result != nil && result.Status == messages.StatusOK && len(r.ends) > 0 {
			at = r.ends[0].place
		}
		return at
	}
	for _, s := range r.starts {
		if !s.staleFence {
			at = max(at, s.place)
		}
	}
	for _, e := range r.ends {
		if result != nil && result.Status != messages.StatusOutcomeUnknown && e.Attempt == result.Attempt {
			at = max(at, e.place)
		}
	}
	return at
}
