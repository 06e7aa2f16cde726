package soak

import (
	"github.com/toolfleet/toolfleet/messages"
)

// order checks each session: a write starts when every call before it is over, and a call starts when every
// write before it is over. The calls of a session follow one another as its batches do, and in a batch as the
// model emitted them.
func (c *checker) order() {
	type progress struct {
		write, any  int // the last place at which a write, and any call, was over
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
					c.report(Order, key.String(), "%s started it in line %d, and %s was over in line %d", s.Worker, s.place+1, whose, before+1)
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

// result is the result of a call, or nil while the batch has none.
func (b *Batch) result(i int) *messages.Result {
	if i >= len(b.Reply.Results) {
		return nil
	}
	return &b.Reply.Results[i]
}

// lastPlace is the place in the ledger behind which a call is over, or -1 where the ledger cannot tell.
//
// For a write whose outcome is known it is the end of the run that the result is of; for one whose outcome is
// not, its last start that a target would have taken: what a lost worker left running may end whenever it
// does. A read may be run again behind everybody's back, so it is its first end, and nothing for one that
// did not end well: it may have been given up.
func lastPlace(r *runs, result *messages.Result, write bool) int {
	at := -1
	if !write {
		if result != nil && result.Status == messages.StatusOK && len(r.ends) > 0 {
			at = r.ends[0].place
		}
		return at
	}
	for _, s := range r.starts {
		if !s.shut {
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
