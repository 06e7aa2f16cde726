package coordinator

import (
	"context"

	"github.com/toolfleet/toolfleet/internal/bus/pull"
	"github.com/toolfleet/toolfleet/internal/journal"
)

// Bounds on the bodies, in bytes, of batches behind the first of their session: in one session, and
// in all.
const (
	maxSuccessors    = 8 << 20
	maxAllSuccessors = 256 << 20
)

// returnOffer hands the offered delivery back to the broker if no batch has taken it.
func (s *sessionRun) returnOffer() {
	if s.offered != nil {
		s.c.decline(s.log, s.offered)
		s.offered = nil
	}
}

// readLog reads batches behind the driven ones, as many as the bounds allow, and starts to drive
// them. It answers and removes a batch that has its reply already: one that was submitted again, or
// came back into the log.
func (s *sessionRun) readLog(ctx context.Context) error {
	for s.c.serving.Load() { // when stopping, leave the next batch to the broker and a peer
		place, ok := s.place()
		if !ok {
			return nil
		}
		next, found, err := s.c.journal.Next(ctx, s.key.Tenant, s.key.Session, s.last())
		if err != nil || !found || !s.fits(next) || !place.hold(next) {
			place.free()
			return err
		}
		reply, replied, err := s.c.journal.ReplyTo(ctx, next)
		if err == nil && replied {
			if err = s.c.answerAgain(ctx, s.log, next, reply); err == nil {
				err = s.c.journal.Remove(ctx, next)
			}
		}
		if err != nil || replied {
			place.free()
		}
		if err != nil {
			return err
		}
		if replied {
			continue
		}
		var delivery *pull.Delivery
		if s.offered != nil && s.offered.Seq == next.Seq {
			delivery, s.offered = s.offered, nil
		}
		if !s.begin(ctx, next, delivery, place) {
			return nil
		}
	}
	return nil
}

// place is one of the places that all sessions share for batches behind the first of their session.
// A nil place is for a batch that needs none.
type place struct {
	c    *Coordinator
	size int64 // of the body
}

func (p *place) free() {
	if p != nil {
		p.c.successors.Release(1)
		p.c.bodies.Release(p.size)
	}
}

// hold reserves bytes for a body. It returns false if all sessions together hold too many.
func (p *place) hold(a journal.Accepted) bool {
	size := int64(len(a.Body))
	switch {
	case p == nil:
	case !p.c.bodies.TryAcquire(size):
		return false
	default:
		p.size = size
	}
	return true
}

// place takes a place for another batch. The first batch of the session needs none.
func (s *sessionRun) place() (p *place, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	successors, _ := s.line.Successors()
	s.full = s.line.Last() != 0 && successors+1 >= s.c.cfg.Lookahead
	switch {
	case s.line.Last() == 0:
		return nil, true
	case s.full || !s.c.successors.TryAcquire(1):
		return nil, false
	}
	return &place{c: s.c}, true
}

// fits reports whether the body of another batch may be held.
func (s *sessionRun) fits(a journal.Accepted) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, size := s.line.Successors()
	s.full = s.line.Last() != 0 && size+len(a.Body) > maxSuccessors
	return !s.full
}
