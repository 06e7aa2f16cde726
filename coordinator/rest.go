package coordinator

import (
	"context"
	"log/slog"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/session"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// A batch that only waits for people rests: its drive ends, its delivery goes back until the first question expires, and
// no process holds anything of it. Whoever stores something that it waits for, a decision or a control, has the head of
// its session driven at once. One that dies between the two leaves that to the broker, which delivers the batch again.

// rest ends the drive when the batch only waits for people, and reports whether it did. Before that the leader is asked
// once what was said and decided until then: later on, whoever says something sees that a call is parked, and wakes us.
func (d *drive) rest(ctx context.Context) bool {
	if _, rests := d.machine.Rest(); rests && !d.sure {
		d.lookOnce(ctx)
	}
	until, rests := d.machine.Rest()
	if !rests || d.fatal != nil || !time.Now().Before(until) || !d.retire(d) {
		return false
	}
	d.resting = until
	d.log.Debug("waits for people", "until", until)
	return true
}

// restFor is how long the delivery of a batch that rests is put off.
func (d *drive) restFor() time.Duration {
	return min(max(time.Until(d.resting), 100*time.Millisecond), session.MaxSuspend)
}

// lookOnce is a look that no other follows for minutes, so it insists and asks the leader. Controls come second: what
// was said before a call was parked is then heard.
func (d *drive) lookOnce(ctx context.Context) {
	var events []batch.Event
	d.insist(ctx, "look whether the batch still rests", func() error {
		known, err := d.journal.Calls(ctx, d.accepted.Key)
		if err != nil {
			return err
		}
		said, err := d.controls(ctx)
		events = append(said, d.known(ctx, known)...)
		return err
	})
	for _, told := range events {
		d.step(ctx, told)
	}
	d.sure = d.fatal == nil
}

// retire takes d out of what is driven here, unless there is news for it. Whoever comes later finds nobody who drives
// the batch, and does.
func (c *Coordinator) retire(d *drive) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(d.nudge)+len(d.notices) > 0 {
		return false
	}
	delete(c.live, d.accepted.Key.String())
	c.cfg.Metrics.live.Set(float64(len(c.live)))
	return true
}

// wake has the head of a session driven, which may rest, where it is due (nil: it is). It returns when that is done, by
// us or by somebody else, or when another waker waits to do the same.
func (c *Coordinator) wake(ctx context.Context, tenant, session string, due func(context.Context, wire.BatchKey) (bool, error)) {
	c.tellColleagues(wire.Notice{Batch: tenant + "." + session})
	lane := wire.BatchKey{Tenant: tenant, Session: session, Batch: "_"}
	w := &waker{c, errand{lane: lane, asks: due != nil}, due, c.log.With("session", session, "tenant", tenant)}
	for wait := 100 * time.Millisecond; c.serving.Load() && ctx.Err() == nil; wait = min(2*wait, 5*time.Second) {
		done, err := w.look(ctx)
		if done {
			return
		}
		if err != nil {
			w.log.Warn("a batch was not woken; trying again", "err", err, "wait", wait)
		}
		if !w.waitForAll(func() { pause(ctx, wait) }) {
			return
		}
	}
	c.tellColleagues(wire.Notice{Batch: lane.String(), LetGo: &wire.LetGo{}, Worker: c.id}) // we end: one of them does it
}

// waker wakes the head of one session.
type waker struct {
	*Coordinator
	errand
	due func(context.Context, wire.BatchKey) (bool, error)
	log *slog.Logger
}

// errand is what two wakers have in common when one of them is enough. The head belongs to it, because a waker leaves
// once the head that it came for has left the log, and wakes no other. So does whether it asks what is due: one that does
// leaves once no call waits for people, and the batch of a call that was denied has still to be driven.
type errand struct {
	lane wire.BatchKey // the session's; whichever batch is the head
	head uint64        // the first that was seen; 0: none yet
	asks bool          // whether the head is due
}

// look has the head driven, where that can be now. It is done when there is nothing to wake any more, or that is in other
// hands. A head that others say they drive may be about to rest, so the waker comes back until it has left the log, or
// they have left it. As many batches are driven this way as by deliveries; more wait for their turn.
func (w *waker) look(ctx context.Context) (done bool, err error) {
	head, found, err := w.nextHead(ctx, w.log, w.lane, 0)
	if err != nil {
		return false, err
	}
	if !found || w.head > 0 && head.Seq != w.head {
		return true, nil
	}
	w.head = head.Seq
	if w.due != nil {
		if due, err := w.due(ctx, head.Key); err != nil || !due {
			return err == nil, err
		}
	}
	if w.drivenElsewhere(head.Key) {
		return false, nil
	}
	entered := false
	if !w.waitForAll(func() { entered = w.wakes.enter(ctx) }) {
		return true, nil
	}
	if !entered {
		return false, nil
	}
	defer w.wakes.leave()
	return w.driveLane(ctx, head, nil), nil
}

// waitForAll waits on behalf of every waker with this errand, unless another does so already. Whoever waits looks again
// afterwards, and finds what the others had stored before they came: they may leave, and a flood of them holds nothing.
func (w *waker) waitForAll(wait func()) (waited bool) {
	w.mu.Lock()
	another := w.waiting[w.errand]
	w.waiting[w.errand] = true
	w.mu.Unlock()
	if another {
		return false
	}
	wait()
	w.mu.Lock()
	delete(w.waiting, w.errand)
	w.mu.Unlock()
	return true
}

func pause(ctx context.Context, wait time.Duration) {
	select {
	case <-time.After(wait):
	case <-ctx.Done():
	}
}

// waitsForPeople reports whether a batch may rest: a call of it waits for an answer, or has one that nobody has followed.
func (c *Coordinator) waitsForPeople(ctx context.Context, key wire.BatchKey) (bool, error) {
	known, err := c.journal.Calls(ctx, key)
	for _, e := range known.Records {
		if s := e.Record.State; s == wire.Parked || s == wire.Granted {
			return true, err
		}
	}
	return false, err
}

// room is where a bounded number of drives are at the same time.
type room chan struct{}

// enter waits for a place, and reports false when ctx ended first.
func (r room) enter(ctx context.Context) bool {
	select {
	case r <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (r room) leave() { <-r }

// fill takes every place, so that all who were in have left, unless ctx ends first.
func (r room) fill(ctx context.Context) {
	for range cap(r) {
		if !r.enter(ctx) {
			return
		}
	}
}
