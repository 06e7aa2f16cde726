package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// pullExpires is how long a pull waits at the server.
	pullExpires = 30 * time.Second
	// pullHeartbeat is how often the server says that a waiting pull is alive. Two missed ones, and the puller asks anew.
	pullHeartbeat = 5 * time.Second
	maxSilence    = 2*pullHeartbeat + time.Second
	// Bounds of the wait before asking again what could not be asked.
	minBackoff, maxBackoff = 100 * time.Millisecond, 5 * time.Second
)

// Puller pulls the messages of one durable consumer.
type Puller struct {
	c                *Conn
	stream, consumer string
}

// Puller binds to a durable, by the whole name of its stream. It need not be there yet.
func (c *Conn) Puller(stream, consumer string) *Puller {
	return &Puller{c: c, stream: stream, consumer: consumer}
}

// Run pulls as many messages as there are free slots, calls handle for each on a goroutine of its own, and frees the
// slot when handle returns. Nothing is fetched ahead. It outlives restarts of the server, lost connections and
// a consumer that is missing for a while.
//
// Run returns nil when ctx ends. What was delivered and not yet given to handle goes back at once. Calls of handle may
// still be running then: slots.Wait tells when they have ended. The slots belong to one Run at a time.
func (p *Puller) Run(ctx context.Context, slots *Slots, handle func(*Delivery)) error {
	lost := make(chan struct{}, 1)
	defer p.c.OnReconnect(func() {
		select {
		case lost <- struct{}{}:
		default:
		}
	})()
	backoff := minBackoff
	for ctx.Err() == nil {
		served, err := p.session(ctx, slots, handle, lost)
		if served {
			backoff = minBackoff
		}
		if err == nil {
			continue
		}
		if !errors.Is(err, ErrDisconnected) { // which the connection itself logs
			p.c.log.Warn("pulling stopped; trying again", "stream", p.stream, "consumer", p.consumer, "error", err, "wait", backoff)
		}
		select {
		case <-ctx.Done():
		case <-lost: // connected again: no reason to wait
		case <-time.After(jitter(backoff)):
		}
		backoff = min(2*backoff, maxBackoff)
	}
	return nil
}

// pulling is one inbox and what was asked for on it. Pulls of an inbox that is given up can reach nobody, so the
// count of slots stays exact whatever the server still had in mind.
type pulling struct {
	p     *Puller
	slots *Slots
	sub   *nats.Subscription
	in    chan *nats.Msg
	asked int  // slots taken for messages that have not come; owned by session
	heard bool // the server spoke or was asked since the silence was last measured; owned by session
}

// session pulls on one inbox until ctx ends, the connection was lost, or the server says something that only a new inbox
// cures: then with an error. It reports whether anything was delivered.
func (p *Puller) session(ctx context.Context, slots *Slots, handle func(*Delivery), lost <-chan struct{}) (served bool, err error) {
	s := &pulling{p: p, slots: slots, in: make(chan *nats.Msg, 4*slots.Total()+64)}
	if s.sub, err = p.c.nc.ChanSubscribe(p.c.nc.NewInbox(), s.in); err != nil {
		return false, sendError(err)
	}
	defer s.end()
	silence := time.NewTimer(maxSilence)
	defer silence.Stop()
	for {
		changed := slots.changed()
		if err := s.ask(); err != nil {
			return served, err
		}
		if s.asked == 0 {
			silence.Stop()
		} else if s.heard {
			silence.Reset(maxSilence)
		}
		s.heard = false
		select {
		case <-ctx.Done():
			return served, nil
		case <-lost:
			return served, nil
		case <-changed:
		case <-silence.C:
			return served, fmt.Errorf("no sign of life for %v", maxSilence)
		case m := <-s.in:
			d, err := s.take(m)
			if err != nil {
				return served, err
			}
			if d != nil {
				served = true
				go func() {
					defer slots.Release(1)
					handle(d)
				}()
			}
		}
	}
}

// ask pulls for the free slots, if there are at least as many as are asked for already: one request for
// several messages, and never a wait for the last message of a pull while most slots are idle.
func (s *pulling) ask() error {
	if free := s.slots.Free(); free == 0 || free < s.asked {
		return nil
	}
	n := s.slots.Take(s.slots.Total())
	if n == 0 {
		return nil
	}
	s.asked, s.heard = s.asked+n, true
	request := pullRequest{Batch: n, Expires: pullExpires, Heartbeat: pullHeartbeat}
	next := api("CONSUMER", "MSG", "NEXT", s.p.stream, s.p.consumer)
	if err := s.p.c.nc.PublishRequest(next, s.sub.Subject, request.encode()); err != nil {
		return fmt.Errorf("pull: %w", sendError(err))
	}
	return nil
}

// take reads what came: a delivery, or the server's word about a pull (nil), or a reason to start over.
func (s *pulling) take(m *nats.Msg) (*Delivery, error) {
	s.heard = true
	switch code := status(m); code {
	case 0:
		d, err := newDelivery(s.p.c.nc, m)
		if err == nil && s.asked == 0 {
			err = fmt.Errorf("a delivery of %s that was not asked for", m.Subject)
		}
		if err != nil {
			return nil, err
		}
		s.asked--
		return d, nil
	case statusHeartbeat:
		return nil, nil
	case statusExpired:
		unused := int(number(m, "Nats-Pending-Messages"))
		if unused == 0 || unused > s.asked {
			return nil, fmt.Errorf("the server answered %d %s", code, description(m))
		}
		s.asked -= unused
		s.slots.Release(unused)
		return nil, nil
	case statusNoResponders:
		return nil, fmt.Errorf("no such consumer (or it is not ready): %w", ErrNoResponders)
	default:
		return nil, fmt.Errorf("the server answered %d %s", code, description(m))
	}
}

// end gives up the inbox, hands back what had come already, and frees the slots that were asked for.
func (s *pulling) end() {
	s.stopDeliveries()
	for {
		select {
		case m := <-s.in:
			if status(m) == 0 {
				_ = m.Nak()
			}
		default:
			s.slots.Release(s.asked)
			s.asked = 0
			return
		}
	}
}

// stopDeliveries returns when no more can come: what the server sent before it knew would otherwise be
// lost here, and nobody would get it before its AckWait is over.
func (s *pulling) stopDeliveries() {
	closed := s.sub.StatusChanged(nats.SubscriptionClosed)
	if err := s.sub.Drain(); err != nil {
		_ = s.sub.Unsubscribe()
		return
	}
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	select {
	case <-closed:
	case <-timer.C:
		_ = s.sub.Unsubscribe()
	}
}
