package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/messages"
)

// Timeline is what is durable about a batch so far, or all of it once it has ended; ErrUnknown for one that nobody knows.
func (c *Client) Timeline(ctx context.Context, s messages.SessionID, b messages.BatchID) (messages.Timeline, error) {
	answer, err := answerTo[struct {
		messages.Timeline
		Error *messages.Refusal `json:"error"`
	}](ctx, c, c.names.Of(messages.VerbGet, c.key(s, b)), []byte(`{"timeline":true}`))
	switch {
	case err != nil:
	case answer.Error != nil:
		err = answer.Error
	case answer.Status == "unknown":
		return messages.Timeline{}, ErrUnknown
	case answer.Events == nil:
		err = errNoTimelines
	default:
		return answer.Timeline, nil
	}
	return messages.Timeline{}, fmt.Errorf("timeline of batch %s: %w", b, err)
}

var errNoTimelines = errors.New("the coordinator that answered is of a version that knows no timelines")

// Follow tells what happens to a batch, from its beginning to its reply, and then returns: first what has happened, then what
// happens. Everything but progress and news of hooks is told exactly once, whatever happens to the connection, and of each call in the
// order in which it happened. Of the rest some may be missed, and none is told late. A batch that nobody knows is ErrUnknown:
// follow it once it was submitted. each is called from this goroutine, and not any more once ctx has ended.
func (c *Client) Follow(ctx context.Context, s messages.SessionID, b messages.BatchID, each func(messages.Event)) error {
	f := &follower{client: c, session: s, only: b, each: each}
	return f.run(ctx, c.key(s, b).Batch)
}

// lookAfter is how long a batch may be silent before it is asked for: the news of it may have been lost.
const lookAfter = 30 * time.Second

// asksAtOnce bounds the questions about batches that are open at the door.
const asksAtOnce = 4

// follower tells what happens to batches. What comes in is queued, so that nobody waits for whoever is told; and what happened
// before is asked for aside, so that no batch waits for news of another.
type follower struct {
	client  *Client
	session messages.SessionID
	only    messages.BatchID // "": every batch of the session
	each    func(messages.Event)

	mu    sync.Mutex
	queue []tiding // guarded by mu
	lost  bool     // something may have been missed; guarded by mu
	seen  uint64   // of what the connection has lost; guarded by mu
	wake  chan struct{}

	answers chan answeredPast // to run's goroutine, which owns the rest
	asking  int               // how many are to come
	batches map[messages.BatchID]*followed
	over    []ended // the last that were told to their end, and all that are after the past's place
	past    *past   // nil: one batch is followed
}

// tiding is an event as it came in.
type tiding struct {
	messages.Event
	place uint64 // among the replies, of one that was stored
}

// ended is a batch that was told to its end.
type ended struct {
	id    messages.BatchID
	place uint64 // of its reply; 0: not known
}

// answeredPast is what is known to have happened to a batch.
type answeredPast struct {
	id     messages.BatchID
	events []messages.Event
	err    error
}

// followed is a batch that is told.
type followed struct {
	story  *story
	held   []messages.Event // until it is known what came before them
	asking bool             // what that is
	before int              // how many of the held ones were there when that was asked
	again  bool             // something may have been missed since
	ask    time.Time        // when it is due to be asked
	wait   time.Duration    // before the next try
	since  time.Time        // of the first try that found nobody; zero: somebody was there

	place    uint64        // of its reply, where that is known
	accepted time.Time     // where it was listed as open: a reply from before is an older batch's
	turn     bool          // nothing of it is told before its turn
	answer   *answeredPast // that waits for it
}

// maxQueue bounds the news that wait to be told. Of a watcher that is slower some are dropped, and what is durable of them is
// asked for.
const maxQueue = 1 << 14

func (f *follower) run(ctx context.Context, batches string) error {
	f.wake, f.answers, f.batches = make(chan struct{}, 1), make(chan answeredPast), map[messages.BatchID]*followed{}
	c := f.client
	key := c.key(f.session, "")
	key.Batch = batches
	f.seen = c.conn.Losses()
	for verb, take := range map[messages.Verb]func(bus.Msg){messages.VerbEvent: f.heard, messages.VerbReply: f.replied} {
		unsubscribe, err := c.conn.Subscribe(c.names.Of(verb, key), "", take)
		if err != nil {
			return err
		}
		defer unsubscribe()
	}
	defer c.conn.OnReconnect(f.missed)()
	if f.only != "" {
		f.batches[f.only] = &followed{story: newStory(), ask: time.Now()}
	}
	var lists chan answeredList
	if f.past != nil {
		f.past.at, lists = time.Now(), make(chan answeredList)
		f.past.until = f.past.at.Add(lookAfter)
		f.past.lists = lists
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	asking, stop := context.WithCancel(ctx)
	defer stop()
	for {
		err := f.step(ctx, asking)
		switch {
		case err != nil:
			return err
		case f.only != "" && f.batches[f.only] == nil: // told to its end
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		timer.Reset(f.next())
		select {
		case <-f.wake:
		case <-timer.C:
		case past := <-f.answers:
			if err := f.answered(ctx, past); err != nil {
				return err
			}
		case list := <-lists:
			f.listed(list)
		case <-ctx.Done():
		}
	}
}

// heard queues an event.
func (f *follower) heard(m bus.Msg) {
	var e messages.Event
	if json.Unmarshal(m.Data, &e) == nil {
		f.push(tiding{Event: e})
	}
}

// storedReply is an event of our own: the server has published the reply of a batch, so its last events are on their way.
const storedReply messages.EventType = "stored"

func (f *follower) replied(m bus.Msg) {
	var r struct{ Batch messages.BatchID }
	if json.Unmarshal(m.Data, &r) == nil {
		f.push(tiding{messages.Event{Type: storedReply, Batch: r.Batch, Index: -1}, placeOf(m)})
	}
}

func (f *follower) push(e tiding) {
	if f.only != "" { // the subject says so; an id that is no UTF-8 does not survive in a body
		e.Batch = f.only
	}
	f.mu.Lock()
	f.look()
	if len(f.queue) < maxQueue {
		f.queue = append(f.queue, e)
	} else {
		f.lost = true
	}
	f.mu.Unlock()
	f.stir()
}

func (f *follower) missed() {
	f.mu.Lock()
	f.look()
	f.mu.Unlock()
	f.stir()
}

// look notes down that something may have been missed. It is no use to wait until that is told: what comes over a new
// connection may be heard before. It needs mu.
func (f *follower) look() {
	if n := f.client.conn.Losses(); n != f.seen {
		f.seen, f.lost = n, true
	}
}

func (f *follower) stir() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// step tells what can be told now, and asks for what is missing.
func (f *follower) step(ctx, asking context.Context) error {
	f.mu.Lock()
	news, lost := f.queue, f.lost
	f.queue, f.lost = nil, false
	f.mu.Unlock()
	now := time.Now()
	if lost { // maybe something that comes before what is queued
		for _, b := range f.batches {
			b.ask, b.again = now, true
		}
		f.missedSome(now)
	}
	for _, e := range news {
		if e.Type == storedReply {
			f.stored(e, now)
		} else {
			f.take(ctx, e.Event, now)
		}
	}
	if err := f.tellInTurn(ctx, now); err != nil {
		return err
	}
	f.askForPast(asking, now)
	f.inquireInTurn(asking, now)
	for id, b := range f.batches {
		if !b.turn {
			f.inquire(asking, id, b, now)
		}
	}
	return nil
}

// stored takes it that the reply of a batch was stored. That an old one is published again, for somebody who has submitted its
// batch again, is no news.
func (f *follower) stored(e tiding, now time.Time) {
	if f.past != nil && e.place > 0 {
		f.past.stored(e.place)
	}
	b := f.batches[e.Batch]
	if b == nil {
		if f.past == nil || e.place == 0 || f.wasTold(e.Batch, e.place) {
			return
		}
		b = f.begin(e.Batch, now) // of which nothing was heard
	}
	b.place = max(b.place, e.place)
	if soonest := now.Add(soon); b.ask.After(soonest) {
		b.ask = soonest
	}
}

// begin is a batch that was not heard of before.
func (f *follower) begin(id messages.BatchID, now time.Time) *followed {
	b := &followed{story: newStory(), ask: now.Add(lookAfter)}
	f.batches[id] = b
	if b.turn = f.past.holds(now); b.turn {
		f.past.late = append(f.past.late, id)
	}
	return b
}

// take tells an event, or holds it while something is missing that comes before it.
func (f *follower) take(ctx context.Context, e messages.Event, now time.Time) {
	b := f.batches[e.Batch]
	switch {
	case b == nil && (f.only != "" || f.wasTold(e.Batch, 0)):
		return
	case b == nil:
		b = f.begin(e.Batch, now)
	}
	switch {
	case len(b.held) >= maxQueue:
		b.again = true
	case b.turn || b.asking || len(b.held) > 0 || !now.Before(b.ask):
		b.held = append(b.held, e)
	case b.story.gap(e):
		b.held, b.ask = append(b.held, e), now
	default:
		b.ask = now.Add(lookAfter)
		f.tell(ctx, b, e)
	}
}

// inquireInTurn asks about the next whose turn it is.
func (f *follower) inquireInTurn(ctx context.Context, now time.Time) {
	for _, id := range f.past.next() {
		if b := f.batches[id]; b != nil && b.answer == nil {
			f.inquire(ctx, id, b, now)
		}
	}
}

// inquire asks what has happened to a batch, when that is due.
func (f *follower) inquire(ctx context.Context, id messages.BatchID, b *followed, now time.Time) {
	if f.asking == asksAtOnce || b.asking || now.Before(b.ask) {
		return
	}
	f.asking++
	b.asking, b.before, b.again, b.ask = true, len(b.held), false, now.Add(lookAfter)
	go func() {
		past, err := f.client.Timeline(ctx, f.session, id)
		select {
		case f.answers <- answeredPast{id, past.Events, err}:
		case <-ctx.Done():
		}
	}()
}

// answered takes what has happened to a batch.
func (f *follower) answered(ctx context.Context, past answeredPast) error {
	b := f.batches[past.id] // what is asked for is not told to its end before
	f.asking--
	b.asking = false
	switch {
	case !b.turn:
		return f.catchUp(ctx, past)
	case b.again: // something was missed since it was asked for
		b.ask = time.Now()
		return nil
	case past.err != nil && !isGone(past.err): // it keeps its turn
		return f.later(ctx, b, past.err)
	}
	b.answer = &past
	return nil
}

// isGone reports whether nothing is told of a batch, however often that is asked for.
func isGone(err error) bool { return errors.Is(err, ErrUnknown) || errors.Is(err, errNoTimelines) }

// catchUp tells what has happened to a batch and was not told, and then what was held back.
func (f *follower) catchUp(ctx context.Context, past answeredPast) error {
	b := f.batches[past.id]
	switch {
	case past.err == nil && b.place == 0 && len(b.story.calls) == 0 && b.isOlder(past.events):
		delete(f.batches, past.id)
		return nil
	case past.err == nil:
	case f.only == "" && errors.Is(past.err, ErrUnknown):
		delete(f.batches, past.id)
		b.before = len(b.held)
	case f.only == "" && errors.Is(past.err, errNoTimelines):
		b.before = len(b.held)
	default:
		return f.later(ctx, b, past.err)
	}
	now := time.Now()
	b.wait, b.since = 0, time.Time{}
	if b.again {
		b.ask = now
	}
	held := b.held
	b.held = nil
	for _, e := range append(past.events, held[:b.before]...) {
		e.Batch = past.id
		f.tell(ctx, b, e)
	}
	for _, e := range held[b.before:] { // of what comes before these, something may have been missed since
		f.take(ctx, e, now)
	}
	return nil
}

// clockSlack is how far the clocks of two servers may differ.
const clockSlack = 500 * time.Millisecond

// isOlder reports whether what is told is that of an older batch, which was submitted again and is in the log for that.
func (b *followed) isOlder(events []messages.Event) bool {
	if len(events) == 0 || b.accepted.IsZero() {
		return false
	}
	last := events[len(events)-1]
	return last.Type == messages.EventReply && last.Time.Before(b.accepted.Add(-clockSlack))
}

// later has a batch asked for again, and is the error with which that is given up.
func (f *follower) later(ctx context.Context, b *followed, err error) error {
	var refusal *messages.Refusal
	deserted := errors.Is(err, ErrNoFleet)
	if deserted && b.since.IsZero() {
		b.since = time.Now()
	} else if !deserted {
		b.since = time.Time{}
	}
	began := len(b.story.calls) > 0
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case isGone(err), errors.As(err, &refusal) && refusal.Class != messages.Busy, bus.IsTerminal(err) && !deserted:
		return err
	case deserted && !began && f.only != "" && time.Since(b.since) > comingBack: // one that began goes on when a coordinator is back
		return err
	}
	b.wait = min(max(2*b.wait, 100*time.Millisecond), 5*time.Second)
	b.ask = time.Now().Add(b.wait)
	return nil
}

// tell passes an event on, once.
func (f *follower) tell(ctx context.Context, b *followed, e messages.Event) {
	for _, e := range b.story.next(e) {
		if ctx.Err() != nil {
			return
		}
		f.each(e)
	}
	if b.story.replied && f.batches[e.Batch] == b {
		delete(f.batches, e.Batch)
		f.over = append(f.over, ended{e.Batch, b.place})
		if f.past == nil || f.past.complete() {
			f.over = f.over[max(0, len(f.over)-keptEnded):]
		}
	}
}

// keptEnded is how many batches that were told to their end are remembered, for what comes late of them.
const keptEnded = 256

// wasTold reports whether a batch was told to its end: what comes of it now is told already. With the place of a reply it is
// the batch which that answers: another may have had its id long before.
func (f *follower) wasTold(id messages.BatchID, place uint64) bool {
	for i := len(f.over) - 1; i >= 0; i-- {
		if told := &f.over[i]; told.id == id {
			told.place = max(told.place, cmp.Or(told.place, place))
			return place <= told.place
		}
	}
	return false
}

// next is how long nothing is due.
func (f *follower) next() time.Duration {
	wait := lookAfter
	for _, b := range f.batches {
		if !b.asking && !b.turn && f.asking < asksAtOnce { // an answer comes before anything else is asked
			wait = min(wait, time.Until(b.ask))
		}
	}
	for _, id := range f.past.next() {
		if b := f.batches[id]; b != nil && !b.asking && b.answer == nil && f.asking < asksAtOnce {
			wait = min(wait, time.Until(b.ask))
		}
	}
	if p := f.past; p != nil && len(p.turns)+len(p.late) > 0 {
		wait = min(wait, time.Until(p.until))
	}
	if p := f.past; p != nil && p.due && len(p.turns) == 0 && !p.asking {
		wait = min(wait, time.Until(p.at))
	}
	return max(wait, 0)
}
