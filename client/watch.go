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
	"github.com/toolfleet/toolfleet/messages"
)

// Batches lists the batches of a session in the order of the log: those that have ended since (zero: none), and then those that
// are open. It is one page of them: where it says that there are more, NextBatches has the next.
func (c *Client) Batches(ctx context.Context, s messages.SessionID, since time.Time) (messages.BatchList, error) {
	return c.batches(ctx, s, messages.Get{Batches: true, Since: since})
}

// NextBatches lists the batches of a session that have ended after a place, which is that of an earlier list, and then those
// that are open.
func (c *Client) NextBatches(ctx context.Context, s messages.SessionID, after uint64) (messages.BatchList, error) {
	return c.batches(ctx, s, messages.Get{Batches: true, After: &after})
}

func (c *Client) batches(ctx context.Context, s messages.SessionID, ask messages.Get) (messages.BatchList, error) {
	answer, err := answerTo[struct {
		messages.BatchList
		Error *messages.Refusal `json:"error"`
	}](ctx, c, c.names.Of(messages.VerbGet, c.key(s, messages.NoBatch)), messages.MustMarshal(ask))
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

// Watch is Follow for every batch of a session, until ctx ends: first for those that are open, then for those that come. A batch
// that begins and ends while the connection is lost is told once it is back, each from its beginning and one after another in the
// order in which they ran, as long as its reply is kept. It waits for a fleet to come, and to come back.
func (c *Client) Watch(ctx context.Context, s messages.SessionID, each func(messages.Event)) error {
	return c.WatchSince(ctx, s, time.Time{}, each)
}

// WatchSince is Watch that begins with the batches that have ended since.
func (c *Client) WatchSince(ctx context.Context, s messages.SessionID, since time.Time, each func(messages.Event)) error {
	f := &follower{client: c, session: s, each: each}
	f.past = &past{since: since, began: time.Now(), due: true}
	err := f.run(ctx, "*")
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// past is how a watcher misses no batch of its session. At its beginning, and whenever something may have been missed, it asks
// what has ended since a place among the replies: up to it everything was told, or is about to be. The server says the place
// of each reply when it publishes it, so the place goes on as long as nothing is missed.
type past struct {
	since time.Time // what ended since is told too; zero: nothing that did before
	began time.Time // by our clock
	place uint64
	known bool   // the place is
	heard uint64 // the newest place that was heard of since something was missed

	due    bool // a list is to be asked for
	at     time.Time
	wait   time.Duration // before the next try; not zero: the last has failed
	asking bool
	lists  chan answeredList

	turns []messages.BatchID // these are told one after another, up to where they are now
	late  []messages.BatchID // these come after what is on the list
	until time.Time          // so long one waits for another
}

type answeredList struct {
	list messages.BatchList
	err  error
}

// complete reports whether nothing is missing that is known to be asked for.
func (p *past) complete() bool { return !p.due && !p.asking }

// holds reports whether what begins now waits for what is on the list.
func (p *past) holds(now time.Time) bool {
	return now.Before(p.until) && (!p.complete() || len(p.turns) > 0)
}

// missedSome has the list asked for. What is open waits for it, for another may have ended before it; but of what has ended
// already none that is on the list did.
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

// stored notes down the place of a reply that was stored.
func (p *past) stored(place uint64) {
	p.heard = max(p.heard, place)
	if p.complete() {
		p.place, p.known = max(p.place, place), true
	}
}

// ask asks for the list, once what is on the one before was told.
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
	default: // something may have ended before the next try
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

// listed takes the answer.
func (f *follower) listed(a answeredList) {
	p, now := f.past, time.Now()
	p.asking = false
	var refusal *messages.Refusal
	switch {
	case errors.As(a.err, &refusal) && refusal.Class != messages.Busy: // no other answer will come
		p.wait = 0
	case a.err != nil: // a coordinator of before is not the last to answer
		if p.later(now); errors.Is(a.err, errNoLists) || errors.Is(a.err, ErrNoFleet) { // that may take long
			p.until = now
		}
	default:
		f.takeTurns(a.list, now)
	}
}

func (p *past) later(now time.Time) {
	p.wait = min(max(2*p.wait, 100*time.Millisecond), 5*time.Second)
	p.due, p.at = true, now.Add(p.wait)
}

// takeTurns has the batches on a list told in its order.
func (f *follower) takeTurns(list messages.BatchList, now time.Time) {
	p := f.past
	stuck := list.More && (list.Place == 0 || p.known && list.Place == p.place) // who answered is behind
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

// next is those whose turn comes next: they are asked about at once, and told one after another.
func (p *past) next() []messages.BatchID {
	if p == nil {
		return nil
	}
	return p.turns[:min(len(p.turns), asksAtOnce)]
}

// tellInTurn tells those whose turn it is, as far as it is known what has happened to them. When none could be told for a while
// they wait for each other no longer.
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
			if b.turn = waits && len(b.held) > 0; b.turn { // something was, after all
				return nil
			}
		}
		p.until = time.Now().Add(lookAfter)
	}
	return nil
}

// placeHeader is what the server says of a stored reply when it publishes it. On one that is published again it is not.
const placeHeader = "Nats-Sequence"

func placeOf(m bus.Msg) uint64 {
	place, err := strconv.ParseUint(m.Header.Get(placeHeader), 10, 64)
	if err != nil {
		return 0
	}
	return place
}
