package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Batches lists the batches of a session in the order of the log: first those that have ended since
// (zero: none), then the open ones. It returns one page; when More is set, NextBatches returns the
// next.
func (c *Client) Batches(ctx context.Context, s messages.SessionID, since time.Time) (messages.BatchList, error) {
	return c.batches(ctx, s, messages.Get{Batches: true, Since: since})
}

// NextBatches lists the batches of a session that have ended after a place, which is the Place of
// an earlier list, and then the open ones.
func (c *Client) NextBatches(ctx context.Context, s messages.SessionID, after uint64) (messages.BatchList, error) {
	return c.batches(ctx, s, messages.Get{Batches: true, After: &after})
}

func (c *Client) batches(ctx context.Context, s messages.SessionID, ask messages.Get) (messages.BatchList, error) {
	answer, err := answerTo[struct {
		messages.BatchList
		Error *messages.Refusal `json:"error"`
	}](ctx, c, c.names.Of(wire.VerbGet, c.key(s, messages.NoBatch)), rawjson.MustMarshal(ask))
	switch {
	case err != nil:
	case answer.Error != nil:
		err = answer.Error
	case answer.Batches == nil:
		err = errNoLists
	default:
		return answer.BatchList, nil
	}
	return messages.BatchList{}, fmt.Errorf("batches of session %s: %w", s, err)
}

var errNoLists = errors.New("the coordinator that answered is of a version that lists no batches")

// Watch is Follow for every batch of a session until ctx ends, and then returns nil: first the open
// batches, then the new ones. A batch that begins and ends while the connection is lost is
// delivered after the reconnect, as long as its reply is kept; such batches come whole and one
// after another, in the order in which they ran. Watch waits for a fleet to appear, and to come
// back.
func (c *Client) Watch(ctx context.Context, s messages.SessionID, each func(messages.Event)) error {
	return c.WatchSince(ctx, s, time.Time{}, each)
}

// WatchSince is Watch that first delivers the batches that have ended since (zero: none).
func (c *Client) WatchSince(ctx context.Context, s messages.SessionID, since time.Time, each func(messages.Event)) error {
	f := &follower{client: c, session: s, each: each}
	f.past = &past{since: since, began: time.Now(), due: true}
	err := f.run(ctx, "*")
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// past lets a watcher miss no batch of its session. At the beginning, and whenever something may
// have been missed, the watcher requests the list of batches that have ended after a place, a
// sequence in the stream of replies. Every reply up to that place was delivered or is about to be.
// The server publishes each stored reply with its place, so the place advances as long as nothing
// is missed.
type past struct {
	since time.Time // deliver what ended since then too; zero: only what ends from now on
	began time.Time // when the watch began, by our clock
	place uint64
	known bool   // place is set
	heard uint64 // newest place that was seen since something was missed

	due    bool          // a list is to be requested, at the time below
	at     time.Time     // when
	wait   time.Duration // backoff before the next attempt; 0: the last did not fail
	asking bool          // a list request is in flight
	lists  chan answeredList

	turns []messages.BatchID // caught up one after another, in this order
	late  []messages.BatchID // these come after what is on the list
	until time.Time          // past it no batch waits for another
}

type answeredList struct {
	list messages.BatchList
	err  error
}

// complete reports whether no list is due or outstanding.
func (p *past) complete() bool { return !p.due && !p.asking }

// holds reports whether a batch that begins now waits for the batches on the list.
func (p *past) holds(now time.Time) bool {
	return now.Before(p.until) && (!p.complete() || len(p.turns) > 0)
}

// missedSome schedules a list request. An open batch waits for the list, because another may have
// ended before it. A batch with a known reply up to place goes first: everything on the list ended
// after it.
func (f *follower) missedSome(now time.Time) {
	p := f.past
	if p == nil {
		return
	}
	var over []messages.BatchID
	for id, b := range f.batches {
		switch {
		case b.turn:
		case b.place > 0 && b.place <= p.place:
			b.turn, over = true, append(over, id)
		default:
			b.turn, p.late = true, append(p.late, id)
		}
	}
	slices.SortFunc(over, func(x, y messages.BatchID) int { return cmp.Compare(f.batches[x].place, f.batches[y].place) })
	if p.complete() && len(p.turns) == 0 {
		p.until = now.Add(lookAfter)
	}
	p.turns = slices.Insert(p.turns, 0, over...)
	p.due, p.at, p.wait, p.heard = true, now, 0, 0
}

// stored records the place of a stored reply. The place advances only while nothing is missed.
func (p *past) stored(place uint64) {
	p.heard = max(p.heard, place)
	if p.complete() {
		p.place, p.known = max(p.place, place), true
	}
}

// askForPast requests the list, once the batches on the one before were delivered.
func (f *follower) askForPast(ctx context.Context, now time.Time) {
	p := f.past
	if p == nil || !p.due || p.asking || now.Before(p.at) || len(p.turns) > 0 {
		return
	}
	ask := messages.Get{Batches: true}
	switch {
	case p.known:
		ask.After = new(p.place)
	case !p.since.IsZero():
		ask.Since = p.since
	default: // if this request fails, the next must include what ends meanwhile
		p.since = p.began
	}
	p.due, p.asking = false, true
	go func() {
		list, err := f.client.batches(ctx, f.session, ask)
		select {
		case p.lists <- answeredList{list, err}:
		case <-ctx.Done():
		}
	}()
}

// listed takes the answer to a list request. A refusal other than busy is final; any other error is
// tried again.
func (f *follower) listed(a answeredList) {
	p, now := f.past, time.Now()
	p.asking = false
	var refusal *messages.Refusal
	switch {
	case errors.As(a.err, &refusal) && refusal.Class != messages.ClassBusy: // final
		p.wait = 0
	case a.err != nil:
		// An older coordinator (errNoLists) may have answered, and a newer one may answer next.
		// The wait for a newer one, or for a fleet, may be long: no batch waits for the list.
		if p.later(now); errors.Is(a.err, errNoLists) || errors.Is(a.err, ErrNoFleet) {
			p.until = now
		}
	default:
		f.takeTurns(a.list, now)
	}
}

// later schedules the next list request after a backoff of 100 ms to 5 s.
func (p *past) later(now time.Time) {
	p.wait = min(max(2*p.wait, 100*time.Millisecond), 5*time.Second)
	p.due, p.at = true, now.Add(p.wait)
}

// takeTurns queues the batches on a list, in its order.
func (f *follower) takeTurns(list messages.BatchList, now time.Time) {
	p := f.past
	// A page without progress: the server that answered is behind.
	stuck := list.More && (list.Place == 0 || p.known && list.Place == p.place)
	p.place, p.known = list.Place, p.known || list.Place > 0 || !list.More
	switch {
	case stuck:
		p.later(now)
	case list.More:
		p.due, p.at, p.wait = true, now, 0
	default:
		p.wait = 0
		if !p.due { // else something was missed after this answer was made
			p.place = max(p.place, p.heard)
		}
	}
	p.until = now.Add(lookAfter)
	for _, l := range list.Batches {
		b := f.batches[l.Batch]
		switch {
		case f.wasTold(l.Batch, l.Place), b != nil && l.Open() && !b.turn:
			continue
		case b == nil:
			b = &followed{story: newStory(), accepted: l.Accepted}
			f.batches[l.Batch] = b
		}
		b.place, b.turn, b.ask = max(b.place, l.Place), true, now
		p.late = slices.DeleteFunc(p.late, func(id messages.BatchID) bool { return id == l.Batch })
		p.turns = append(p.turns, l.Batch)
	}
}

// next returns the first batches in turn: their timelines are requested at once, and delivered one
// after another.
func (p *past) next() []messages.BatchID {
	if p == nil {
		return nil
	}
	return p.turns[:min(len(p.turns), asksAtOnce)]
}

// tellInTurn delivers the batches in turn, as far as their timelines are there. The head may hold
// up the rest until past.until, which is lookAfter after the last progress; from then on no batch
// waits.
func (f *follower) tellInTurn(ctx context.Context, now time.Time) error {
	p := f.past
	if p == nil {
		return nil
	}
	waits := now.Before(p.until)
	if p.complete() || !waits {
		p.turns, p.late = append(p.turns, p.late...), nil
	}
	for ; len(p.turns) > 0; p.turns = p.turns[1:] {
		b := f.batches[p.turns[0]]
		switch {
		case b == nil:
			continue
		case b.answer != nil:
			answer := *b.answer
			b.turn, b.answer = false, nil
			if err := f.catchUp(ctx, answer); err != nil {
				return err
			}
		case b.asking || b.wait > 0 || !now.Before(b.ask):
			if waits {
				return nil
			}
			b.turn = false
			continue
		default: // nothing of it was missed
			held := b.held
			b.turn, b.held = false, nil
			for _, e := range held {
				f.take(ctx, e, now)
			}
			if b.turn = waits && len(b.held) > 0; b.turn { // a held event showed a gap
				return nil
			}
		}
		p.until = time.Now().Add(lookAfter)
	}
	return nil
}

// placeHeader holds the stream sequence of a stored reply when the server publishes it. A reply
// that a coordinator publishes again does not have it.
const placeHeader = "Nats-Sequence"

// placeOf returns the stream sequence of a published reply; 0 if it has none.
func placeOf(m bus.Msg) uint64 {
	place, err := strconv.ParseUint(m.Header.Get(placeHeader), 10, 64)
	if err != nil {
		return 0
	}
	return place
}
