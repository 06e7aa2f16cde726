// Package pull takes messages from a durable consumer. A Puller asks for as many messages as
// there are free Slots. It hands each message out as a Delivery, which the receiver has to
// settle.
package pull

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/status"
	"github.com/toolfleet/toolfleet/internal/spare"
)

const (
	// pullExpires is how long a pull request waits at the server.
	pullExpires = 10 * time.Second
	// pullHeartbeat is how often the server sends a heartbeat while a pull request waits. If
	// two heartbeats are missing, the puller sends a new request.
	pullHeartbeat = 3 * time.Second
	maxSilence    = 2*pullHeartbeat + time.Second
	// Limits of the pause before a failed pull is tried again.
	minBackoff, maxBackoff = 100 * time.Millisecond, 5 * time.Second
)

var errSilent = fmt.Errorf("no sign of life for %v", maxSilence)

// Puller pulls messages from one durable consumer, or from two.
type Puller struct {
	conn             *bus.Conn
	nc               *nats.Conn // the NATS client's connection of conn
	stream, consumer string
	aside            *aside // the second consumer, or nil
}

// New returns a puller for a durable consumer of a stream, with the full names of both. The
// consumer need not exist yet.
func New(conn *bus.Conn, stream, consumer string) *Puller {
	return &Puller{conn: conn, nc: conn.JetStream().Conn(), stream: stream, consumer: consumer}
}

// Aside makes Run also pull from a second durable consumer of the stream, with the same slots.
// Run asks the second consumer every few seconds, and more often while it has messages. So
// nearly all slots stay free for the first consumer. If the second consumer is missing, the
// first is not affected. Call Aside before Run.
func (p *Puller) Aside(consumer string) { p.aside = &aside{consumer: consumer} }

// Run pulls as many messages as there are free slots. It calls handle for each message on a
// goroutine, and frees the slot when handle returns. It continues after restarts of the server
// and lost connections, and while the consumer is missing.
//
// Run returns nil when ctx ends, and an error if the server no longer admits this user. It
// gives messages that were delivered but not handled back at once. Calls of handle may still
// be running when Run returns; slots.Wait waits for them. Only one Run at a time may use the
// slots.
func (p *Puller) Run(ctx context.Context, slots *Slots, handle func(*Delivery)) error {
	lost := make(chan struct{}, 1)
	defer p.conn.OnReconnect(func() {
		select {
		case lost <- struct{}{}:
		default:
		}
	})()
	handlers := spare.New()
	defer handlers.End()
	start := func(d *Delivery) {
		handlers.Go(func() {
			defer slots.Release(1)
			handle(d)
		})
	}
	backoff := minBackoff
	silent := false
	for ctx.Err() == nil {
		var served bool
		var err error
		if silent && !p.answers(ctx) {
			err = fmt.Errorf("%w, and the server does not answer", errSilent)
		} else {
			served, err = p.oneInbox(ctx, slots, start, lost)
		}
		silent = errors.Is(err, errSilent)
		if served {
			backoff = minBackoff
		}
		if err == nil {
			continue
		}
		if p.turnedAway() {
			return fmt.Errorf("pull from %s: the server lets this user in no more: %w", p.stream, p.nc.LastError())
		}
		if !errors.Is(err, bus.ErrDisconnected) { // the connection logs that itself
			p.conn.Logger().Warn("pulling stopped; trying again", "stream", p.stream, "consumer", p.consumer, "err", err, "wait", backoff)
			reportMissing(p.conn, err)
		}
		select {
		case <-ctx.Done():
		case <-lost: // connected again: pull at once
		case <-time.After(bus.Jitter(backoff)):
		}
		backoff = min(2*backoff, maxBackoff)
	}
	return nil
}

// reportMissing asks for missing streams and consumers to be made, if the error shows that one
// is missing.
func reportMissing(conn *bus.Conn, err error) {
	if errors.Is(err, bus.ErrNoResponders) {
		select {
		case conn.Missing() <- struct{}{}:
		default:
		}
	}
}

// answers reports whether the server answers a ping. Over a connection that works in only one
// direction, deliveries would get lost, so Run does not pull over it.
func (p *Puller) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	return p.nc.FlushWithContext(ctx) == nil
}

// answerTimeout is how long a server may take to answer a ping.
const answerTimeout = 3 * time.Second

// turnedAway reports whether the server no longer admits this user and has closed the
// connection for good.
func (p *Puller) turnedAway() bool {
	err := p.nc.LastError()
	return p.nc.IsClosed() && (errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) || errors.Is(err, nats.ErrAuthRevoked))
}

// inbox is a subscription for deliveries. It counts the messages that were asked for. Messages
// that come after the inbox was given up are ignored, so the count of slots stays exact.
type inbox struct {
	p     *Puller
	slots *Slots
	// The subject of an answer is subject and one more token, which names the consumer that
	// was asked.
	subject string
	sub     *nats.Subscription
	in      chan *nats.Msg
	asked   int // slots that wait for a message; owned by oneInbox
	// heard says that the server has sent something, or was asked, since the silence timer was
	// last reset. Owned by oneInbox.
	heard bool
	// aside is the number of slots that wait for the second consumer. looked says that the
	// newest pull request went to the second consumer. Both are owned by oneInbox.
	aside  int
	looked bool
}

// oneInbox pulls until ctx ends or the connection is lost. It gives each delivery to start,
// which must not block. It returns an error if an answer of the server makes a new inbox
// necessary. served reports whether any message was delivered.
func (p *Puller) oneInbox(ctx context.Context, slots *Slots, start func(*Delivery), lost <-chan struct{}) (served bool, err error) {
	i := &inbox{p: p, slots: slots, subject: p.nc.NewInbox(), in: make(chan *nats.Msg, 4*slots.Total()+64)}
	if i.sub, err = p.nc.ChanSubscribe(i.subject+".*", i.in); err != nil {
		return false, bus.ClientError(err)
	}
	defer i.end()
	silence := time.NewTimer(maxSilence)
	defer silence.Stop()
	for {
		// Get the channel before ask counts the free slots. A release after the count then
		// still wakes the select below.
		changed := slots.changed()
		if err := i.ask(); err != nil {
			return served, err
		}
		if i.asked == 0 {
			silence.Stop()
		} else if i.heard {
			silence.Reset(maxSilence)
		}
		i.heard = false
		select {
		case <-ctx.Done():
			return served, nil
		case <-lost:
			return served, nil
		case <-changed:
		case <-silence.C:
			if i.aside > 0 {
				p.aside.failed(p.conn, errSilent, time.Now())
			}
			return served, errSilent
		case m := <-i.in:
			d, err := i.take(m)
			if err != nil {
				return served, err
			}
			if d != nil {
				served = true
				start(d)
			}
		}
	}
}

// ask sends one pull request for all free slots, unless more slots wait for earlier requests
// than are free. So one request covers several messages, and at most half of the slots are
// idle while an earlier request is open.
func (i *inbox) ask() error {
	if free := i.slots.Free(); free == 0 || free < i.asked {
		return nil
	}
	n := i.slots.Take(i.slots.Total())
	if n == 0 {
		return nil
	}
	i.asked, i.heard = i.asked+n, true
	consumer, token, request := i.request(n, time.Now())
	next := "$JS.API.CONSUMER.MSG.NEXT." + i.p.stream + "." + consumer
	if err := i.p.nc.PublishRequest(next, i.subject+"."+token, request.encode()); err != nil {
		return fmt.Errorf("pull: %w", bus.ClientError(err))
	}
	return nil
}

// The last tokens of the subjects for the answers of the first and of the second consumer.
const firstToken, asideToken = "first", "aside"

// request returns the next pull request, for n messages, and the consumer to which it goes.
func (i *inbox) request(n int, now time.Time) (consumer, token string, r pullRequest) {
	a := i.p.aside
	if a == nil {
		return i.p.consumer, firstToken, pullRequest{Batch: n, Expires: pullExpires, Heartbeat: pullHeartbeat}
	}
	if i.looked = !i.looked && i.aside == 0 && a.due(now); i.looked {
		a.lookedAt = now
		i.aside = n
		return a.consumer, asideToken, pullRequest{Batch: n, Expires: asideFor}
	}
	// A request that waits at the first consumer holds slots. It must be short, because the
	// second consumer can be asked only after it has ended.
	expires := asideEvery
	if a.busy(now) {
		expires = asideFor
	}
	return i.p.consumer, firstToken, pullRequest{Batch: n, Expires: expires}
}

// take handles a message of the inbox. It returns a delivery, or nil if the message is a
// status that needs no action. After an error, the caller has to begin again with a new inbox.
func (i *inbox) take(m *nats.Msg) (*Delivery, error) {
	i.heard = true
	code := status.Of(m)
	if code != 0 && m.Subject == i.subject+"."+asideToken {
		i.takeAside(m, code)
		return nil, nil
	}
	switch code {
	case 0:
		d, err := newDelivery(i.p.nc, m)
		if err == nil && i.asked == 0 {
			err = fmt.Errorf("a delivery of %s that was not asked for", m.Subject)
		}
		if err != nil {
			return nil, err
		}
		i.asked--
		if a := i.p.aside; a != nil && d.Consumer == a.consumer {
			i.aside = max(i.aside-1, 0)
			a.found(time.Now())
		}
		return d, nil
	case status.Heartbeat:
		return nil, nil
	case status.Expired:
		unused := int(status.Number(m, "Nats-Pending-Messages"))
		if unused == 0 || unused > i.asked {
			return nil, refusal(m, code)
		}
		i.free(unused)
		return nil, nil
	}
	return nil, refusal(m, code)
}

// free frees n slots that wait for a message.
func (i *inbox) free(n int) {
	i.asked -= n
	i.slots.Release(n)
}

// refusal returns the error for the status of a failed pull request.
func refusal(m *nats.Msg, code int) error {
	if code == status.NoResponders {
		return fmt.Errorf("no such consumer (or it is not ready): %w", bus.ErrNoResponders)
	}
	return fmt.Errorf("the server answered %d %s", code, status.Description(m))
}

// end gives up the inbox. It gives messages that have already arrived back to the server, and
// frees the slots that wait for a message.
func (i *inbox) end() {
	i.stopDeliveries()
	for {
		select {
		case m := <-i.in:
			if status.Of(m) == 0 {
				_ = m.Nak()
			}
		default:
			i.slots.Release(i.asked)
			i.asked = 0
			return
		}
	}
}

// stopDeliveries waits, at most a second, until no more deliveries can arrive. Without this
// wait, the server may send a delivery before it learns of the end. That delivery would be
// lost here, and come again only after AckWait.
func (i *inbox) stopDeliveries() {
	closed := i.sub.StatusChanged(nats.SubscriptionClosed)
	if err := i.sub.Drain(); err != nil {
		_ = i.sub.Unsubscribe()
		return
	}
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	select {
	case <-closed:
	case <-timer.C:
		_ = i.sub.Unsubscribe()
	}
}
