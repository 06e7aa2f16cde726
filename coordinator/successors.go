package coordinator

import (
	"context"

	"github.com/toolfleet/toolfleet/internal/bus/pull"
	"github.com/toolfleet/toolfleet/internal/journal"
)

// Bounds on the bodies of batches behind the first of their sessions, in bytes: those of one
// session, and of all.
const (
	maxSuccessors    = 8 << 20
	maxAllSuccessors = 256 << 20
)

// returnOffer hands a delivery back to the broker that no batch has taken.
func (s *sessionRun) returnOffer() {
	if s.offered != nil {
		s.c.decline(s.log, s.offered)
		s.offered = nil
	}
}

// readLog reads the batches behind those that are driven, as many as the bounds allow, and begins
// to drive them. A batch that has its reply, because it was submitted again or came back into the
// log, is answered and removed.
func (s *sessionRun) readLog(ctx context.Context) error {
	for s.c.serving.Load() { // else the broker delivers the next batch to a peer
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

// place is a place of a batch behind the first of its session, which all sessions share; nil: the
// batch needs none.
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

// hold reports whether all sessions together may hold the body too.
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
