package httpapi

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/messages"
)

// liveFeeds passes the live events of a tenant to all its streams on this server.
type liveFeeds struct {
	closing context.Context // ends when the server stops
	running sync.WaitGroup

	mu  sync.Mutex
	all map[string]*liveFeed // the feeds that have streams, by tenant; guarded by mu
}

// liveFeed is the subscription to the live events of one tenant.
type liveFeed struct {
	streams map[*liveQueue]bool // guarded by liveFeeds.mu
	begun   chan struct{}       // closed once events arrive
	stop    context.CancelFunc
	err     error // why no events arrive; set before begun is closed
}

// liveQueue has the events that one stream has not written yet. It is closed after the last
// event.
type liveQueue struct {
	queue  chan messages.Event
	missed atomic.Bool // an event was dropped because the queue was full
}

// maxQueued limits the events that wait for a slow client.
const maxQueued = 256

// join gives a stream the live events of its tenant until the stream calls leave. The error
// says why there are no events.
func (l *liveFeeds) join(q *request) (events *liveQueue, leave func(), err error) {
	feed, events, leave := l.enter(q)
	select {
	case <-feed.begun:
		err = feed.err
	case <-q.Context().Done():
		err = context.Cause(q.Context())
	}
	if err != nil {
		leave()
		return nil, nil, err
	}
	return events, leave, nil
}

func (l *liveFeeds) enter(q *request) (feed *liveFeed, events *liveQueue, leave func()) {
	tenant := q.who.Tenant
	l.mu.Lock()
	defer l.mu.Unlock()
	feed = l.all[tenant]
	if feed == nil {
		if l.all == nil {
			l.all = map[string]*liveFeed{}
		}
		ctx, cancel := context.WithCancel(l.closing)
		feed = &liveFeed{streams: map[*liveQueue]bool{}, begun: make(chan struct{}), stop: cancel}
		l.all[tenant] = feed
		l.running.Go(func() { l.run(ctx, tenant, feed, q.client) })
	}
	events = &liveQueue{queue: make(chan messages.Event, maxQueued)}
	feed.streams[events] = true
	return feed, events, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if delete(feed.streams, events); len(feed.streams) == 0 {
			l.forget(tenant, feed)
		}
	}
}

// run passes the events on to the streams until ctx ends.
func (l *liveFeeds) run(ctx context.Context, tenant string, feed *liveFeed, c *client.Client) {
	begin := sync.OnceFunc(func() { close(feed.begun) })
	for e, err := range c.Live(ctx, client.Subscribed(begin)) {
		if err != nil { // the client could not subscribe, so begun is not closed
			feed.err = err
			break
		}
		l.give(feed, e)
	}
	begin()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget(tenant, feed)
	for events := range feed.streams {
		close(events.queue)
	}
	feed.streams = nil
}

func (l *liveFeeds) give(feed *liveFeed, e messages.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for events := range feed.streams {
		select {
		case events.queue <- e:
		default:
			events.missed.Store(true)
		}
	}
}

// forget stops a feed and removes it from the map. The caller holds mu.
func (l *liveFeeds) forget(tenant string, feed *liveFeed) {
	feed.stop()
	if l.all[tenant] == feed {
		delete(l.all, tenant)
	}
}
