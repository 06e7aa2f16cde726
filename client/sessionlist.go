package client

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/messages"
)

// sessionList records how far a watcher has read the list of the session's batches. The
// list is durable and ordered, so a watcher that reads on from its place misses no batch.
// Batches before the place were shown, or ended before the watch began.
type sessionList struct {
	source[messages.BatchList]
	since time.Time // also show batches that ended since then; zero: only batches that end from now on
	began time.Time // when the watch began, by our clock
	place uint64
	known bool // place is set
	more  bool // the list has further pages
	// awaited: the timeline of some batch has a reply that may belong to an older batch
	// with the same id. The reply is shown when the list confirms that it is new.
	awaited   bool
	requested int           // how many pages were requested
	retry     time.Duration // the delay after the last page; 0: it did not fail

	subscribed func() // called once the watch is subscribed; nil: nothing is called
}

// errBehind is the error for a page that says that there are more entries and yet has the
// same place as before. The server that answered has not caught up with the others.
var errBehind = errors.New("the server that answered is behind")

// get returns the request for the next page.
func (l *sessionList) get() messages.Get {
	if l.known {
		return messages.Get{Batches: true, After: &l.place}
	}
	return messages.Get{Batches: true, Since: l.since}
}

// readList reads a page of the list if one is due, and takes over its batches and their order. If
// there is no answer, or a temporary error, the batches that already show events go on.
func (w *watcher) readList(ctx context.Context) error {
	l := w.list
	if l.isDue() {
		get := l.get()
		l.requested++
		l.read(w, func() (messages.BatchList, error) { return w.client.batches(ctx, w.session, get) })
	}
	answer, ok := l.await(ctx, w)
	if !ok {
		return nil
	}
	list, err := answer.value, answer.err
	if err == nil && list.More && (list.Place == 0 || l.known && list.Place == l.place) {
		err = errBehind
	}
	if err != nil {
		if l.since.IsZero() { // a batch may end before the next try, so read the ended batches from this time on
			l.since = l.began
		}
		l.retry = later(l.retry)
		l.due = time.Now().Add(l.retry)
		return w.final(ctx, err)
	}
	l.place, l.known, l.more, l.retry = list.Place, true, list.More, 0
	l.awaited = l.awaited && l.isDue() // isDue: a live event asked for another page after this one was requested
	if l.more {
		l.hint()
	}
	w.order(list)
	return nil
}

// order sorts the batches as the log has them: first batches of earlier pages whose
// timeline was not read yet, then those of this list, then those that are not listed yet.
// It drops a batch if the complete list does not have it and nothing of it was shown: it
// became known only by a late live event, and has ended. It keeps a batch that was first
// seen after the list was requested.
func (w *watcher) order(list messages.BatchList) {
	var listed, earlier, others []*watched
	for _, entry := range list.Batches {
		b := w.find(entry.Batch)
		if b != nil && b.isBefore(entry) {
			w.remove(b)
			b = nil
		}
		if b == nil {
			b = &watched{feed: newFeed(entry.Batch)}
		}
		b.listed = true
		if !entry.Open() && !b.ended {
			b.ended = true
			b.hint()
		}
		listed = append(listed, b)
	}
	for _, b := range w.batches {
		switch {
		case slices.Contains(listed, b):
		case b.ended:
			earlier = append(earlier, b)
		case b.begun() || list.More || b.lists == w.list.requested:
			others = append(others, b)
		}
	}
	w.batches = slices.Concat(earlier, listed, others)
}

// isBefore reports whether the entry of the list is a later batch with the same id as b. Such a
// batch was accepted, or has ended, after the reply of b that was shown.
func (b *watched) isBefore(entry messages.ListedBatch) bool {
	at := entry.Ended
	if entry.Open() {
		at = entry.Accepted
	}
	return !b.replied.IsZero() && at.After(b.replied)
}
