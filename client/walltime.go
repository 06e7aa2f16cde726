package client

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/messages"
)

// wallTime limits the time of a turn. Time in which a batch waits for people does not count.
// The client asks the fleet how long a batch has waited only when the time would be over
// without those waits.
type wallTime struct {
	client *Client
	turn   *Conversation
	limit  time.Duration // 0: no limit
	cut    bool          // a batch was aborted because the time was over

	ended  []messages.BatchID // batches whose waits are not yet part of waited
	waited time.Duration      // how long batches that have ended waited for people
}

// overtime is how long Loop waits for the reply of a batch that it aborted. After that, Loop
// returns without the reply.
const overtime = 30 * time.Second

func newWallTime(c *Client, v *Conversation) *wallTime {
	return &wallTime{client: c, turn: v, ended: slices.Clone(v.Batches)}
}

// bound returns a context that ends with the cause [ErrMaxDuration] when the time is over. The
// error is ErrMaxDuration if it is already over.
func (w *wallTime) bound(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if w.limit == 0 {
		return ctx, func() {}, nil
	}
	left, err := w.left(ctx, "")
	for err != nil {
		if !pause(ctx, time.Second) {
			return nil, nil, context.Cause(ctx)
		}
		if w.lateBy() > overtime {
			return nil, nil, ErrMaxDuration
		}
		left, err = w.left(ctx, "")
	}
	if left <= 0 {
		return nil, nil, ErrMaxDuration
	}
	ctx, cancel := context.WithTimeoutCause(ctx, left, ErrMaxDuration)
	return ctx, cancel, nil
}

// watch aborts the batch when the time is over. The returned context ends if the batch still has no
// reply after overtime. done stops watching.
func (w *wallTime) watch(ctx context.Context, batch messages.BatchID) (_ context.Context, done func()) {
	if w.limit == 0 {
		return ctx, func() {}
	}
	ctx, giveUp := context.WithCancel(ctx)
	watching, stop := context.WithCancel(ctx)
	var guard sync.WaitGroup
	guard.Go(func() {
		if w.until(watching, batch) && pause(watching, overtime) {
			giveUp()
		}
	})
	return ctx, func() {
		stop()
		guard.Wait()
		giveUp()
		w.ended = append(w.ended, batch)
	}
}

// until waits until the time is over and aborts the batch. It returns false if ctx ends first.
func (w *wallTime) until(ctx context.Context, batch messages.BatchID) bool {
	for {
		left, err := w.left(ctx, batch)
		switch {
		case ctx.Err() != nil:
			return false
		case err != nil && w.lateBy() < overtime:
			left = time.Second // no coordinator answers; it may come back
		case left <= 0:
			w.cut = true
			why := Reason{By: "the agent", Text: "the time for this turn is over"}
			if _, err := w.client.Abort(ctx, w.turn.Session, batch, why); err == nil || w.lateBy() > overtime {
				return true
			}
			left = time.Second
		}
		if !pause(ctx, left) {
			return false
		}
	}
}

// lateBy returns how far the turn is over its limit. The result is negative before the limit.
// Waits for people that the client has not asked about yet count as the turn's time.
func (w *wallTime) lateBy() time.Duration { return time.Since(w.turn.Began) - w.limit - w.waited }

// left returns the time that is left. running is the running batch; "": none.
func (w *wallTime) left(ctx context.Context, running messages.BatchID) (time.Duration, error) {
	for len(w.ended) > 0 && w.lateBy() >= 0 {
		d, err := w.waitOf(ctx, w.ended[0])
		if err != nil {
			return 0, err
		}
		w.waited += d
		w.ended = w.ended[1:]
	}
	late := w.lateBy()
	if late < 0 || running == "" {
		return -late, nil
	}
	d, err := w.waitOf(ctx, running)
	return d - w.lateBy(), err
}

// waitOf returns how long the batch has waited for people.
func (w *wallTime) waitOf(ctx context.Context, batch messages.BatchID) (time.Duration, error) {
	timeline, err := w.client.Timeline(ctx, w.turn.Session, batch)
	if errors.Is(err, ErrUnknown) {
		return 0, nil
	}
	return waitForPeople(timeline.Events, time.Now()), err
}

// waitForPeople returns how long a batch waited for people: the time in which at least one
// of its calls waited. events come from the timeline of the batch.
func waitForPeople(events []messages.Event, now time.Time) (sum time.Duration) {
	asked := map[int]time.Time{}
	type span struct{ from, to time.Time }
	var spans []span
	for _, e := range events {
		from, waits := asked[e.Index]
		switch {
		case e.Type == messages.EventAwaiting && !waits:
			asked[e.Index] = e.Time
		case waits && (e.Type == messages.EventRunning || e.Type == messages.EventEnd):
			spans = append(spans, span{from, e.Time})
			delete(asked, e.Index)
		}
	}
	for _, from := range asked {
		spans = append(spans, span{from, now})
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Or(a.from.Compare(b.from), a.to.Compare(b.to)) })
	var until time.Time
	for _, s := range spans {
		if s.from.Before(until) {
			s.from = until
		}
		if s.to.After(s.from) {
			sum += s.to.Sub(s.from)
			until = s.to
		}
	}
	return sum
}

// pause waits for d. It returns false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
