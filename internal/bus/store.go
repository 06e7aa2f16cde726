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

// Append stores a message and returns its sequence when the stream has acknowledged it. After
// ErrExists, ErrFull, ErrTooLarge, ErrNoResponders and ErrDisconnected the message is not
// stored. After ErrUnknown it may be stored: read, or append again if a second message does no
// harm.
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

// Send stores a message and does not wait for the acknowledgement, so the message may be lost.
// It is for jobs: a job is only a pointer, and the coordinator's poll sends it again.
func (c *Conn) Send(subject string, h Header, data []byte) error { return c.Publish(subject, h, data) }

// CompareAndSet stores a message if the newest message of its subject has the sequence last.
// last is 0 for a subject without messages. If several writers expect the same sequence, at
// most one succeeds. The others get ErrConflict, or ErrUndecided if an earlier write stays
// undecided. The other errors are those of Append. After ErrUnknown, the newest record shows
// which writer succeeded.
//
// CompareAndSet does not use the server's check on a wildcard subject: two writers that spell
// the wildcard in different ways could both succeed.
func (c *Conn) CompareAndSet(ctx context.Context, subject string, h Header, data []byte, last uint64) (seq uint64, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	h = h.with(expectedLastHeader, strconv.FormatUint(last, 10))
	// On a cluster, a write counts as on its way even for a moment after its acknowledgement.
	// Meanwhile the server refuses other writes of the subject. So this write is tried again
	// until the earlier one is decided.
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

// Delete removes one message from a stream. It returns no error if the message does not exist.
func (c *Conn) Delete(ctx context.Context, stream string, seq uint64) error {
	err := c.Call(ctx, api("STREAM", "MSG", "DELETE", stream), map[string]any{"seq": seq, "no_erase": true}, nil)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("delete message %d of %s: %w", seq, stream, err)
	}
	return nil
}

// Call makes a JSON request to the server's API and decodes the answer into out, which may
// be nil.
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
