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
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Timeline returns the durable events of a batch so far, all of them once it has ended. It returns
// ErrUnknown for a batch that the fleet does not know.
func (c *Client) Timeline(ctx context.Context, s messages.SessionID, b messages.BatchID) (messages.Timeline, error) {
	answer, err := answerTo[struct {
		messages.Timeline
		Error *messages.Refusal `json:"error"`
	}](ctx, c, c.names.Of(wire.VerbGet, c.key(s, b)), []byte(`{"timeline":true}`))
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

// Follow calls each for the events of a batch, from its beginning to its reply, and then returns:
// first the history, then the live events. It delivers every event except progress and hook events
// exactly once, through any loss of the connection, and the events of one call in the order in
// which they happened. Progress and hook events may be missed, but never come late. Follow returns
// ErrUnknown for a batch that the fleet does not know: follow a batch after it was submitted. It
// calls each from the caller's goroutine, and never after ctx has ended.
func (c *Client) Follow(ctx context.Context, s messages.SessionID, b messages.BatchID, each func(messages.Event)) error {
	f := &follower{client: c, session: s, only: b, each: each}
	return f.run(ctx, c.key(s, b).Batch)
}

// lookAfter is how long a batch may be silent before its timeline is requested: its events may have
// been lost.
const lookAfter = 30 * time.Second

// asksAtOnce bounds the timeline requests that are in flight at once.
const asksAtOnce = 4

// follower delivers the events of batches. Incoming events are queued, so that a slow callback does
// not block the subscription. Timelines are requested in the background, so that no batch waits for
// the timeline of another.
type follower struct {
	client  *Client
	session messages.SessionID
	only    messages.BatchID // "": every batch of the session
	each    func(messages.Event)

	mu    sync.Mutex
	queue []tiding // guarded by mu
	lost  bool     // something may have been missed; guarded by mu
	seen  uint64   // the connection's loss counter at the last look; guarded by mu
	wake  chan struct{}

	// The fields below are owned by run's goroutine, which receives from answers.
	answers chan answeredPast
	asking  int // timeline requests in flight
	batches map[messages.BatchID]*followed
	over    []ended // the newest keptEnded finished batches; more while a list is outstanding
	past    *past   // nil: one batch is followed
}

// tiding is an event as it arrived.
type tiding struct {
	messages.Event
	place uint64 // stream sequence of the reply, for a stored reply; else 0
}

// ended is a batch that was delivered up to its reply.
type ended struct {
	id    messages.BatchID
	place uint64 // stream sequence of its reply; 0: not known
}

// answeredPast is the answer to a timeline request.
type answeredPast struct {
	id     messages.BatchID
	events []messages.Event
	err    error
}

// followed is the state of a batch that is being delivered.
type followed struct {
	story  *story
	held   []messages.Event // events that wait until what came before them is known
	asking bool             // a timeline request is in flight
	before int              // how many events were held when that request was sent
	again  bool             // something may have been missed since: request again
	ask    time.Time        // when the next timeline request is due
	wait   time.Duration    // backoff before the next attempt; 0: the last one did not fail
	since  time.Time        // first attempt that found no coordinator; zero: one answered

	place    uint64        // stream sequence of its reply; 0: not known
	accepted time.Time     // from the list of open batches: an older reply is an earlier batch's
	turn     bool          // deliver nothing before its turn in past.turns or past.late
	answer   *answeredPast // its timeline, which waits for the turn
}

// maxQueue bounds the events that wait for delivery. When a watcher is slower, further events are
// dropped and a timeline brings back the durable ones.
const maxQueue = 1 << 14

func (f *follower) run(ctx context.Context, batches string) error {
	f.wake, f.answers, f.batches = make(chan struct{}, 1), make(chan answeredPast), map[messages.BatchID]*followed{}
	c := f.client
	key := c.key(f.session, "")
	key.Batch = batches
	f.seen = c.conn.Losses()
	for verb, take := range map[wire.Verb]func(bus.Msg){wire.VerbEvent: f.heard, wire.VerbReply: f.replied} {
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
		case f.only != "" && f.batches[f.only] == nil: // its reply was delivered
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

// heard queues an event that arrived.
func (f *follower) heard(m bus.Msg) {
	var e messages.Event
	if json.Unmarshal(m.Data, &e) == nil {
		f.push(tiding{Event: e})
	}
}

// storedReply is an internal event: the server has published the stored reply of a batch, so the
// last events of the batch are on their way.
const storedReply messages.EventType = "stored"

func (f *follower) replied(m bus.Msg) {
	var r struct{ Batch messages.BatchID }
	if json.Unmarshal(m.Data, &r) == nil {
		f.push(tiding{messages.Event{Type: storedReply, Batch: r.Batch, Index: -1}, placeOf(m)})
	}
}

func (f *follower) push(e tiding) {
	// The subject names the batch; an id that is not UTF-8 does not survive in a body.
	if f.only != "" {
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

// missed runs after a reconnect.
func (f *follower) missed() {
	f.mu.Lock()
	f.look()
	f.mu.Unlock()
	f.stir()
}

// look sets lost when the connection's loss counter has grown. Every arriving event calls it: the
// first message over a new connection may come before OnReconnect does. The caller holds mu.
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

// step delivers what can be delivered now, and requests what is missing.
func (f *follower) step(ctx, asking context.Context) error {
	f.mu.Lock()
	news, lost := f.queue, f.lost
	f.queue, f.lost = nil, false
	f.mu.Unlock()
	now := time.Now()
	// The missed events may come before the queued ones.
	if lost {
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

// stored handles the published reply of a batch: the timeline is requested within soon, in case the
// last events were lost. A reply that is republished because its batch was submitted again has no
// place and starts nothing.
func (f *follower) stored(e tiding, now time.Time) {
	if f.past != nil && e.place > 0 {
		f.past.stored(e.place)
	}
	b := f.batches[e.Batch]
	if b == nil {
		if f.past == nil || e.place == 0 || f.wasTold(e.Batch, e.place) {
			return
		}
		// No event of this batch was seen.
		b = f.begin(e.Batch, now)
	}
	b.place = max(b.place, e.place)
	if soonest := now.Add(soon); b.ask.After(soonest) {
		b.ask = soonest
	}
}

// begin starts following a batch that was not seen before. While a list is outstanding the batch
// waits in late.
func (f *follower) begin(id messages.BatchID, now time.Time) *followed {
	b := &followed{story: newStory(), ask: now.Add(lookAfter)}
	f.batches[id] = b
	if b.turn = f.past.holds(now); b.turn {
		f.past.late = append(f.past.late, id)
	}
	return b
}

// take delivers an event, or holds it while something that comes before it is missing. When too
// many events are held it drops the event and has the timeline requested again.
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

// inquireInTurn requests the timelines of the batches that are next in turn.
func (f *follower) inquireInTurn(ctx context.Context, now time.Time) {
	for _, id := range f.past.next() {
		if b := f.batches[id]; b != nil && b.answer == nil {
			f.inquire(ctx, id, b, now)
		}
	}
}

// inquire requests the timeline of a batch when that is due.
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

// answered takes the answer to a timeline request. For a batch that waits for its turn it keeps the
// answer.
func (f *follower) answered(ctx context.Context, past answeredPast) error {
	b := f.batches[past.id] // never finished while it is asked for
	f.asking--
	b.asking = false
	switch {
	case !b.turn:
		return f.catchUp(ctx, past)
	case b.again: // something was missed after the request was sent
		b.ask = time.Now()
		return nil
	case past.err != nil && !isGone(past.err): // the batch keeps its turn
		return f.later(ctx, b, past.err)
	}
	b.answer = &past
	return nil
}

// isGone reports whether the error means that no later request brings a timeline either.
func isGone(err error) bool { return errors.Is(err, ErrUnknown) || errors.Is(err, errNoTimelines) }

// catchUp delivers the events of a timeline that were not delivered yet, and then the held events.
// A held event that arrived before the request was sent needs no check for a gap: the timeline
// covers what came before it. When Watch finds no timeline, catchUp delivers the held events alone.
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
	// Something that comes before these may have been missed since the request.
	for _, e := range held[b.before:] {
		f.take(ctx, e, now)
	}
	return nil
}

// clockSlack is how far apart the clocks of two servers may be.
const clockSlack = 500 * time.Millisecond

// isOlder reports whether a timeline belongs to an earlier batch with this id: its reply is older
// than the batch, which is in the log because the id was submitted again.
func (b *followed) isOlder(events []messages.Event) bool {
	if len(events) == 0 || b.accepted.IsZero() {
		return false
	}
	last := events[len(events)-1]
	return last.Type == messages.EventReply && last.Time.Before(b.accepted.Add(-clockSlack))
}

// later schedules the next timeline request after a backoff of 100 ms to 5 s, or returns the error
// that ends the follower.
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
	case isGone(err), errors.As(err, &refusal) && refusal.Class != messages.ClassBusy, bus.IsTerminal(err) && !deserted:
		return err
	// A batch that has begun goes on when a coordinator is back.
	case deserted && !began && f.only != "" && time.Since(b.since) > comingBack:
		return err
	}
	b.wait = min(max(2*b.wait, 100*time.Millisecond), 5*time.Second)
	b.ask = time.Now().Add(b.wait)
	return nil
}

// tell delivers an event, unless it was delivered or overtaken. It drops a batch whose reply was
// delivered and remembers it in over.
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

// keptEnded is how many finished batches are remembered, so that their late events are recognized.
const keptEnded = 256

// wasTold reports whether a batch was delivered up to its reply, so that its further events are
// duplicates. A place above that of the remembered reply belongs to a newer batch with the same id.
func (f *follower) wasTold(id messages.BatchID, place uint64) bool {
	for i := len(f.over) - 1; i >= 0; i-- {
		if told := &f.over[i]; told.id == id {
			told.place = max(told.place, cmp.Or(told.place, place))
			return place <= told.place
		}
	}
	return false
}

// next returns how long nothing is due.
func (f *follower) next() time.Duration {
	wait := lookAfter
	for _, b := range f.batches {
		// A full set of requests in flight needs no timer: an answer comes before the next request.
		if !b.asking && !b.turn && f.asking < asksAtOnce {
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
