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

// Reason says why calls are not run, and who decided that. The model reads both in the
// results of the calls. Both may be empty.
type Reason struct {
	Text string // why; at most 1,000 bytes
	By   string // who; at most 200 bytes
}

// Abort ends a batch. If it returns nil, the abort is stored and holds, and seq is its place among
// the fleet's control messages. The batch still gets its reply: calls that had not started are
// aborted, and running calls are stopped and end with what is known about them.
//
// An abort may arrive before its batch. It then holds for a batch that is stored up to batch_ttl
// later (by default 1 h).
//
// Abort, AbortSession and Steer take at most 10 s. The error is [ErrNoFleet] or a
// *messages.Refusal. After a refusal of the class busy, and after any other error, the message may
// have been stored. An abort may be sent again safely. A steering message that is sent twice may be
// read twice.
func (c *Client) Abort(ctx context.Context, s messages.SessionID, b messages.BatchID, why Reason) (seq uint64, err error) {
	if b == "" {
		return 0, errors.New("abort: the id of the batch is empty")
	}
	return c.control(ctx, s, messages.Control{Abort: rawjson.MustMarshal(b), Reason: why.Text, By: why.By})
}

// AbortSession is like [Client.Abort], for every batch of the session that is stored now,
// whether it has started or not. Later batches are not affected.
func (c *Client) AbortSession(ctx context.Context, s messages.SessionID, why Reason) (seq uint64, err error) {
	return c.control(ctx, s, messages.Control{Abort: json.RawMessage("true"), Reason: why.Text, By: why.By})
}

// Steer sends a message to a session: any JSON value except null, at most 256 KiB. The next
// reply of the session has the message in Steering, and the agent appends it after the
// reinjection. when says which calls of earlier batches still run. why is shown in the results
// of the calls that are skipped.
func (c *Client) Steer(ctx context.Context, s messages.SessionID, message json.RawMessage, when messages.SteerWhen, why Reason) (seq uint64, err error) {
	return c.control(ctx, s, messages.Control{Steer: message, When: when, Reason: why.Text, By: why.By})
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
