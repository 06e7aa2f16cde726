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

// Append stores a message and returns its sequence once the stream has acknowledged it. Errors:
// ErrExists, ErrFull, ErrTooLarge, ErrNoResponders and ErrDisconnected (not stored), ErrUnknown
// (read, or append again where that is harmless).
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

// Send stores a message without waiting for the acknowledgement. It may be lost: use it for jobs,
// which are only pointers and are sent again at every poll.
func (c *Conn) Send(subject string, h Header, data []byte) error { return c.Publish(subject, h, data) }

// CompareAndSet stores a message if the newest message of its subject has the sequence last (0: the
// subject has none). When several writers expect the same sequence, at most one wins. The others
// get ErrConflict, or ErrUndecided where a write ahead of theirs stays undecided. Other errors are
// Append's: after ErrUnknown the newest record tells which writer won.
//
// The expectation is always about the message's own subject. The server's wildcard form lets two
// writers win when they spell the filter differently.
func (c *Conn) CompareAndSet(ctx context.Context, subject string, h Header, data []byte, last uint64) (seq uint64, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	h = h.with(expectedLastHeader, strconv.FormatUint(last, 10))
	// On a cluster a write still counts as on its way for a moment after its acknowledgement, and a
	// write that meets it is not stored. So the write is tried again until the other one is
	// decided.
	err = Retry(ctx, untilDecided, func() (err error) {
		seq, err = c.Append(ctx, subject, h, data)
		return err
	})
	return seq, err
}

// untilDecided repeats a write that meets another one whose outcome is not known yet.
var untilDecided = Backoff{
	First: time.Millisecond, Most: minBackoff, Jitter: true,
	Again: func(err error) bool { return errors.Is(err, ErrUndecided) },
}

// Delete removes one message from a stream. Deleting a message that is already gone is no error.
func (c *Conn) Delete(ctx context.Context, stream string, seq uint64) error {
	err := c.Call(ctx, api("STREAM", "MSG", "DELETE", stream), map[string]any{"seq": seq, "no_erase": true}, nil)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("delete message %d of %s: %w", seq, stream, err)
	}
	return nil
}

// Call makes a request of the server's API, which speaks JSON, and decodes the answer into out.
// With a nil out it only reports whether the request worked.
func (c *Conn) Call(ctx context.Context, subject string, in, out any) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	m, err := c.nc.RequestWithContext(ctx, subject, body)
	if err != nil {
		return ClientError(err)
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
