package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// CallOf returns the address of the call that a question is about.
func CallOf(p messages.Pending) wire.CallKey {
	return wire.KeyOf(string(p.Tenant), p.Session, p.Batch).Call(p.Index)
}

// List returns the open questions of a tenant ("" is the client's own), the oldest first. A fleet
// answers List, Show and Decide to the identities of approvers only. A refused request is a
// *messages.Refusal.
func (c *Client) List(ctx context.Context, tenant string) ([]messages.Pending, error) {
	subject := c.names.OfTenant(wire.VerbList, cmp.Or(tenant, c.tenant))
	list, err := answerTo[messages.PendingList](ctx, c, subject, nil)
	if err == nil && list.Error != nil {
		err = list.Error
	}
	if err != nil {
		return nil, fmt.Errorf("list approvals: %w", err)
	}
	return list.Pending, nil
}

// Show returns the open question about a call, with the arguments that a decision is bound to. A
// question that is no longer open is a *messages.Refusal.
func (c *Client) Show(ctx context.Context, call wire.CallKey) (messages.Approval, error) {
	answer, err := answerTo[messages.ApprovalAnswer](ctx, c, c.names.OfCall(wire.VerbShow, call), nil)
	switch {
	case err != nil:
	case answer.Error != nil:
		err = answer.Error
	case answer.Approval == nil:
		err = errors.New("the answer holds no question")
	default:
		return *answer.Approval, nil
	}
	return messages.Approval{}, fmt.Errorf("show approval: %w", err)
}

// Decide sends a signed decision. When it returns without an error, the decision is stored and
// holds. A decision that the fleet does not take is a *messages.Refusal. After any other error the
// decision may have been stored; [Client.Show] tells.
func (c *Client) Decide(ctx context.Context, d messages.Decision) (messages.DecisionAnswer, error) {
	body, err := rawjson.Marshal(d)
	if err != nil {
		return messages.DecisionAnswer{}, fmt.Errorf("encode decision: %w", err)
	}
	if err := c.fits(body); err != nil {
		return messages.DecisionAnswer{}, err
	}
	call := wire.KeyOf(string(d.Tenant), d.Session, d.Batch).Call(d.Index)
	answer, err := answerTo[messages.DecisionAnswer](ctx, c, c.names.OfCall(wire.VerbDecide, call), body)
	switch {
	case err != nil:
	case answer.Error != nil:
		err = answer.Error
	case !answer.OK:
		err = errors.New("the answer says neither yes nor no")
	default:
		return answer, nil
	}
	return answer, fmt.Errorf("decide: %w", err)
}

// News calls each for every question of a tenant that opens or closes, until ctx ends. It calls
// listening, which may be nil, once the subscription is in place: a caller that lists the open
// questions after that misses none.
func (c *Client) News(ctx context.Context, tenant string, listening func(), each func(messages.Pending)) error {
	subject := c.names.OfTenant(wire.VerbNews, cmp.Or(tenant, c.tenant)) + ".*.*.*"
	unsubscribe, err := c.conn.Subscribe(subject, "", func(m bus.Msg) {
		var p messages.Pending
		if json.Unmarshal(m.Data, &p) == nil {
			each(p)
		}
	})
	if err != nil {
		return err
	}
	defer unsubscribe()
	if err := c.conn.Flush(ctx); err != nil {
		return err
	}
	if listening != nil {
		listening()
	}
	<-ctx.Done()
	return nil
}

// answerTo sends one request to a handler and decodes the JSON answer, which may come in chunks. It
// waits at most 10 s and does not retry.
func answerTo[T any](ctx context.Context, c *Client, subject string, body []byte) (answer T, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	asking, lost := context.WithCancelCause(ctx)
	defer lost(nil)
	defer c.conn.OnReconnect(func() { lost(errReconnected) })()
	var parts answerParts
	var problem error
	err = c.conn.Stream(asking, subject, nil, body, func(m bus.Msg) (more bool) {
		more, problem = parts.add(m)
		return more
	})
	switch {
	case errors.Is(err, bus.ErrNoResponders):
		return answer, ErrNoFleet
	case err == nil:
		err = problem
	}
	if err == nil {
		err = json.Unmarshal(parts.whole(), &answer)
	}
	return answer, err
}

// answerParts is a partly received answer: one message, or numbered chunks.
type answerParts [][]byte

// add takes a message of the answer and reports whether more are to come.
func (p *answerParts) add(m bus.Msg) (more bool, err error) {
	numbered := m.Header.Get(messages.ChunkHeader)
	if numbered == "" {
		*p = [][]byte{m.Data}
		return false, nil
	}
	if *p, err = place(*p, numbered, m.Data); err != nil {
		return false, err
	}
	return slices.ContainsFunc(*p, func(part []byte) bool { return part == nil }), nil
}

func (p answerParts) whole() []byte { return bytes.Join(p, nil) }
