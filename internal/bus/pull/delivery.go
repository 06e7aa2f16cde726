package pull

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/bus"
)

// Delivery is a message to work on. Settle it with Ack, AckSync, Nak or Term. The first of
// these that succeeds counts; later ones do nothing. If a delivery is not settled within
// AckWait, the server delivers the message again.
//
// Two workers may hold the same message at once: the server accepts an acknowledgement even
// from a worker whose AckWait is over.
type Delivery struct {
	bus.Msg
	Delivered int       // how many times the message was delivered, this time included
	Consumer  string    // the consumer that delivered the message
	Received  time.Time // when the message came to this process

	nc      *nats.Conn
	settled atomic.Bool
}

func newDelivery(nc *nats.Conn, m *nats.Msg) (*Delivery, error) {
	meta, err := m.Metadata()
	if err != nil {
		return nil, fmt.Errorf("a delivery on %s without its metadata: %w", m.Subject, err)
	}
	return &Delivery{
		Msg: bus.Msg{
			Subject: m.Subject, Reply: m.Reply, Header: bus.Header(m.Header), Data: m.Data,
			Seq: meta.Sequence.Stream, Time: meta.Timestamp,
		},
		Delivered: int(meta.NumDelivered), Consumer: meta.Consumer, Received: time.Now(), nc: nc,
	}, nil
}

// Settled reports whether the delivery was settled.
func (d *Delivery) Settled() bool { return d.settled.Load() }

// Ack reports that the work on the message is done. It does not wait for the server's
// confirmation. If the acknowledgement is lost, the server delivers the message again.
func (d *Delivery) Ack() error { return d.settle("ack", d.send("+ACK")) }

// AckSync is like Ack, but it waits until the server has confirmed the acknowledgement.
func (d *Delivery) AckSync(ctx context.Context) error {
	return d.settle("ack", func() error {
		ctx, cancel := context.WithTimeout(ctx, bus.CallTimeout)
		defer cancel()
		_, err := d.nc.RequestWithContext(ctx, d.Reply, []byte("+ACK"))
		return err
	})
}

// Nak gives the message back. The server delivers it again after delay (0: at once). During
// the delay the message counts as in flight.
func (d *Delivery) Nak(delay time.Duration) error {
	body := "-NAK"
	if delay > 0 {
		body = fmt.Sprintf(`-NAK {"delay":%d}`, delay.Nanoseconds())
	}
	return d.settle("nak", d.send(body))
}

// Term removes the message, although the work is not done. The server never delivers it again.
func (d *Delivery) Term(reason string) error {
	return d.settle("term", d.send("+TERM "+reason))
}

// InProgress extends the delivery by another AckWait. It does nothing if the delivery is
// settled.
func (d *Delivery) InProgress() error {
	if d.Settled() {
		return nil
	}
	if err := d.send("+WPI")(); err != nil {
		return fmt.Errorf("keep the delivery of %s: %w", d.Subject, bus.ClientError(err))
	}
	return nil
}

func (d *Delivery) send(body string) func() error {
	return func() error { return d.nc.Publish(d.Reply, []byte(body)) }
}

// settle sends a settlement, unless one was sent before. If sending fails, the delivery stays
// unsettled, so that the caller can try again.
func (d *Delivery) settle(what string, tell func() error) error {
	if !d.settled.CompareAndSwap(false, true) {
		return nil
	}
	if err := tell(); err != nil {
		d.settled.Store(false)
		return fmt.Errorf("%s %s: %w", what, d.Subject, bus.ClientError(err))
	}
	return nil
}

// pullRequest asks a consumer for messages.
type pullRequest struct {
	Batch     int           `json:"batch"`
	Expires   time.Duration `json:"expires"`
	Heartbeat time.Duration `json:"idle_heartbeat,omitempty"`
}

func (r pullRequest) encode() []byte {
	body, _ := json.Marshal(r) // cannot fail: three numbers
	return body
}
