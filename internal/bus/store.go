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
// ErrExists, ErrFull, ErrTooLarge, ErrNoResponders and ErrDisconnected mean that it is not stored.
// After ErrUnknown, read, or append again if a second message does no harm.
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

// Send stores a message without waiting for the acknowledgement. The message may be lost: use it
// for jobs, which are only pointers and are sent again at every poll.
func (c *Conn) Send(subject string, h Header, data []byte) error { return c.Publish(subject, h, data) }

// CompareAndSet stores a message if the newest message of its subject has the sequence last (0: the
// subject has none). If several writers expect the same sequence, at most one wins. The others get
// ErrConflict, or ErrUndecided if the outcome of an earlier write stays open. Its other errors are
// those of Append: after ErrUnknown the newest record tells which writer won.
//
// The expectation is always about the message's own subject. The server's form with a wildcard is
// not used: two writers that spell the filter differently could both win.
func (c *Conn) CompareAndSet(ctx context.Context, subject string, h Header, data []byte, last uint64) (seq uint64, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	h = h.with(expectedLastHeader, strconv.FormatUint(last, 10))
	// On a cluster a write counts as on its way for a moment after its acknowledgement. The server
	// refuses other writes of the subject meanwhile, so this write is tried again until the earlier
	// one is decided.
	err = Retry(ctx, untilDecided, func() (err error) {
		seq, err = c.Append(ctx, subject, h, data)
		return err
	})
	return seq, err
}

// untilDecided repeats a write while another write of the subject is on its way.
var untilDecided = Backoff{
	First: time.Millisecond, Most: minBackoff, Jitter: true,
	Again: func(err error) bool { return errors.Is(err, ErrUndecided) },
}

// Delete removes one message from a stream. It returns no error if the message is already gone.
func (c *Conn) Delete(ctx context.Context, stream string, seq uint64) error {
	err := c.Call(ctx, api("STREAM", "MSG", "DELETE", stream), map[string]any{"seq": seq, "no_erase": true}, nil)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("delete message %d of %s: %w", seq, stream, err)
	}
	return nil
}

// Call makes a JSON request to the server's API, and decodes the answer into out. out may be nil.
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
