package handlers

import (
	"context"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Limits of one answer: maxListed open batches and maxListed ended ones, and maxListedBytes
// read for each of the two lists. A batch cannot be read without its body.
const (
	maxListed      = 64
	maxListedBytes = 1 << 20
)

// sessionList is the list of the batches of one session.
type sessionList struct {
	journal *journal.Journal
	key     wire.BatchKey // only tenant and session are used
	want    messages.Get
	out     messages.BatchList
	// here says that the request wants only the ended batches that end while the list is made.
	here bool
}

// list returns the batches of a session.
func (h *Handlers) list(ctx context.Context, key wire.BatchKey, want messages.Get) ([]byte, error) {
	return h.limited(ctx, key.Tenant, func() (any, error) {
		ctx, cancel := context.WithTimeoutCause(ctx, limiterTimeout, errCrowded)
		defer cancel()
		l := sessionList{journal: h.journal, key: key, want: want, out: messages.BatchList{V: messages.Version, Batches: []messages.ListedBatch{}}}
		if want.After == nil && want.Since.IsZero() {
			if err := l.beginHere(ctx); err != nil {
				return nil, err
			}
		}
		// Read the log before the replies. A batch leaves the log only after its reply is
		// stored, so one of the two reads finds it.
		open, err := l.open(ctx)
		if err == nil {
			err = l.addEnded(ctx)
		}
		if err == nil && !l.out.More {
			err = l.addOpen(ctx, open)
		}
		return l.out, err
	})
}

// beginHere makes the list include only those ended batches that end from now on.
func (l *sessionList) beginHere(ctx context.Context) error {
	newest, _, err := l.journal.LastReplied(ctx, l.key.Tenant, l.key.Session)
	l.want.After, l.here = &newest.Place, true
	return err
}

// open returns the batches in the log, the oldest first. It leaves out a batch whose body and
// subject name different ids, because that batch will be refused.
func (l *sessionList) open(ctx context.Context) (open []messages.ListedBatch, err error) {
	seen, size := 0, 0
	err = l.journal.EachOpen(ctx, l.key.Tenant, l.key.Session, func(a journal.Accepted) (more bool) {
		b, _ := messages.DecodeBatch(a.Body)
		if messages.Token(b.ID) == a.Key.Batch {
			open = append(open, messages.ListedBatch{Batch: b.ID, Status: messages.BatchRunning, Accepted: a.Stored})
		}
		seen, size = seen+1, size+len(a.Body)
		return seen < maxListed && size < maxListedBytes
	})
	return open, err
}

// addEnded adds the ended batches that the request asks for. If the cursor of the request is
// after the newest reply, the stream was deleted after the cursor was given out. Then the list
// begins with the oldest reply.
func (l *sessionList) addEnded(ctx context.Context) error {
	newest, found, err := l.journal.LastReplied(ctx, l.key.Tenant, l.key.Session)
	if err != nil || !found {
		return err
	}
	l.out.Newest = new(listed(newest))
	var from bus.From
	switch after := l.want.After; {
	case after == nil && newest.Stored.Before(l.want.Since), after != nil && *after == newest.Place:
		l.out.Place = newest.Place
		return nil
	case after == nil:
		from.Time = later(l.want.Since, time.Unix(0, 0)) // the server accepts no earlier time
	case *after < newest.Place:
		from.Seq, l.out.Place = *after+1, *after
	}
	seen, size := 0, 0
	err = l.journal.EachReplied(ctx, l.key.Tenant, l.key.Session, from, func(r journal.Replied) (more bool) {
		if messages.Token(r.Batch) == r.Key.Batch {
			l.out.Batches = append(l.out.Batches, listed(r))
		}
		l.out.Place, seen, size = r.Place, seen+1, size+r.Size
		return seen < maxListed && size < maxListedBytes
	})
	// There are more replies, even if the replica that answered does not have them.
	l.out.More = l.out.Place < newest.Place
	return err
}

func listed(r journal.Replied) messages.ListedBatch {
	return messages.ListedBatch{Batch: r.Batch, Status: string(r.Status), Ended: r.Stored, Place: r.Place}
}

// addOpen adds the open batches. A batch may still be in the log although its reply is stored.
// This list shows such a batch as ended: the next list begins after this list's place, so it
// may not show the reply. But the list leaves the batch out if the requester already has its
// reply, or asks only for newer replies.
func (l *sessionList) addOpen(ctx context.Context, open []messages.ListedBatch) error {
	open = slices.DeleteFunc(open, func(o messages.ListedBatch) bool {
		return slices.ContainsFunc(l.out.Batches, func(e messages.ListedBatch) bool { return ends(e, o) })
	})
	keys := make([]wire.BatchKey, len(open))
	for i, o := range open {
		keys[i] = wire.BatchKey{Tenant: l.key.Tenant, Session: l.key.Session, Batch: messages.Token(o.Batch)}
	}
	replies, err := l.journal.RepliesOf(ctx, keys...)
	ended := []messages.ListedBatch{} // not nil, because null is not a list
	for _, r := range replies {
		i := slices.IndexFunc(open, func(o messages.ListedBatch) bool { return ends(listed(r), o) })
		if i >= 0 && r.Place <= l.out.Place {
			open = slices.Delete(open, i, i+1)
			ended = append(ended, listed(r))
		}
	}
	if l.here {
		l.out.Batches = append(ended, l.out.Batches...)
	}
	l.out.Batches = append(l.out.Batches, open...)
	return err
}

// ends reports whether the entry e of an ended batch is about this open batch. If e ended
// before this batch was accepted, it is about an earlier batch with the same id.
func ends(e, open messages.ListedBatch) bool {
	return e.Batch == open.Batch && !e.Ended.Before(open.Accepted)
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
