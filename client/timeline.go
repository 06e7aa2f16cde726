package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Timeline returns the durable events of a batch so far; after the end of the batch, all of
// them. It does not wait for the batch and does not retry. It takes at most 10 s.
//
// The error is [ErrUnknown] for a batch that the fleet does not know, [ErrNoFleet] when no
// coordinator answers, and a *messages.Refusal of the class busy when too many timelines are
// requested at once: ask again after its RetryAfterMS.
func (c *Client) Timeline(ctx context.Context, s messages.SessionID, b messages.BatchID) (messages.Timeline, error) {
	answer, err := request[struct {
		messages.Timeline
		Error *messages.Refusal `json:"error"`
	}](ctx, c, c.names.Of(wire.VerbGet, c.key(s, b)), rawjson.MustMarshal(messages.Get{Timeline: true}))
	switch {
	case err != nil:
	case answer.Error != nil:
		err = answer.Error
	case answer.Status == messages.BatchUnknown:
		return messages.Timeline{}, ErrUnknown
	case answer.Events == nil:
		err = errNoTimelines
	default:
		return answer.Timeline, nil
	}
	return messages.Timeline{}, fmt.Errorf("timeline of batch %s: %w", b, err)
}

// ListOptions select which ended batches [Client.Batches] lists. The zero value selects none.
type ListOptions struct {
	// Since selects the batches that ended at this time or later.
	Since time.Time
	// After selects the batches that ended after a place: the Place of an earlier list. It replaces
	// Since.
	After uint64
}

// Batches lists batches of a session in the order in which the fleet accepted them: first the ended
// ones that o selects, if their replies are still kept (reply_ttl, by default 24 h), then the open
// ones. It returns one page of at most 64 batches of each sort. If More is set, ask for the next
// page with the page's Place as After. The open batches are on the last page.
//
// It takes at most 10 s. Its errors are those of [Client.Timeline], without ErrUnknown: the list of
// an unknown session is empty.
func (c *Client) Batches(ctx context.Context, s messages.SessionID, o ListOptions) (messages.BatchList, error) {
	get := messages.Get{Batches: true, Since: o.Since}
	if o.After > 0 {
		get.After = &o.After
	}
	return c.batches(ctx, s, get)
}

func (c *Client) batches(ctx context.Context, s messages.SessionID, get messages.Get) (messages.BatchList, error) {
	answer, err := request[struct {
		messages.BatchList
		Error *messages.Refusal `json:"error"`
	}](ctx, c, c.names.Of(wire.VerbGet, c.key(s, messages.NoBatch)), rawjson.MustMarshal(get))
	switch {
	case err != nil:
	case answer.Error != nil:
		err = answer.Error
	case answer.Batches == nil:
		err = errNoLists
	default:
		return answer.BatchList, nil
	}
	return messages.BatchList{}, fmt.Errorf("batches of session %s: %w", s, err)
}

var (
	errNoTimelines = errors.New("the coordinator that answered is of a version that knows no timelines")
	errNoLists     = errors.New("the coordinator that answered is of a version that lists no batches")
)
