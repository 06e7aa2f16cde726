package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const expectedLastHeader = "Nats-Expected-Last-Subject-Sequence"

// Append stores a message and returns its sequence once the stream has acknowledged it. Errors: ErrExists, ErrFull,
// ErrTooLarge, ErrNoResponders, ErrDisconnected (not stored), ErrUnknown (read, or append again where that is harmless).
func (c *Conn) Append(ctx context.Context, subject string, h Header, data []byte) (seq uint64, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	m, err := c.nc.RequestMsgWithContext(ctx, outgoing(subject, h, data))
	if err != nil {
		return 0, fmt.Errorf("store %s: %w", subject, writeError(err))
	}
	var ack struct {
		Error  *jetstream.APIError `json:"error"`
		Stream string              `json:"stream"`
		Seq    uint64              `json:"seq"`
	}
	switch err := json.Unmarshal(m.Data, &ack); {
	case err != nil:
		return 0, fmt.Errorf("store %s: the acknowledgement is no JSON: %w", subject, err)
	case ack.Error != nil:
		return 0, fmt.Errorf("store %s: %w", subject, apiError(ack.Error))
	case ack.Stream == "":
		return 0, fmt.Errorf("store %s: no stream acknowledged it: %.200q", subject, m.Data)
	}
	return ack.Seq, nil
}

// Send stores a message without waiting to hear of it. It may be lost: for jobs, which are only pointers
// and are sent again at every poll.
func (c *Conn) Send(subject string, h Header, data []byte) error { return c.Publish(subject, h, data) }

// CompareAndSet stores a message if the newest one of its subject has the sequence last (0: there is none).
// Of any number of writers that expect the same, at most one wins; the others get ErrConflict, or ErrUndecided where the
// one that is ahead of them comes to no end. Errors otherwise as Append's: after ErrUnknown the newest record tells who won.
//
// The expectation is always that of the message's own subject. The server's wildcard form lets two writers
// win where they spell the filter differently.
func (c *Conn) CompareAndSet(ctx context.Context, subject string, h Header, data []byte, last uint64) (seq uint64, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	h = h.with(expectedLastHeader, strconv.FormatUint(last, 10))
	// On a cluster a write counts as on its way for a moment after it was acknowledged, and nothing was stored of one that
	// met it: so it is asked again until that is decided.
	for wait := time.Millisecond; ; wait = min(2*wait, minBackoff) {
		seq, err = c.Append(ctx, subject, h, data)
		if !errors.Is(err, ErrUndecided) || !pause(ctx, jitter(wait)) {
			return seq, err
		}
	}
}

// Delete removes one message from a stream. That it is gone already is fine.
func (c *Conn) Delete(ctx context.Context, stream string, seq uint64) error {
	err := c.call(ctx, api("STREAM", "MSG", "DELETE", stream), map[string]any{"seq": seq, "no_erase": true}, nil)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("delete message %d of %s: %w", seq, stream, err)
	}
	return nil
}

// call makes a request of the JetStream API and decodes its answer into out (nil: only whether it worked).
func (c *Conn) call(ctx context.Context, subject string, in, out any) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	m, err := c.nc.RequestWithContext(ctx, subject, body)
	if err != nil {
		return sendError(err)
	}
	var failed struct {
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &failed); err != nil {
		return fmt.Errorf("the server's answer is no JSON: %w", err)
	}
	if failed.Error != nil {
		return apiError(failed.Error)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(m.Data, out)
}
