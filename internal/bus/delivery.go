package bus

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// Delivery is a message that somebody should work on, and must be settled: with Ack, AckSync, Nak or Term. The
// first that succeeds counts; settling again does nothing. One that is never settled comes again after AckWait.
//
// A delivery is a hint: it may come twice, to two workers at once. The server takes the acknowledgement of a
// holder that it has given up on.
type Delivery struct {
	Msg
	Delivered int // how often it was delivered, this time included

	nc      *nats.Conn
	settled atomic.Bool
}

func newDelivery(nc *nats.Conn, m *nats.Msg) (*Delivery, error) {
	meta, err := m.Metadata()
	if err != nil {
		return nil, fmt.Errorf("a delivery on %s without its metadata: %w", m.Subject, err)
	}
	d := &Delivery{Msg: received(m), Delivered: int(meta.NumDelivered), nc: nc}
	d.Seq, d.Time = meta.Sequence.Stream, meta.Timestamp
	return d, nil
}

// Settled reports whether it was settled.
func (d *Delivery) Settled() bool { return d.settled.Load() }

// Ack says that it is dealt with, and does not wait to hear that the server knows. When that gets lost, the
// message comes again.
func (d *Delivery) Ack() error { return d.settle("ack", d.send("+ACK")) }

// AckSync is Ack, and returns once the server has confirmed it.
func (d *Delivery) AckSync(ctx context.Context) error {
	return d.settle("ack", func() error {
		ctx, cancel := bounded(ctx)
		defer cancel()
		_, err := d.nc.RequestWithContext(ctx, d.Reply, []byte("+ACK"))
		return err
	})
}

// Nak gives it back, to be delivered again after delay (0: at once). Until then it counts as in flight.
func (d *Delivery) Nak(delay time.Duration) error {
	body := "-NAK"
	if delay > 0 {
		body = fmt.Sprintf(`-NAK {"delay":%d}`, delay.Nanoseconds())
	}
	return d.settle("nak", d.send(body))
}

// Term removes it without its being dealt with: nobody gets it again.
func (d *Delivery) Term(reason string) error {
	return d.settle("term", d.send("+TERM "+reason))
}

// InProgress asks for another AckWait. After settling it does nothing.
func (d *Delivery) InProgress() error {
	if d.Settled() {
		return nil
	}
	if err := d.send("+WPI")(); err != nil {
		return fmt.Errorf("keep the delivery of %s: %w", d.Subject, sendError(err))
	}
	return nil
}

func (d *Delivery) send(body string) func() error {
	return func() error { return d.nc.Publish(d.Reply, []byte(body)) }
}

func (d *Delivery) settle(what string, tell func() error) error {
	if !d.settled.CompareAndSwap(false, true) {
		return nil
	}
	if err := tell(); err != nil {
		d.settled.Store(false)
		return fmt.Errorf("%s %s: %w", what, d.Subject, sendError(err))
	}
	return nil
}

// pullRequest asks a consumer for messages.
type pullRequest struct {
	Batch     int           `json:"batch"`
	Expires   time.Duration `json:"expires"`
	Heartbeat time.Duration `json:"idle_heartbeat"`
}

func (r pullRequest) encode() []byte {
	body, _ := json.Marshal(r) // three numbers
	return body
}
