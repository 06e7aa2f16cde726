package client

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Follow yields the events of a batch from its beginning to its reply, which is the last event:
// first what has happened so far, then what happens.
//
//	for event, err := range c.Follow(ctx, session, batch) {
//		if err != nil {
//			return err
//		}
//		fmt.Println(event.Type, event.Tool)
//	}
//
// Every durable event is yielded exactly once and in the order of the timeline, through any loss of
// the connection: start, awaiting_approval, running, end, result and reply. Progress and hook
// events are live: they may be missed, but never come late. If a worker was lost with a call that
// it ran, the call may begin with the running event of its second attempt.
//
// An error is yielded once, as the last pair: [ErrUnknown] for a batch that the fleet does not know
// (submit it before you follow it), [ErrNoFleet] when no coordinator has answered for 3 s and none
// ever did, a *messages.Refusal, or the cause of ctx when ctx ends before the reply. The batch goes
// on whatever becomes of its followers.
func (c *Client) Follow(ctx context.Context, s messages.SessionID, b messages.BatchID) iter.Seq2[messages.Event, error] {
	return func(yield func(messages.Event, error) bool) {
		w := newWatcher(c, s, yield)
		w.batches = []*watched{{feed: newFeed(b), listed: true, ended: true}}
		if err := w.run(ctx, c.key(s, b).Batch); err != nil {
			yield(messages.Event{}, err)
		}
	}
}

// WatchOption is an option of [Client.Watch].
type WatchOption func(*sessionList)

// Since begins with the batches that have ended at this time or later.
func Since(t time.Time) WatchOption { return func(l *sessionList) { l.since = t } }

// Subscribed has ready called once Watch is subscribed: of batches that are submitted after that it
// misses nothing.
func Subscribed(ready func()) WatchOption { return func(l *sessionList) { l.subscribed = ready } }

// Watch is [Client.Follow] for every batch of a session, until ctx ends: first the batches that are
// open, then those that come. Batches that begin and end while the connection is lost are yielded
// after the reconnect, as long as their replies are kept (reply_ttl, by default 24 h): each from
// its beginning, one after another in the order in which they ended.
//
// Watch waits for a fleet to appear and to come back. It ends without an error when ctx ends; a
// refusal or a connection that is closed for good is yielded once, as the last pair.
func (c *Client) Watch(ctx context.Context, s messages.SessionID, options ...WatchOption) iter.Seq2[messages.Event, error] {
	return func(yield func(messages.Event, error) bool) {
		w := newWatcher(c, s, yield)
		w.list = &sessionList{began: time.Now()}
		for _, option := range options {
			option(w.list)
		}
		if err := w.run(ctx, "*"); err != nil && ctx.Err() == nil {
			yield(messages.Event{}, err)
		}
	}
}

const (
	// After an answer the watcher rests this many times as long as the answer took, at most
	// longestRest: a history that takes long to read is read less often.
	restFactor  = 4
	longestRest = 5 * time.Second
	// maxRequests bounds the timeline requests in flight.
	maxRequests = 16
)

// watcher yields the events of batches. It reads in rounds. A round reads the list of the session
// when there may be another batch, and then the timelines of the batches that had a live event, in
// the order of the log. After the loss of an event it reads the timelines of all batches.
type watcher struct {
	client  *Client
	session messages.SessionID
	yield   func(messages.Event, error) bool
	stopped bool // the caller has left its loop
	mail    *mailbox[messages.Event]
	losses  uint64 // the connection's loss counter at the last look

	batches []*watched   // in the order of the log; those that are not listed come last
	list    *sessionList // nil: one batch is followed

	next     time.Time      // no request before this time
	patience time.Duration  // how long the round waits for the next answer
	retry    time.Duration  // the delay after the last timeline; 0: it did not fail
	deserted time.Time      // since when no coordinator answers; zero: one does
	requests sync.WaitGroup // in flight
}

// watched is a batch whose reply was not shown yet, or which is not in the list yet.
type watched struct {
	*feed
	source[messages.Timeline]
	covered int       // how many live events waited when the request in flight was sent
	listed  bool      // it is followed, or the list had it
	ended   bool      // it may be shown to its end: it is followed, or the list has its reply
	replied time.Time // when the reply that was shown was stored; zero: none was shown
	lists   int       // how many lists had been requested when it was first seen
}

func newWatcher(c *Client, s messages.SessionID, yield func(messages.Event, error) bool) *watcher {
	return &watcher{client: c, session: s, yield: yield, mail: newMailbox[messages.Event]()}
}

// run subscribes to the events and replies of batches (the token of one batch, or "*" for all) and
// yields events until the caller leaves its loop, the followed batch has its reply, ctx ends, or an
// error is final.
func (w *watcher) run(ctx context.Context, batches string) error {
	conn, key := w.client.conn, w.client.key(w.session, "")
	key.Batch = batches
	w.losses = conn.Losses()
	for _, verb := range []wire.Verb{wire.VerbEvent, wire.VerbReply} {
		unsubscribe, err := conn.Subscribe(w.client.names.Of(verb, key), "", func(m bus.Msg) { w.received(verb, m) })
		if err != nil {
			return err
		}
		defer unsubscribe()
	}
	defer conn.OnReconnect(w.mail.signal)()
	if w.list != nil && w.list.subscribed != nil {
		_ = conn.Flush(ctx) // without a connection, the subscription is made with the next one
		w.list.subscribed()
	}
	requests, cancel := context.WithCancel(ctx)
	defer w.requests.Wait()
	defer cancel()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		w.takeLive(ctx)
		err := w.round(requests)
		switch {
		case w.stopped || w.list == nil && len(w.batches) == 0:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return err
		}
		timer.Reset(time.Until(w.nextRound()))
		select {
		case <-w.mail.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
}

// received takes a message of the server. A stored reply is only a hint.
func (w *watcher) received(verb wire.Verb, m bus.Msg) {
	var e messages.Event
	if json.Unmarshal(m.Data, &e) != nil {
		return
	}
	if verb == wire.VerbReply {
		e = messages.Event{Batch: e.Batch, Index: -1}
	}
	w.mail.put(e)
}

// takeLive takes the live events that have arrived, shows what can be shown, and schedules reads.
func (w *watcher) takeLive(ctx context.Context) {
	events, dropped := w.mail.take()
	// Look for losses after the take: the first event over a new connection comes before
	// OnReconnect is called.
	if losses := w.client.conn.Losses(); dropped || losses != w.losses {
		w.losses, w.next, w.retry = losses, time.Time{}, 0
		for _, b := range w.batches {
			b.slow = false
			b.hint()
		}
		if w.list != nil {
			w.list.slow, w.list.retry = false, 0
			w.list.hint()
		}
	}
	for _, e := range events {
		b := w.find(e.Batch)
		if b == nil { // it begins, or the event is late: the list tells
			b = &watched{feed: newFeed(e.Batch), lists: w.list.requested}
			w.batches = append(w.batches, b)
			w.list.hint()
		}
		show, hint := b.live(e)
		if hint {
			b.hint()
		}
		w.show(ctx, b, show)
	}
}

// find returns the batch with an id. If only one batch is followed, every event is about it,
// because the subscription names it: the ids must not be compared then, since an id that is not
// UTF-8 does not survive in a body.
func (w *watcher) find(id messages.BatchID) *watched {
	if w.list == nil {
		return w.batches[0]
	}
	for _, b := range w.batches {
		if b.id == id {
			return b
		}
	}
	return nil
}

// show yields events, and reports false if the caller or ctx ended before all were yielded.
func (w *watcher) show(ctx context.Context, b *watched, events []messages.Event) bool {
	for _, e := range events {
		if w.stopped || ctx.Err() != nil {
			return false
		}
		e.Batch = b.id
		w.stopped = !w.yield(e, nil)
	}
	return true
}

// round reads what is due: the list first, then the timelines, in order. Batches that begin or have
// ended meanwhile are thereby shown in the order of the list.
func (w *watcher) round(ctx context.Context) error {
	if w.stopped || time.Now().Before(w.next) {
		return nil
	}
	w.patience = patience
	if w.list != nil {
		if err := w.readList(ctx); err != nil {
			return err
		}
	}
	for _, b := range slices.Clone(w.batches) {
		w.takeLive(ctx)
		if w.stopped || w.waits(b) {
			continue
		}
		if b.isDue() && w.mayRead(b) {
			b.covered = len(b.arrived)
			b.read(w, func() (messages.Timeline, error) { return w.client.Timeline(ctx, w.session, b.id) })
		}
		// After an error, answered reports no more: the batches that come later wait for the next
		// round.
		if answer, ok := b.await(ctx, w); ok {
			if more, err := w.answered(ctx, b, answer); err != nil || !more {
				return err
			}
		}
	}
	return nil
}

// waits reports whether a batch of which nothing was shown waits for the list: it is not known yet
// which batches come before it.
func (w *watcher) waits(b *watched) bool {
	return w.list != nil && !b.begun() && !b.ended && (!b.listed || w.list.more || w.list.awaited)
}

// mayRead reports whether the timeline of a batch may be requested: few requests are in flight, and
// a batch that got no answer lets the others go first.
func (w *watcher) mayRead(b *watched) bool {
	inFlight := 0
	for _, other := range w.batches {
		switch {
		case other.inFlight():
			inFlight++
		case b.slow && !other.slow && other.isDue() && !w.waits(other):
			return false
		}
	}
	return inFlight < maxRequests
}

// answered shows what is new in a timeline. more reports whether the next one may be read.
func (w *watcher) answered(ctx context.Context, b *watched, a answer[messages.Timeline]) (more bool, err error) {
	switch {
	case w.list != nil && errors.Is(a.err, ErrUnknown):
		w.remove(b)
		return true, nil
	case errors.Is(a.err, context.DeadlineExceeded) && ctx.Err() == nil: // this batch alone gets no answer
		b.hint()
		return true, nil
	case a.err != nil:
		b.hint()
		w.retry = later(w.retry)
		w.next = time.Now().Add(w.retry)
		return false, w.final(ctx, a.err)
	}
	w.retry, w.deserted = 0, time.Time{}
	if next := time.Now().Add(min(restFactor*a.took, longestRest)); next.After(w.next) {
		w.next = next
	}
	events := a.value.Events
	over := len(events) > 0 && events[len(events)-1].Type == messages.EventReply
	if over && !b.ended {
		// Only the list says whether the batch has ended. The reply may be an old one, of an
		// earlier batch with the same id. It is new, and shown now, if events of this batch were
		// shown before it. Otherwise it waits for the list, which has each reply once.
		w.list.hint()
		if !b.begun() {
			w.list.awaited = true
			return true, nil
		}
	}
	if w.show(ctx, b, b.timeline(events, b.covered)) && over {
		b.replied = events[len(events)-1].Time
		if b.ended {
			w.remove(b)
		}
	}
	return true, nil
}

func (w *watcher) remove(b *watched) {
	w.batches = slices.DeleteFunc(w.batches, func(other *watched) bool { return other == b })
}

// final returns an error of a request that ends the watcher, or nil when the next request may
// succeed.
func (w *watcher) final(ctx context.Context, err error) error {
	var refusal *messages.Refusal
	noFleet := errors.Is(err, ErrNoFleet)
	if !noFleet {
		w.deserted = time.Time{}
	} else if w.deserted.IsZero() {
		w.deserted = time.Now()
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &refusal) && refusal.Class != messages.ClassBusy, bus.IsTerminal(err):
		return err
	case w.list != nil:
	case errors.Is(err, ErrUnknown), errors.Is(err, errNoTimelines):
		return err
	// A batch that has begun goes on when a coordinator is back.
	case noFleet && !w.batches[0].begun() && time.Since(w.deserted) > comingBack:
		return err
	}
	return nil
}

// nextRound returns when something is due next, or an answer has to be shown.
func (w *watcher) nextRound() time.Time {
	next := time.Now().Add(lookAfter)
	if w.list != nil {
		next = w.list.next()
	}
	for _, b := range w.batches {
		if at := b.next(); at.Before(next) && !w.waits(b) && (b.answer != nil || w.mayRead(b)) {
			next = at
		}
	}
	if next.Before(w.next) {
		next = w.next
	}
	return next
}
