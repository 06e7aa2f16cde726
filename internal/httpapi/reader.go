package httpapi

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

const (
	// linger is how long a reader without a stream stays, so that a client that reconnects
	// finds it.
	linger = 30 * time.Second
	// maxKept limits the events that a reader keeps. When it has twice as many, it drops live
	// events and events of ended batches, the oldest first, until maxKept are left.
	maxKept = 1 << 10
)

// reader reads the events of one session for all its streams on this server. It keeps the
// events of open batches, and the latest of the other events.
type reader struct {
	name string // a random name

	mu      sync.Mutex
	since   time.Time       // it shows batches that ended since then; zero: not known; guarded by mu
	kept    []kept          // in the order of their numbers; guarded by mu
	newest  uint64          // the number of the last event; guarded by mu
	dropped uint64          // the number of the newest durable event that was dropped; guarded by mu
	ended   map[string]bool // batches in kept that have their reply; guarded by mu
	more    chan struct{}   // closed and replaced at each new event; guarded by mu
	err     error           // why no more events will come; guarded by mu
	shown   *shown          // owned by run's goroutine

	begun chan struct{} // closed when the reader misses no later event

	users int // number of streams; guarded by readers.mu
	stop  context.CancelFunc
}

// kept is an event that a reader keeps.
type kept struct {
	number uint64
	id     string // "": the event is live
	event  messages.Event
	data   []byte
}

// newReader returns a reader that shows batches that ended since a time. The zero time stands
// for the time when the reader begins.
func newReader(since time.Time) *reader {
	return &reader{
		name: rand.Text(), since: since, ended: map[string]bool{}, more: make(chan struct{}), begun: make(chan struct{}), shown: shownUntil(position{}),
	}
}

// run reads events until ctx ends or the fleet refuses the request.
func (r *reader) run(ctx context.Context, c *client.Client, session messages.SessionID) {
	begin := sync.OnceFunc(func() { close(r.begun) })
	defer begin()
	since := r.begin(ctx, c, session)
	for e, err := range c.Watch(ctx, session, client.WatchSince(since), client.Subscribed(begin)) {
		if err != nil {
			r.end(err)
			return
		}
		r.add(e)
	}
	r.end(errClosing)
}

// begin returns the time since which the reader shows ended batches. If no time is set, it is
// the end of the newest ended batch, by the clock of the NATS server.
func (r *reader) begin(ctx context.Context, c *client.Client, session messages.SessionID) time.Time {
	r.mu.Lock()
	since := r.since
	r.mu.Unlock()
	if !since.IsZero() {
		return since
	}
	list, err := c.Batches(ctx, session, client.ListOptions{})
	switch {
	case err != nil: // use this machine's clock, which may be ahead
		since = time.Now().Add(-slack)
	case list.Newest == nil:
		since = time.Unix(0, 0)
	default:
		since = list.Newest.Ended.Add(1)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.since = since
	return since
}

// add keeps an event and wakes the streams of the reader.
func (r *reader) add(e messages.Event) {
	r.shown.add(e)
	k := kept{event: e, data: rawjson.MustMarshal(e)}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.newest++
	if k.number = r.newest; !isLive(e) {
		k.id = r.shown.at(r.name, k.number, r.since).id()
	}
	if e.Type == messages.EventReply {
		r.ended[nameOf(e.Batch)] = true
	}
	r.kept = append(r.kept, k)
	if len(r.kept) > 2*maxKept {
		r.drop()
	}
	close(r.more)
	r.more = make(chan struct{})
}

// drop drops live events, and events of ended batches, the oldest first. The caller holds mu.
func (r *reader) drop() {
	spare, still := len(r.kept)-maxKept, map[string]bool{}
	r.kept = slices.DeleteFunc(r.kept, func(k kept) bool {
		name := nameOf(k.event.Batch)
		drop := spare > 0 && (k.id == "" || r.ended[name])
		if drop {
			spare--
		} else {
			still[name] = true
		}
		if drop && k.id != "" {
			r.dropped = k.number
		}
		return drop
	})
	for name := range r.ended {
		if !still[name] {
			delete(r.ended, name)
		}
	}
}

func (r *reader) end(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
	close(r.more)
	r.more = make(chan struct{})
}

// after returns the events after a number, the number of the newest dropped event, and a
// channel that is closed when there are more events. err says that no more events will come.
func (r *reader) after(number uint64) (events []kept, dropped uint64, more <-chan struct{}, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i, _ := slices.BinarySearchFunc(r.kept, number+1, func(k kept, n uint64) int { return cmp.Compare(k.number, n) })
	return slices.Clone(r.kept[i:]), r.dropped, r.more, r.err
}

// place is the position of a stream in the events of a reader.
type place struct {
	*reader
	number  uint64          // number of the last event that was read
	live    uint64          // live events up to this number are too old to be shown
	dropped uint64          // events up to this number were dropped before the stream began
	shown   *shown          // what another server has shown to the client; nil: not needed
	skip    map[string]bool // batches that had ended before the stream began
}

// place returns the place after a position. ok reports whether the reader has everything that
// follows the position. If resume is false, the stream begins with the open batches.
func (r *reader) place(p position, resume bool) (at place, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at = place{reader: r, live: r.newest, dropped: r.dropped}
	switch {
	case r.err != nil:
		return at, false
	case !resume:
		at.skip = maps.Clone(r.ended)
		return at, true
	case p.Reader == r.name && p.Number <= r.newest && p.Number >= r.dropped:
		at.number = p.Number
		return at, true
	}
	at.shown = shownUntil(p)
	return at, r.dropped == 0 && !r.since.IsZero() && !r.since.After(p.since())
}

// errBehind ends a stream whose client reads too slowly.
var errBehind = errors.New("the client is too far behind; its next request goes on from where it is")

// next waits for events that the client has not been shown, and returns them.
func (a *place) next(ctx context.Context) (show []kept, err error) {
	for {
		events, dropped, more, err := a.after(a.number)
		if dropped > a.dropped && dropped > a.number {
			return nil, errBehind
		}
		for _, k := range events {
			if a.number = k.number; a.isNew(k) {
				show = append(show, k)
			}
		}
		if len(show) > 0 || err != nil {
			return show, err
		}
		select {
		case <-more:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// isNew reports whether the client at this place has still to be shown an event.
func (a *place) isNew(k kept) bool {
	switch {
	case k.id == "" && k.number <= a.live, a.skip[nameOf(k.event.Batch)]:
		return false
	case a.shown != nil:
		return a.shown.add(k.event)
	}
	return true
}
