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

// Follow yields the events of a batch: first the past ones from its beginning, then each new one.
// The reply is the last event.
//
//	for event, err := range c.Follow(ctx, session, batch) {
//		if err != nil {
//			return err
//		}
//		fmt.Println(event.Type, event.Tool)
//	}
//
// Every durable event is yielded exactly once, in the order of the timeline, also after a lost
// connection: start, awaiting_approval, running, end, result and reply. Progress and hook
// events are live: they may be missed, and are left out once their call has ended. If the
// worker of a running call was lost, the first running event of the call may be that of its
// second attempt.
//
// An error is yielded once, as the last pair: [ErrUnknown] if the fleet does not know the
// batch (submit it first), [ErrNoFleet] if no coordinator answers for 3 s before the first
// event, a *messages.Refusal, or the cause of ctx. Followers do not affect the batch.
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
type WatchOption interface{ watch(*sessionList) }

// WatchSince makes Watch begin with the batches that ended at this time or later.
func WatchSince(t time.Time) WatchOption { return watchSince(t) }

type watchSince time.Time

func (t watchSince) watch(l *sessionList) { l.since = time.Time(t) }

// Subscribed makes Watch and Live call ready once they are subscribed. From then on they miss no
// new batch.
func Subscribed(ready func()) LiveOption { return subscribed(ready) }

type subscribed func()

func (ready subscribed) watch(l *sessionList) { l.subscribed = ready }
func (ready subscribed) live(l *live)         { l.subscribed = ready }

// Watch is like [Client.Follow], for every batch of a session, until ctx ends: first the open
// batches, then each new one. Batches that begin and end during a lost connection are yielded
// after the reconnect, if their replies are still kept (reply_ttl, by default 24 h). Watch
// yields these batches one after another, in the order in which they ended.
//
// Watch waits until a fleet is there, and waits for it again after an outage. It ends
// without an error when ctx ends. A refusal, or a connection that was closed for good, is
// yielded once, as the last pair.
func (c *Client) Watch(ctx context.Context, s messages.SessionID, options ...WatchOption) iter.Seq2[messages.Event, error] {
	return func(yield func(messages.Event, error) bool) {
		w := newWatcher(c, s, yield)
		w.list = &sessionList{began: time.Now()}
		for _, option := range options {
			option.watch(w.list)
		}
		if err := w.run(ctx, "*"); err != nil && ctx.Err() == nil {
			yield(messages.Event{}, err)
		}
	}
}

const (
	// restFactor and longestRest make the watcher read less often when timelines come slowly.
	// After an answer the watcher pauses for restFactor times as long as the answer took, at
	// most longestRest.
	restFactor  = 4
	longestRest = 5 * time.Second
	// maxRequests is the greatest number of timeline requests in flight.
	maxRequests = 16
)

// watcher yields the events of batches. It reads in rounds. A round first reads the list of the
// session, if there may be a new batch. Then it reads the timelines of the batches with new live
// events, in the order in which the fleet accepted the batches. If an event was lost, it reads the
// timelines of all batches.
type watcher struct {
	client  *Client
	session messages.SessionID
	yield   func(messages.Event, error) bool
	stopped bool // the caller has left its loop
	mail    *mailbox[messages.Event]
	losses  uint64 // the connection's loss counter when it was last read

	batches []*watched   // in the order of the log; those that are not listed come last
	list    *sessionList // nil: one batch is followed

	next     time.Time      // no request before this time
	patience time.Duration  // how long the round waits for the next answer
	retry    time.Duration  // the delay after the last timeline; 0: it did not fail
	deserted time.Time      // since when no coordinator answers; zero: one does
	requests sync.WaitGroup // in flight
}

// watched is a batch that still has something to show: its reply was not shown yet, or the
// list of the session does not name it yet.
type watched struct {
	*feed
	source[messages.Timeline]
	covered int       // how many live events waited when the request in flight was sent
	listed  bool      // Follow follows the batch, or the list named it
	ended   bool      // the reply may be shown: Follow follows the batch, or the list has its reply
	replied time.Time // when the reply that was shown was stored; zero: none was shown
	lists   int       // how many lists had been requested when it was first seen
}

func newWatcher(c *Client, s messages.SessionID, yield func(messages.Event, error) bool) *watcher {
	return &watcher{client: c, session: s, yield: yield, mail: newMailbox[messages.Event]()}
}

// run subscribes to the events and replies of batches. The parameter is the token of one batch, or
// "*" for all. It yields events until the caller leaves its loop, the followed batch has its reply,
// ctx ends, or an error is final.
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
		_ = conn.Flush(ctx) // without a connection, the next one makes the subscription
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

// received handles a message of the server. A published reply is not shown itself: it only
// makes the watcher read the timeline.
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

// takeLive handles the live events that have arrived: it shows those that can be shown, and
// schedules reads.
func (w *watcher) takeLive(ctx context.Context) {
	events, dropped := w.mail.take()
	// Check for losses after taking the events: a new connection brings its first event before
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
		if b == nil { // a new batch or a late event: the list shows which of the two
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

// find returns the batch that an event is about. If only one batch is followed, every event is
// about it, because the subscription names it. The ids are not compared then: an id that is not
// UTF-8 is changed when it is written as JSON.
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

// show yields events. It returns false if the caller left or ctx ended before all were yielded.
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

// round reads what is due: first the list, then the timelines in the order of the list. So
// batches that begin or end during the round are shown in the order of the list.
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
		// After an error, answered returns false: later batches wait for the next round.
		if answer, ok := b.await(ctx, w); ok {
			if more, err := w.answered(ctx, b, answer); err != nil || !more {
				return err
			}
		}
	}
	return nil
}

// waits reports whether a batch has to wait for the list because nothing of it was shown
// yet: the list may name earlier batches that the watcher does not know.
func (w *watcher) waits(b *watched) bool {
	return w.list != nil && !b.begun() && !b.ended && (!b.listed || w.list.more || w.list.awaited)
}

// mayRead reports whether the timeline of a batch may be requested now. At most maxRequests
// requests are in flight, and a batch whose last request got no answer lets the others go first.
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

// answered shows the new events of a timeline. more reports whether the next batch may be read.
func (w *watcher) answered(ctx context.Context, b *watched, a answer[messages.Timeline]) (more bool, err error) {
	switch {
	case w.list != nil && errors.Is(a.err, ErrUnknown):
		w.remove(b)
		return true, nil
	case errors.Is(a.err, context.DeadlineExceeded) && ctx.Err() == nil: // only this batch gets no answer
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
		// Only the list says whether the batch has ended. The reply may belong to an
		// earlier batch with the same id. If events of this batch were shown, the reply
		// comes after them, so it is new and is shown now. Otherwise it waits for the list,
		// which has each reply once.
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

// final returns err if the watcher has to end with it. It returns nil if another request may
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
	// Give up only if nothing of the batch was shown: a batch that has begun goes on once a
	// coordinator is back.
	case noFleet && !w.batches[0].begun() && time.Since(w.deserted) > comingBack:
		return err
	}
	return nil
}

// nextRound returns the time of the next action: a read is due, or an answer can be shown.
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
