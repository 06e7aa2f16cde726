package coordinator

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/recall"
	"github.com/toolfleet/toolfleet/coordinator/session"
	"github.com/toolfleet/toolfleet/internal/bus/pull"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// sessionRun drives the batches of one session: the oldest that is in the log, and some of those
// behind it. Each has a goroutine of its own, so that the I/O of one holds up no other. The steps
// of their machines are taken one at a time, so that what may start is decided in one place.
type sessionRun struct {
	c     *Coordinator
	key   wire.BatchKey // of the first batch: its tenant and session are those of all
	log   *slog.Logger
	more  chan struct{}  // the log may hold another batch
	left  chan *batchRun // batches whose run has ended
	quiet chan struct{}  // closed: the session is suspended
	asked atomic.Bool    // a peer has asked who drives the session

	// offered is a delivery of a batch behind the head, for when that batch is read; nil: there is
	// none.
	offered *pull.Delivery

	mu        sync.Mutex
	line      session.Line[*batchRun] // guarded by mu
	suspended time.Time               // set: every batch only waits, until then at most; guarded by mu
	givenUp   bool                    // a batch goes to another driver, so nothing more starts here; guarded by mu
	reading   bool                    // the log is still to be read for the first time; guarded by mu
	again     bool                    // a batch had news when the session was suspended; guarded by mu
}

// maxSuccessors bounds the bodies of the batches of a session behind the first, in bytes.
const maxSuccessors = 8 << 20

func (c *Coordinator) newSessionRun(key wire.BatchKey) *sessionRun {
	return &sessionRun{
		c: c, key: key, log: c.log.With("session", key.Session, "tenant", key.Tenant),
		more: make(chan struct{}, 1), left: make(chan *batchRun, c.cfg.Lookahead), quiet: make(chan struct{}),
		line: session.Line[*batchRun]{Window: c.cfg.Window},
	}
}

// run drives the session, beginning with its head, until the log holds no more of it, every batch
// only waits, or a batch cannot be driven on here. done reports whether the rest of the session is
// in other hands: those of people or of the broker.
func (s *sessionRun) run(ctx context.Context, head journal.Accepted, delivery *pull.Delivery) (done bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if s.c.peers.Asked(sessionName(s.key)) {
		s.c.peers.PublishRunning(sessionName(s.key))
		s.askedByPeer()
	}
	if delivery == nil || delivery.Delivered > 1 { // the log may hold batches that nobody tells of any more
		s.readSoon()
	}
	s.reading = len(s.more) > 0
	s.begin(ctx, head, delivery, nil)
	defer s.returnOffer()
	poll := time.NewTicker(s.c.cfg.Poll)
	defer poll.Stop()
	for {
		select {
		case d := <-s.left:
			last := s.leave(d)
			if !d.finished { // the whole session is suspended, or goes to another driver
				if d.suspended.IsZero() {
					cancel()
				}
				for ; !last; last = s.leave(<-s.left) {
				}
				return !d.suspended.IsZero()
			}
			if err := s.readLog(ctx); err != nil && last {
				d.log.Warn("the next batch of the session cannot be read; it is driven when the broker delivers it", "err", err)
			}
			if s.empty() {
				return true
			}
			continue
		case <-s.more:
		case <-poll.C:
			if s.asked.Load() {
				s.c.peers.PublishRunning(sessionName(s.key))
			}
			s.lookForControls(ctx)
		}
		if err := s.readLog(ctx); err != nil {
			s.log.Debug("the log cannot be read for later batches of the session; trying again at the next poll", "err", err)
		}
		s.returnOffer() // nothing renews it here
		s.mu.Lock()
		s.reading = false
		s.mu.Unlock()
		s.suspendIfQuiet()
	}
}

// askedByPeer has the log read for the batch that a peer asked about. From now on the peers hear at
// each poll that the session is driven here.
func (s *sessionRun) askedByPeer() {
	s.asked.Store(true)
	s.readSoon()
}

// returnOffer hands a delivery back to the broker that no batch has taken.
func (s *sessionRun) returnOffer() {
	if s.offered != nil {
		s.c.decline(s.log, s.offered)
		s.offered = nil
	}
}

// readLog reads the batches behind those that are driven, as many as the bounds allow, and begins
// to drive them. A batch that has its reply, because it was submitted again or came back into the
// log, is answered and removed.
func (s *sessionRun) readLog(ctx context.Context) error {
	for s.c.serving.Load() { // else the broker delivers the next batch to a peer
		place, ok := s.place()
		if !ok {
			return nil
		}
		next, found, err := s.c.journal.Next(ctx, s.key.Tenant, s.key.Session, s.last())
		if err != nil || !found || !s.fits(next) {
			place.free()
			return err
		}
		reply, replied, err := s.c.journal.ReplyTo(ctx, next)
		if err == nil && replied {
			if err = s.c.answerAgain(ctx, s.log, next, reply); err == nil {
				err = s.c.journal.Remove(ctx, next)
			}
		}
		if err != nil || replied {
			place.free()
		}
		if err != nil {
			return err
		}
		if replied {
			continue
		}
		var delivery *pull.Delivery
		if s.offered != nil && s.offered.Seq == next.Seq {
			delivery, s.offered = s.offered, nil
		}
		if !s.begin(ctx, next, delivery, place) {
			return nil
		}
	}
	return nil
}

// place is a place of a batch behind the first of its session, which all sessions share; nil: the
// batch needs none.
type place struct{ all *semaphore.Weighted }

func (p *place) free() {
	if p != nil {
		p.all.Release(1)
	}
}

// place takes a place for another batch. The first batch of the session needs none.
func (s *sessionRun) place() (p *place, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	successors, _ := s.line.Successors()
	switch {
	case s.line.Last() == 0:
		return nil, true
	case successors+1 >= s.c.cfg.Lookahead || !s.c.successors.TryAcquire(1):
		return nil, false
	}
	return &place{s.c.successors}, true
}

// fits reports whether the body of another batch may be held.
func (s *sessionRun) fits(a journal.Accepted) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, size := s.line.Successors()
	return s.line.Last() == 0 || size+len(a.Body) <= maxSuccessors
}

// begin puts a batch at the end of the line and drives it. It returns false if the session was
// suspended meanwhile: the session is then driven again at once, from its head.
func (s *sessionRun) begin(ctx context.Context, a journal.Accepted, delivery *pull.Delivery, p *place) bool {
	d := s.c.newRun(s, a, delivery)
	d.place = p
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.suspended.IsZero() {
		s.again = true
		p.free()
		if delivery != nil {
			logUnsettled(s.log, delivery.Nak(s.c.cfg.Poll))
		}
		return false
	}
	s.line.Add(d, a.Seq, len(a.Body))
	s.giveTurns()
	s.c.runs.add(d)
	go func() {
		_ = guard(d.log, func() error { d.finished = d.run(ctx); return nil })
		d.lease.release(d.finished, !s.c.serving.Load(), d.suspended)
		s.left <- d
	}()
	return true
}

// leave takes a batch whose run has ended out of the line. last: it was the only one.
func (s *sessionRun) leave(d *batchRun) (last bool) {
	s.c.runs.leave(d)
	d.place.free()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line.Remove(d)
	s.givenUp = s.givenUp || !d.finished
	s.giveTurns()
	return s.line.Last() == 0
}

func (s *sessionRun) empty() bool { return s.last() == 0 }

// last is the sequence of the last batch in the line; 0: there is none.
func (s *sessionRun) last() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.line.Last()
}

// readSoon has the log read for later batches. It does not wait for that.
func (s *sessionRun) readSoon() {
	select {
	case s.more <- struct{}{}:
	default:
	}
}

// step takes one step of a batch's machine, and has the batches go on whose turn changes with it.
func (s *sessionRun) step(d *batchRun, now time.Time, ev batch.Event) (wants []batch.Effect) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if turn := s.line.Turn(d); d.turn != turn {
		d.turn = turn
		wants = d.machine.Step(now, turn)
	}
	wants = append(wants, d.machine.Step(now, ev)...)
	s.line.Set(d, session.Standing{Passable: d.machine.Passable(), Running: d.machine.Running(now), Held: d.machine.Held()})
	s.giveTurns()
	return wants
}

// over notes that the reply of a batch is stored.
func (s *sessionRun) over(d *batchRun) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line.Over(d)
	s.giveTurns()
}

// giveTurns wakes the batches whose turn has changed. It gives no turns once a batch has gone to
// another driver: that batch is in the line no more, and the batches behind it still have to wait
// for it. The caller holds mu.
func (s *sessionRun) giveTurns() {
	if s.givenUp {
		return
	}
	for _, d := range s.line.GiveTurns() {
		select {
		case d.turned <- struct{}{}:
		default:
		}
	}
}

// turnOf returns what a batch may start.
func (s *sessionRun) turnOf(d *batchRun) batch.May {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.line.Turn(d).May
}

// rest says that a batch only waits for people or for an earlier batch, until then at most. It
// reports whether the session is suspended now.
func (s *sessionRun) rest(d *batchRun, until time.Time) bool {
	s.mu.Lock()
	s.line.Rest(d, until)
	s.mu.Unlock()
	return s.suspendIfQuiet()
}

// suspendIfQuiet ends the runs of all batches if each only waits, and has no news. It reports
// whether the session is suspended.
func (s *sessionRun) suspendIfQuiet() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.suspended.IsZero() {
		return true
	}
	until, rests := s.line.Resting()
	if !rests || s.reading || len(s.more) > 0 || !s.c.runs.leaveIfQuiet(s, s.line.All()) {
		return false
	}
	s.suspended = until
	close(s.quiet)
	return true
}

// wake says that a batch has news. It returns false if the session is suspended: its next driver
// finds the news, and begins at once.
func (s *sessionRun) wake(d *batchRun) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line.Rest(d, time.Time{})
	if s.suspended.IsZero() {
		return true
	}
	s.again = true
	return false
}

// suspendedUntil is when the session has to be looked at again, at the latest.
func (s *sessionRun) suspendedUntil() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.suspended
}

// lookForControls has the batches look for controls whose machine has not begun, because they wait
// for an earlier one. The others look at every poll of their machine.
func (s *sessionRun) lookForControls(ctx context.Context) {
	s.mu.Lock()
	var waiting []*batchRun
	for _, d := range s.line.All() {
		if d.waits.Load() {
			waiting = append(waiting, d)
		}
	}
	s.mu.Unlock()
	if len(waiting) == 0 {
		return
	}
	entries, err := s.c.journal.Controls(ctx, s.key.Tenant, s.key.Session)
	if err != nil {
		s.log.Debug("the controls of the session cannot be read; trying again at the next poll", "err", err)
		return
	}
	for _, d := range waiting {
		if len(recall.Controls(entries, d.accepted, s.c.cfg.BatchTTL)) > 0 {
			d.lookSoon()
		}
	}
}
