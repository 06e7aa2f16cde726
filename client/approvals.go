package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Approvals lists the tenant's open questions, the oldest first. Each question is about a call
// that waits for a person. A fleet answers Approvals, [Client.Approval] and [Client.Decide]
// only for the identities of approvers. Anybody else gets no answer. Each of the three takes
// at most 10 s and does not retry.
//
// The error is [ErrNoFleet], or a *messages.Refusal, for example of the class busy.
func (c *Client) Approvals(ctx context.Context) ([]messages.Pending, error) {
	list, err := request[messages.PendingList](ctx, c, c.names.OfTenant(wire.VerbList, c.tenant), nil)
	if err == nil && list.Error != nil {
		err = list.Error
	}
	if err != nil {
		return nil, fmt.Errorf("list approvals: %w", err)
	}
	return list.Pending, nil
}

// Approval returns the open question about a call, given by its index in the batch, with the
// arguments that a decision is bound to. Its errors are those of Approvals. If the question is no
// longer open, the error is a *messages.Refusal of the class not_pending.
func (c *Client) Approval(ctx context.Context, s messages.SessionID, b messages.BatchID, index int) (messages.Approval, error) {
	answer, err := request[messages.ApprovalAnswer](ctx, c, c.names.OfCall(wire.VerbShow, c.key(s, b).Call(index)), nil)
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

// Decide sends a decision that a [Signer] has signed. If it returns nil, the decision is stored and
// holds, whatever becomes of the coordinator. If the fleet refuses the decision, the error is a
// *messages.Refusal. After the class busy and after any other error the decision may have been
// stored: sending it again is safe, and [Client.Approval] shows whether the question is still open.
func (c *Client) Decide(ctx context.Context, d messages.Decision) (messages.DecisionAnswer, error) {
	body, err := rawjson.Marshal(d)
	if err != nil {
		return messages.DecisionAnswer{}, fmt.Errorf("encode decision: %w", err)
	}
	if err := c.fits(body); err != nil {
		return messages.DecisionAnswer{}, err
	}
	call := wire.KeyOf(string(d.Tenant), d.Session, d.Batch).Call(d.Index)
	answer, err := request[messages.DecisionAnswer](ctx, c, c.names.OfCall(wire.VerbDecide, call), body)
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

// relistEvery is how often WatchApprovals lists the open questions again. Messages that announce
// changes may be lost.
const relistEvery = time.Minute

// WatchApprovals yields the tenant's open questions, and then every change until ctx ends: a
// question opens, one of several people agrees to it, or it closes (State says how). A state may be
// yielded again, also after a newer one. WatchApprovals may miss a change, but lists the open
// questions again within a minute. A question whose end was missed is not yielded again;
// [Client.Approvals] no longer lists it.
//
// If the first list fails, the error is that of [Client.Approvals], yielded once, as the last pair.
// WatchApprovals ends without an error when ctx ends.
func (c *Client) WatchApprovals(ctx context.Context) iter.Seq2[messages.Pending, error] {
	return func(yield func(messages.Pending, error) bool) {
		news := newMailbox[messages.Pending]()
		unsubscribe, err := c.conn.Subscribe(c.names.OfTenant(wire.VerbNews, c.tenant)+".*.*.*", "", func(m bus.Msg) {
			var p messages.Pending
			if json.Unmarshal(m.Data, &p) == nil {
				news.put(p)
			}
		})
		if err != nil {
			yield(messages.Pending{}, err)
			return
		}
		defer unsubscribe()
		relist := time.NewTicker(relistEvery)
		defer relist.Stop()
		items, err := c.Approvals(ctx)
		if err != nil && ctx.Err() == nil {
			yield(messages.Pending{}, err)
			return
		}
		for {
			for _, p := range items {
				if ctx.Err() != nil || !yield(p, nil) {
					return
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-news.wake:
				items, _ = news.take()
			case <-relist.C:
				items, _ = c.Approvals(ctx) // the next try may succeed
			}
		}
	}
}
