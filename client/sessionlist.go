package client

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/messages"
)

// sessionList is a watcher's position in its session's list of batches. The list is durable, so
// reading it from a place on misses no batch: batches that ended before that place were shown, or
// ended before the watch began.
type sessionList struct {
	source[messages.BatchList]
	since time.Time // also show batches that ended since then; zero: only batches that end from now on
	began time.Time // when the watch began, by our clock
	place uint64
	known bool // place is set
	more  bool // the list has further pages
	// awaited: some batch's timeline has a reply that may be an old one. It is shown when the list
	// confirms that it is new.
	awaited   bool
	requested int           // how many pages were requested
	retry     time.Duration // the delay after the last page; 0: it did not fail

	subscribed func() // called once the watch is subscribed; nil: nobody asks
}

// errBehind is the error for a page that announces more entries but does not move the place. Its
// server has not caught up.
var errBehind = errors.New("the server that answered is behind")

// get returns the request for the next page.
func (l *sessionList) get() messages.Get {
	if l.known {
		return messages.Get{Batches: true, After: &l.place}
	}
	return messages.Get{Batches: true, Since: l.since}
}

// readList reads a page of the list if it is due, and adopts its batches and their order. Without
// an answer, or after a temporary error, the batches that have begun go on.
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
		if l.since.IsZero() { // a batch may end before the next try, so begin here
			l.since = l.began
		}
		l.retry = later(l.retry)
		l.due = time.Now().Add(l.retry)
		return w.final(ctx, err)
	}
	l.place, l.known, l.more, l.retry = list.Place, true, list.More, 0
	l.awaited = l.awaited && l.isDue() // isDue: a hint came after this page was requested
	if l.more {
		l.hint()
	}
	w.order(list)
	return nil
}

// order puts the batches into the order of the log: first those of earlier pages whose timeline is
// still unread, then those of this list, then those that are not listed yet. A batch without shown
// events that a complete list lacks is over: a late live event had announced it, and it is dropped.
// A batch that was first seen after the list was requested is kept.
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

// isBefore reports whether an entry of the list is another, later batch with the same id. Such a
// batch has ended, or was accepted, after the reply that was shown.
func (b *watched) isBefore(entry messages.ListedBatch) bool {
	at := entry.Ended
	if entry.Open() {
		at = entry.Accepted
	}
	return !b.replied.IsZero() && at.After(b.replied)
}
