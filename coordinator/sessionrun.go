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

// sessionRun drives batches of one session: the head, and some of the batches behind it. These
// batches, in the order of the log, are the line. Each batch has its own goroutine, so that
// the I/O of one batch does not delay the others. Only one machine of the session steps at a
// time. So the line always shows what every batch does, and decides what may start.
type sessionRun struct {
	c     *Coordinator
	key   wire.BatchKey // of the first batch; all batches have its tenant and session
	log   *slog.Logger
	more  chan struct{}  // signals that the log may hold another batch of the session
	left  chan *batchRun // batches whose runs have ended
	quiet chan struct{}  // closed when the session is suspended
	asked atomic.Bool    // a peer has asked which coordinator drives the session
	since time.Time      // a batch that was stored later has had no other driver

	mu        sync.Mutex
	line      session.Line[*batchRun] // guarded by mu
	driven    map[*batchRun]bool      // batches in the line that are being driven; guarded by mu
	suspended time.Time               // the latest time to resume; zero while the session is not suspended; guarded by mu
	reading   bool                    // the first read of the log is still to come; guarded by mu
	again     bool                    // there is news since the session was suspended; guarded by mu
	full      bool                    // the line has no room for another batch; guarded by mu
	offers    []offer                 // deliveries of batches that are not yet read from the log; guarded by mu
	ended     bool                    // the run takes no more offers; guarded by mu
}

func (c *Coordinator) newSessionRun(key wire.BatchKey) *sessionRun {
	return &sessionRun{
		c: c, key: key, log: c.log.With("session", key.Session, "tenant", key.Tenant),
		more: make(chan struct{}, 1), left: make(chan *batchRun, c.cfg.Lookahead), quiet: make(chan struct{}),
		line: session.Line[*batchRun]{Window: c.cfg.Window}, driven: map[*batchRun]bool{},
	}
}

// run drives the session from its head. It returns when the log has no more batches of the
// session, when every batch only waits, or when the other batches cannot be driven here. If
// done is true, no goroutine of this coordinator must go on: a person's decision or a delivery
// by the broker continues the session.
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
		s.readSoon() // no notice comes for batches that are already in the log
	}
	s.reading = len(s.more) > 0
	s.begin(ctx, head, delivery, nil)
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
			select {
			case <-s.more: // readLog below does what this signal asks for
			default:
			}
			if err := s.readLog(ctx); err != nil {
				s.readSoon()
				if last {
					d.log.Warn("the next batch of the session cannot be read; it is driven when the broker delivers it", "err", err)
				}
			}
			if s.empty() {
				return true
			}
			s.hasRead()
			continue
		case <-s.more:
		case <-poll.C:
			if s.asked.Load() && s.c.serving.Load() { // a stopping coordinator leaves the session to a peer
				s.c.peers.PublishRunning(sessionName(s.key))
			}
			s.lookForControls(ctx)
		}
		if err := s.readLog(ctx); err != nil {
			s.log.Debug("the log cannot be read for later batches of the session; trying again at the next poll", "err", err)
		}
		s.hasRead()
	}
}

// hasRead is called after each read of the log. It hands the offered deliveries that the read
// did not use back to the broker, because nothing renews them here. If every batch only waits,
// hasRead suspends the session.
func (s *sessionRun) hasRead() {
	s.returnOffers()
	s.mu.Lock()
	s.reading = false
	s.mu.Unlock()
	s.suspendIfQuiet()
}

// askedByPeer is called when a peer has got a batch of the session and asks who drives it. It
// makes run read the log. From now on, each poll tells the peers that this coordinator drives
// the session.
func (s *sessionRun) askedByPeer() {
	s.asked.Store(true)
	s.readSoon()
}

// begin adds a batch to the end of the line and drives it. It returns false if the session is
// suspended. Then the caller of run drives the session again, from its head.
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

// take adds a batch to the end of the line. It returns false if the session is suspended.
func (s *sessionRun) take(d *batchRun) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.suspended.IsZero() {
		s.again = true
		return false
	}
	s.line.Add(d, d.accepted.Seq, d.accepted.Stored, len(d.accepted.Body))
	s.driven[d] = true
	s.giveTurns()
	s.c.runs.add(d)
	return true
}

// leave ends the run of a batch. If the batch has left the log, leave removes it from the
// line. If its driver gave it up, it stays in the line, so that the batches behind it keep
// waiting. The next run of the session tries it again: after Config.AckWait, or later if other
// batches of the session still run. last means that no batch of the session is being driven.
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

// freeFirst gives back the place of the first batch in the line. Only batches behind the first
// need places. The caller holds mu.
func (s *sessionRun) freeFirst() {
	if all := s.line.All(); len(all) > 0 && s.driven[all[0]] {
		all[0].place.free()
		all[0].place = nil
	}
}

// announceHead makes the lease of the head tell the peers that the head is driven here,
// because the broker may deliver the head to a peer. Later batches need no announcement: a
// peer leaves them to the driver of the session.
func (s *sessionRun) announceHead() {
	s.mu.Lock()
	head, found := s.line.Head()
	found = found && s.driven[head]
	s.mu.Unlock()
	if found {
		head.lease.announce()
	}
}

// abandoned reports, after the run has ended, whether the log may hold a batch that would stay
// without a driver for long. The broker does not deliver such a batch again soon, because this
// run had no delivery of it to hand back.
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

func (s *sessionRun) empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.line.Empty()
}

// readSoon makes run read the log for later batches. It returns at once.
func (s *sessionRun) readSoon() {
	select {
	case s.more <- struct{}{}:
	default:
	}
}

// step gives an event to a batch's machine. Then it wakes every batch of the session whose
// turn the event has changed.
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

// waits records that a batch waits for its turn. safe says whether its first calls may run
// beside other calls.
func (s *sessionRun) waits(d *batchRun, safe bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line.Set(d, session.Standing{Safe: safe})
	s.giveTurns()
}

// over records that the reply of a batch is stored. Later batches may then start more
// calls.
func (s *sessionRun) over(d *batchRun) {
	defer s.announceHead()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line.Over(d)
	s.giveTurns()
}

// giveTurns wakes each batch whose turn has changed, so that it may now start other calls than
// before. The caller holds mu.
func (s *sessionRun) giveTurns() {
	for _, d := range s.line.GiveTurns() {
		select {
		case d.turned <- struct{}{}:
		default:
		}
	}
}

// turnOf returns which calls a batch may start.
func (s *sessionRun) turnOf(d *batchRun) batch.May {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.line.Turn(d).May
}

// rest records that a batch only waits, for people or for an earlier batch, and needs no look
// before the time until. If all batches of the session only wait, rest suspends the session.
// It reports whether the session is suspended.
func (s *sessionRun) rest(d *batchRun, until time.Time) bool {
	s.mu.Lock()
	s.line.Rest(d, until)
	s.mu.Unlock()
	return s.suspendIfQuiet()
}

// suspendIfQuiet ends the runs of all batches of the session if every batch only waits and
// there is no news for any of them. It reports whether the session is suspended.
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

// noteRested adds the session to runs.rested. Intake then hands deliveries of the session's
// batches back to the broker at once. The caller holds mu.
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

// wake records that there is news for a batch. It returns false if the session is suspended.
// Then the caller stops, and the next driver finds the news in the journal.
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

// suspendedUntil returns when a suspended session must be resumed at the latest. It returns
// zero if the session is not suspended.
func (s *sessionRun) suspendedUntil() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.suspended
}

// lookForControls looks for controls, such as an abort, that concern batches that still wait
// for their turn. Their machines have not begun, so these batches do not poll the journal.
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
