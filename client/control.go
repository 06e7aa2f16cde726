package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Stop says why and by whom a batch is aborted or a session is steered, for the results that the
// model reads. Both fields may be empty.
type Stop struct {
	Reason string // at most 1,000 bytes
	By     string // at most 200 bytes
}

// Abort ends a batch, or with an empty id every batch of the session that is stored at this moment,
// including batches that wait. When it returns, the abort is stored and holds. An abort by id may
// come before its batch: it holds for a batch that is stored up to batch_ttl (1 h) later. Each
// batch still ends with its reply: calls that had not started are aborted, and running calls end
// with what is known of them.
func (c *Client) Abort(ctx context.Context, s messages.SessionID, b messages.BatchID, why Stop) (seq uint64, err error) {
	abort := json.RawMessage("true")
	if b != "" {
		abort = rawjson.MustMarshal(b)
	}
	return c.control(ctx, s, messages.Control{Abort: abort, Reason: why.Reason, By: why.By})
}

// Steer sends a message (any JSON value of at most 256 KiB except null) to a session: its next
// reply includes the message as steering. The parameter when says which calls of the running batch
// still run; a call that is skipped for it says why.
func (c *Client) Steer(ctx context.Context, s messages.SessionID, message json.RawMessage, when messages.SteerWhen, why Stop) (seq uint64, err error) {
	return c.control(ctx, s, messages.Control{Steer: message, When: when, Reason: why.Reason, By: why.By})
}

func (c *Client) control(ctx context.Context, s messages.SessionID, control messages.Control) (uint64, error) {
	control.V = messages.Version
	body, err := rawjson.Marshal(control)
	if err != nil {
		return 0, fmt.Errorf("control of session %s: %w", s, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	subject := c.names.OfSession(wire.VerbControl, c.tenant, messages.Token(s))
	m, err := c.conn.Request(ctx, subject, nil, body)
	if errors.Is(err, bus.ErrNoResponders) {
		return 0, ErrNoFleet
	}
	var answer messages.ControlAnswer
	if err == nil {
		err = json.Unmarshal(m.Data, &answer)
	}
	switch {
	case err != nil:
		return 0, fmt.Errorf("control of session %s: %w", s, err)
	case answer.Error != nil:
		return 0, answer.Error
	}
	return answer.Seq, nil
}
