package coordinator

import (
	"context"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// An answer about a session lists so many batches of each sort, and reads about so much for it: they cannot be read without
// their bodies.
const (
	listedBatches = 64
	listedBytes   = 1 << 20
)

// listing is a list that is made.
type listing struct {
	*Coordinator
	key wire.BatchKey // of which only the session counts
	ask messages.Get
	messages.BatchList
}

// batches is the batches of a session, as the get door answers with them.
func (c *Coordinator) batches(ctx context.Context, key wire.BatchKey, ask messages.Get) ([]byte, error) {
	return c.inTurn(ctx, key.Tenant, func() (any, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, patience, errCrowded)
		defer cancel()
		l := listing{c, key, ask, messages.BatchList{V: messages.Version, Batches: []messages.ListedBatch{}}}
		// The log first: a batch leaves it only after its reply is stored, so between the two looks nothing is missed.
		open, err := l.open(ctx)
		if err == nil {
			err = l.ended(ctx)
		}
		if err == nil && !l.More {
			l.add(open)
		}
		return l.BatchList, err
	})
}

// open is the batches in the log, the oldest first. One that cannot be told by its id is about to be refused.
func (l *listing) open(ctx context.Context) (open []messages.ListedBatch, err error) {
	seen, size := 0, 0
	err = l.journal.EachOpen(ctx, l.key.Tenant, l.key.Session, func(a journal.Accepted) bool {
		b, _ := messages.DecodeBatch(a.Body)
		if messages.Token(b.ID) == a.Key.Batch {
			open = append(open, messages.ListedBatch{Batch: b.ID, Status: "running", Accepted: a.Stored})
		}
		seen, size = seen+1, size+len(a.Body)
		return seen < listedBatches && size < listedBytes
	})
	return open, err
}

// ended lists those that are asked for of the ones that have ended. A place that no reply has reached is of another time: of
// what is kept now nothing is known there.
func (l *listing) ended(ctx context.Context) error {
	newest, found, err := l.journal.LastReplied(ctx, l.key.Tenant, l.key.Session)
	if err != nil || !found {
		return err
	}
	l.Newest = new(listed(newest))
	var from bus.From
	switch after := l.ask.After; {
	case after == nil && (l.ask.Since.IsZero() || newest.Stored.Before(l.ask.Since)), after != nil && *after == newest.Place:
		l.Place = newest.Place
		return nil
	case after == nil:
		from.Time = later(l.ask.Since, time.Unix(0, 0)) // the server knows no time before
	case *after < newest.Place:
		from.Seq, l.Place = *after+1, *after
	}
	seen, size := 0, 0
	err = l.journal.EachReplied(ctx, l.key.Tenant, l.key.Session, from, func(r journal.Replied) bool {
		if messages.Token(r.Batch) == r.Key.Batch {
			l.Batches = append(l.Batches, listed(r))
		}
		l.Place, seen, size = r.Place, seen+1, size+r.Size
		return seen < listedBatches && size < listedBytes
	})
	l.More = l.Place < newest.Place // also where who answered was behind
	return err
}

func listed(r journal.Replied) messages.ListedBatch {
	return messages.ListedBatch{Batch: r.Batch, Status: string(r.Status), Ended: r.Stored, Place: r.Place}
}

// add appends those that are open, but for those of which the reply is on the list already.
func (l *listing) add(open []messages.ListedBatch) {
	ended := len(l.Batches)
	for _, o := range open {
		if !slices.ContainsFunc(l.Batches[:ended], func(b messages.ListedBatch) bool {
			return b.Batch == o.Batch && !b.Ended.Before(o.Accepted)
		}) {
			l.Batches = append(l.Batches, o)
		}
	}
}
