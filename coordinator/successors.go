package coordinator

import (
	"context"
	"slices"

	"github.com/toolfleet/toolfleet/internal/bus/pull"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// Limits, in bytes, on the bodies of all driven batches that are not the first of their
// session. maxSuccessors is for each session, maxAllSuccessors for all sessions together.
const (
	maxSuccessors    = 8 << 20
	maxAllSuccessors = 256 << 20
)

// offer is a delivery of a batch that the run of its session has not read from the log yet.
type offer struct {
	key      wire.BatchKey
	delivery *pull.Delivery
}

// offer gives the run a delivery of a batch that it does not drive yet, and makes the run read
// the log. If the read reaches this batch, the run drives the batch with this delivery.
// Otherwise the run hands the delivery back to the broker. offer drops the delivery's body,
// because the log has it.
func (s *sessionRun) offer(key wire.BatchKey, d *pull.Delivery) (taken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || !s.suspended.IsZero() || len(s.offers) >= s.c.cfg.Lookahead {
		return false
	}
	d.Data = nil
	s.offers = append(s.offers, offer{key, d})
	s.readSoon() // under mu, so that the session is not suspended before the read
	return true
}

// offered removes and returns the offered delivery of a batch, or nil.
func (s *sessionRun) offered(a journal.Accepted) *pull.Delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, o := range s.offers {
		if o.key == a.Key && o.delivery.Seq == a.Seq {
			s.offers = slices.Delete(s.offers, i, i+1)
			return o.delivery
		}
	}
	return nil
}

// returnOffers settles the offered deliveries that the read of the log did not use. If the
// batch of a delivery is driven, the run of that batch gets the delivery. Any other delivery
// goes back to the broker.
func (s *sessionRun) returnOffers() {
	s.mu.Lock()
	offers := s.offers
	s.offers = nil
	s.mu.Unlock()
	for _, o := range offers {
		if live := s.c.runs.of(o.key); live != nil {
			live.lease.adopt(o.delivery)
		} else {
			s.c.decline(s.log, o.delivery)
		}
	}
}

// end makes the run refuse further offers. It does not settle earlier offers.
func (s *sessionRun) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
}

// readLog reads batches behind the driven ones, as many as the limits allow, and starts to
// drive them. Some already have a reply: they were submitted again, or a restart of the server
// brought them back. readLog publishes these replies again and removes the batches.
func (s *sessionRun) readLog(ctx context.Context) error {
	for s.c.serving.Load() { // a stopping coordinator leaves the next batch to a peer
		place, ok := s.place()
		if !ok {
			return nil
		}
		next, found, err := s.next(ctx)
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
		if !s.begin(ctx, next, s.offered(next), place) {
			return nil
		}
	}
	return nil
}

// next reads the oldest batch in the log that is not in the line. Batches of the line may
// still be in the log although they have a reply; next skips them.
func (s *sessionRun) next(ctx context.Context) (a journal.Accepted, found bool, err error) {
	s.mu.Lock()
	after := s.line.Last()
	s.mu.Unlock()
	for {
		a, found, err = s.c.journal.Next(ctx, s.key.Tenant, s.key.Session, after)
		if err != nil || !found || !s.holds(a) {
			return a, found, err
		}
		after = a.Seq
	}
}

func (s *sessionRun) holds(a journal.Accepted) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.line.Holds(a.Seq, a.Stored)
}

// place is the right to drive one batch behind the first of its session. All sessions share a
// limited number of places. The first batch of a session needs none: its place is nil.
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

// hold reserves room for a batch's body. It returns false if the bodies of all sessions
// together would be too large.
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

// place takes a place for another batch of the session. It returns nil for the first batch of
// a line.
func (s *sessionRun) place() (p *place, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	successors, _ := s.line.Successors()
	s.full = !s.line.Empty() && successors+1 >= s.c.cfg.Lookahead
	switch {
	case s.line.Empty():
		return nil, true
	case s.full || !s.c.successors.TryAcquire(1):
		return nil, false
	}
	return &place{c: s.c}, true
}

// fits reports whether the line has room for the body of another batch.
func (s *sessionRun) fits(a journal.Accepted) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, size := s.line.Successors()
	s.full = !s.line.Empty() && size+len(a.Body) > maxSuccessors
	return !s.full
}
