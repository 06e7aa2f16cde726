package coordinator

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

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
	since time.Time      // no other coordinator is known to have driven batches that were stored later

	// offered is a delivery of a batch behind the head, for when that batch is read; nil: there is
	// none.
	offered *pull.Delivery

	mu        sync.Mutex
	line      session.Line[*batchRun] // guarded by mu
	driven    map[*batchRun]bool      // the batches of the line that have not been given up; guarded by mu
	suspended time.Time               // set: every batch only waits, until then at most; guarded by mu
	reading   bool                    // the log is still to be read for the first time; guarded by mu
	again     bool                    // a batch had news when the session was suspended; guarded by mu
	full      bool                    // there is no place for another batch in the line; guarded by mu
}

func (c *Coordinator) newSessionRun(key wire.BatchKey) *sessionRun {
	return &sessionRun{
		c: c, key: key, log: c.log.With("session", key.Session, "tenant", key.Tenant),
		more: make(chan struct{}, 1), left: make(chan *batchRun, c.cfg.Lookahead), quiet: make(chan struct{}),
		line: session.Line[*batchRun]{Window: c.cfg.Window}, driven: map[*batchRun]bool{},
	}
}

// run drives the session, beginning with its head, until the log holds no more of it, every batch
// only waits, or those that are left cannot be driven on here. done reports whether the rest of the
// session is in other hands: those of people or of the broker.
func (s *sessionRun) run(ctx context.Context, head journal.Accepted, delivery *pull.Delivery) (done bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if s.c.peers.Asked(sessionName(s.key)) {
		s.c.peers.PublishRunning(sessionName(s.key))
		s.askedByPeer()
	}
	s.since = head.Stored.Add(-1)
	if delivery == nil || delivery.Delivered > 1 {
		s.since = s.c.conn.Now(ctx)
		s.readSoon() // the log may hold batches that nobody tells of any more
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
			if suspended := !s.suspendedUntil().IsZero(); suspended || last && !s.empty() {
				if last {
					return suspended
				}
				continue
			}
			if err := s.readLog(ctx); err != nil && last {
				d.log.Warn("the next batch of the session cannot be read; it is driven when the broker delivers it", "err", err)
			}
			if s.empty() {
				return true
			}
			s.suspendIfQuiet()
			continue
		case <-s.more:
		case <-poll.C:
			if s.asked.Load() && s.c.serving.Load() { // else a peer is to drive the session soon
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

// begin puts a batch at the end of the line and drives it. It returns false if the session was
// suspended meanwhile: the session is then driven again at once, from its head.
func (s *sessionRun) begin(ctx context.Context, a journal.Accepted, delivery *pull.Delivery, p *place) bool {
	d := s.c.newRun(s, a, delivery)
	d.place, d.first = p, a.Stored.After(s.since)
	if !s.take(d) {
		p.free()
		if delivery != nil {
			logUnsettled(s.log, delivery.Nak(s.c.cfg.Poll))
		}
		return false
	}
	s.announceHead()
	go func() {
		_ = guard(d.log, func() error { d.finished = d.run(ctx); return nil })
		d.lease.release(d.finished, !s.c.serving.Load(), d.suspended)
		s.left <- d
	}()
	return true
}

// take puts a batch at the end of the line. It returns false if the session was suspended.
func (s *sessionRun) take(d *batchRun) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.suspended.IsZero() {
		s.again = true
		return false
	}
	s.line.Add(d, d.accepted.Seq, len(d.accepted.Body))
	s.driven[d] = true
	s.giveTurns()
	s.c.runs.add(d)
	return true
}

// leave takes a batch out of the line that has left the log. A batch that was given up stays there
// as one that rests, and those behind it go on to wait for it: it is tried again when the session
// is driven anew, at the latest after Config.AckWait if nothing else goes on. last: no batch is
// driven any more.
func (s *sessionRun) leave(d *batchRun) (last bool) {
	s.c.runs.leave(d)
	d.place.free()
	defer s.announceHead()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.driven, d)
	if d.finished {
		s.line.Remove(d)
		s.freeFirst()
	} else {
		s.line.Rest(d, time.Now().Add(s.c.cfg.AckWait))
	}
	s.giveTurns()
	return len(s.driven) == 0
}

// freeFirst gives back the place of a batch that has become the first of the line, because only
// those behind it need places. The caller holds mu.
func (s *sessionRun) freeFirst() {
	if all := s.line.All(); len(all) > 0 && s.driven[all[0]] {
		all[0].place.free()
		all[0].place = nil
	}
}

// announceHead has the peers told about the oldest batch that is not over, if the broker may
// deliver it to one of them. The batches behind it they leave to the driver of the session.
func (s *sessionRun) announceHead() {
	s.mu.Lock()
	head, found := s.line.Head()
	found = found && s.driven[head]
	s.mu.Unlock()
	if found {
		head.lease.announce()
	}
}

// abandoned reports whether the log holds a batch of the session that nobody may drive for long,
// because the run has ended and has no delivery to hand back.
func (s *sessionRun) abandoned(ctx context.Context) bool {
	s.mu.Lock()
	head, left := s.line.Head()
	suspended, again := !s.suspended.IsZero(), s.again
	s.mu.Unlock()
	switch {
	case left && !suspended:
		return head.lease.current() == nil
	case s.c.serving.Load(), suspended && !again:
		return false
	}
	_, found, err := s.c.journal.Head(ctx, s.key.Tenant, s.key.Session)
	return found || err != nil
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
	s.line.Set(d, session.Standing{
		Passable: d.machine.Passable(), Safe: d.machine.Safe(), Running: d.machine.Running(now), Held: d.machine.Held(),
	})
	s.giveTurns()
	return wants
}

// waits notes that a batch waits for its turn, and whether it begins with safe calls.
func (s *sessionRun) waits(d *batchRun, safe bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line.Set(d, session.Standing{Safe: safe})
	s.giveTurns()
}

// over notes that the reply of a batch is stored.
func (s *sessionRun) over(d *batchRun) {
	defer s.announceHead()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line.Over(d)
	s.giveTurns()
}

// giveTurns wakes the batches whose turn has changed. The caller holds mu.
func (s *sessionRun) giveTurns() {
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
	if !rests || s.reading || len(s.more) > 0 || !s.c.runs.leaveIfQuiet(s, slices.Collect(maps.Keys(s.driven))) {
		return false
	}
	s.suspended = until
	s.noteRested()
	close(s.quiet)
	return true
}

// noteRested has deliveries of the batches that wait in the session handed back without a look. The
// caller holds mu.
func (s *sessionRun) noteRested() {
	head, _ := s.line.Head()
	last := s.line.Last()
	if s.full {
		last = noMore
	}
	if head != nil {
		s.c.runs.rested.note(sessionName(s.key), head.accepted.Seq, last)
	}
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
	for d := range s.driven {
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
