package coordinator

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/toolfleet/toolfleet/coordinator/recall"
	"github.com/toolfleet/toolfleet/coordinator/session"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// resumer drives batches that were suspended or abandoned. It has as many slots as the
// coordinator has for delivered batches.
type resumer struct {
	c     *Coordinator
	slots *semaphore.Weighted
	size  int64 // how many slots there are

	mu sync.Mutex
	// waiting holds the requests that have a waiting goroutine; guarded by mu.
	waiting map[wakeRequest]bool
}

// wakeRequest is a request to resume a session. Equal requests share one waiting goroutine.
// That goroutine returns once the batch with the sequence head has left the log. With
// onlySuspended it also returns once no call of that batch waits for people. Requests that
// differ in one of these fields cannot share a goroutine: after a denial, for example, no call
// waits for people, but the batch must still be driven.
type wakeRequest struct {
	session       wire.BatchKey // the Batch field is not used
	head          uint64        // sequence of the head when the goroutine began; 0: not read yet
	onlySuspended bool          // drive the head only if one of its calls waits for people
}

func newResumer(c *Coordinator, slots int) *resumer {
	return &resumer{c: c, slots: semaphore.NewWeighted(int64(slots)), size: int64(slots), waiting: map[wakeRequest]bool{}}
}

// Resume makes sure that this coordinator or a peer drives the head of a session. It returns
// when its own run of the session is over. It returns at once if another goroutine already
// does the same.
func (r *resumer) Resume(ctx context.Context, tenant, session string) {
	r.run(ctx, wakeRequest{session: wire.BatchKey{Tenant: tenant, Session: session, Batch: "_"}})
}

// ResumeSuspended is like Resume, but acts only if a call of the head waits for people.
func (r *resumer) ResumeSuspended(ctx context.Context, tenant, session string) {
	r.run(ctx, wakeRequest{session: wire.BatchKey{Tenant: tenant, Session: session, Batch: "_"}, onlySuspended: true})
}

// resumeBackoff is the delay before a head that cannot be driven yet is tried again.
var resumeBackoff = bus.Backoff{First: 100 * time.Millisecond, Most: 5 * time.Second}

func (r *resumer) run(ctx context.Context, want wakeRequest) {
	key := want.session
	r.c.peers.Publish(wire.Notice{Batch: key.Tenant + "." + key.Session})
	log := r.c.log.With("session", key.Session, "tenant", key.Tenant)
	for n := 0; r.c.serving.Load() && ctx.Err() == nil; n++ {
		done, err := r.try(ctx, log, &want)
		if done {
			return
		}
		wait := resumeBackoff.Pause(n)
		if err != nil {
			log.Warn("a session was not resumed; trying again", "err", err, "wait", wait)
		}
		if !r.waitForAll(want, func() { pause(ctx, wait) }) {
			return
		}
	}
	// This coordinator shuts down. A peer must resume the session.
	r.c.peers.Publish(wire.Notice{Batch: key.String(), LetGo: &wire.LetGo{}, Worker: r.c.id})
}

// try drives the oldest batch of the session if that is possible now. done means that there is
// nothing to resume, or that another driver has the batch.
func (r *resumer) try(ctx context.Context, log *slog.Logger, want *wakeRequest) (done bool, err error) {
	head, found, err := r.c.nextHead(ctx, log, want.session, 0)
	if err != nil {
		return false, err
	}
	seen := session.Suspended{Due: true}
	if found {
		seen.Head, seen.Elsewhere = head.Seq, r.c.peers.Drive(head.Key)
	}
	if want.head == 0 {
		want.head = seen.Head
	}
	seen.First = want.head
	if want.onlySuspended && found && seen.Head == seen.First {
		if seen.Due, err = waitsForPeople(ctx, r.c.journal, head.Key); err != nil {
			return false, err
		}
	}
	switch session.DecideResume(seen) {
	case session.Leave:
		return true, nil
	case session.Return:
		return false, nil
	}
	acquired := false
	if !r.waitForAll(*want, func() { acquired = r.slots.Acquire(ctx, 1) == nil }) {
		return true, nil
	}
	if !acquired {
		return false, nil
	}
	defer r.slots.Release(1)
	return r.c.driveSession(ctx, head, nil), nil
}

// waitForAll calls wait, unless another goroutine waits for an equal request. In that case it
// returns false, and the caller may return: when the other goroutine has waited, it reads the
// journal and finds what the caller has stored. So equal requests never use more than one
// goroutine.
func (r *resumer) waitForAll(want wakeRequest, wait func()) (waited bool) {
	r.mu.Lock()
	another := r.waiting[want]
	r.waiting[want] = true
	r.mu.Unlock()
	if another {
		return false
	}
	wait()
	r.mu.Lock()
	delete(r.waiting, want)
	r.mu.Unlock()
	return true
}

// wait waits until all resumed batches have ended, or ctx ends.
func (r *resumer) wait(ctx context.Context) { _ = r.slots.Acquire(ctx, r.size) }

// resumeAbandoned drives batches that other coordinators have given up, until ctx ends. Those
// coordinators had no delivery to hand back, so the broker might not deliver these batches for
// minutes.
func (r *resumer) resumeAbandoned(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		select {
		case batch := <-r.c.peers.Abandoned():
			running.Go(func() { r.resumeOne(ctx, batch) })
		case <-ctx.Done():
			return
		}
	}
}

// resumeOne drives an abandoned batch, unless a peer already drives it.
func (r *resumer) resumeOne(ctx context.Context, batch string) {
	pause(ctx, rand.N(r.c.cfg.AckWait/10)) // a random pause, so that not all peers begin at once
	tokens := strings.Split(batch, ".")
	if ctx.Err() != nil || len(tokens) != 3 || !messages.IsToken(tokens[0]) || !messages.IsToken(tokens[1]) {
		return
	}
	if key := (wire.BatchKey{Tenant: tokens[0], Session: tokens[1], Batch: tokens[2]}); !r.c.peers.Drive(key) {
		r.Resume(ctx, key.Tenant, key.Session)
	}
}

// waitsForPeople reports whether the batch may be suspended: one of its calls waits for a
// decision, or a person has granted it and no worker has claimed it yet.
func waitsForPeople(ctx context.Context, j *journal.Journal, key wire.BatchKey) (bool, error) {
	known, err := j.Calls(ctx, key)
	return err == nil && recall.WaitsForPeople(known), err
}
