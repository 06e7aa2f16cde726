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

// sessionRun drives the batches of one session: the oldest in the log (the head), and some of those
// behind it. Together they are the line, in the order of the log. Each batch has its own goroutine,
// so waiting for the I/O of one holds up no other. Only one machine steps at a time, so what may
// start is decided in one place.
type sessionRun struct {
	c     *Coordinator
	key   wire.BatchKey // of the first batch; all have its tenant and session
	log   *slog.Logger
	more  chan struct{}  // signals that the log may hold another batch
	left  chan *batchRun // batches whose runs have ended
	quiet chan struct{}  // closed when the session is suspended
	asked atomic.Bool    // a peer has asked who drives the session
	since time.Time      // batches stored later have surely had no other driver

	mu        sync.Mutex
	line      session.Line[*batchRun] // guarded by mu
	driven    map[*batchRun]bool      // batches in the line that were not given up; guarded by mu
	suspended time.Time               // set if every batch only waits: the latest time to resume; guarded by mu
	reading   bool                    // the log is still to be read for the first time; guarded by mu
	again     bool                    // a batch had news when the session was suspended; guarded by mu
	full      bool                    // there is no place for another batch in the line; guarded by mu
	offers    []offer                 // deliveries of batches that are not read yet; guarded by mu
	ended     bool                    // the run takes no more offers; guarded by mu
}

func (c *Coordinator) newSessionRun(key wire.BatchKey) *sessionRun {
	return &sessionRun{
		c: c, key: key, log: c.log.With("session", key.Session, "tenant", key.Tenant),
		more: make(chan struct{}, 1), left: make(chan *batchRun, c.cfg.Lookahead), quiet: make(chan struct{}),
		line: session.Line[*batchRun]{Window: c.cfg.Window}, driven: map[*batchRun]bool{},
	}
}

// run drives the session from its head. It returns when the log has no more batches of the session,
// when every batch only waits, or when the rest cannot be driven here. done says that nobody here
// has to go on: a decision of a person or a delivery of the broker will.
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
		s.readSoon() // nobody announces batches that are in the log already
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
			case <-s.more: // this is the read that was asked for
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

// hasRead follows a reading of the log. Deliveries that were offered for that reading go back to
// the broker, because nothing here renews them. If nothing is left to do, it suspends the session.
func (s *sessionRun) hasRead() {
	s.returnOffers()
	s.mu.Lock()
	s.reading = false
	s.mu.Unlock()
	s.suspendIfQuiet()
}

// askedByPeer reads the log for the batch that a peer asks about. From now on each poll tells the
// peers that this coordinator drives the session.
func (s *sessionRun) askedByPeer() {
	s.asked.Store(true)
	s.readSoon()
}

// begin adds a batch to the end of the line and drives it. It returns false if the session was
// suspended meanwhile. The session is then driven again at once, from its head.
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

// take adds a batch to the end of the line. It returns false if the session was suspended.
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

// leave ends the run of a batch. A batch that has left the log is removed from the line. A batch
// that was given up stays in the line, so that the batches behind it keep waiting. It is tried
// again when the session is driven anew: after Config.AckWait, or later while other batches of the
// session go on. last says that no batch of the session is driven any more.
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

// freeFirst gives back the place of a batch that is now the first in the line: only batches behind
// the first take places. The caller holds mu.
func (s *sessionRun) freeFirst() {
	if all := s.line.All(); len(all) > 0 && s.driven[all[0]] {
		all[0].place.free()
		all[0].place = nil
	}
}

// announceHead starts to tell the other coordinators about the head, because the broker may deliver
// it to one of them. If it delivers a later batch to them, they leave that to the driver of the
// session.
func (s *sessionRun) announceHead() {
	s.mu.Lock()
	head, found := s.line.Head()
	found = found && s.driven[head]
	s.mu.Unlock()
	if found {
		head.lease.announce()
	}
}

// abandoned reports whether the log may hold a batch of the session that nobody drives for long.
// The run has ended, and it had no delivery to hand back to the broker.
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

// readSoon makes run read the log for later batches. It does not wait for that.
func (s *sessionRun) readSoon() {
	select {
	case s.more <- struct{}{}:
	default:
	}
}

// step gives an event to a batch's machine. It then wakes the batches that may start more calls, or
// fewer, because of that.
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

// waits records that a batch waits until it may start its first calls, and whether these are safe:
// they may run beside others.
func (s *sessionRun) waits(d *batchRun, safe bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line.Set(d, session.Standing{Safe: safe})
	s.giveTurns()
}

// over records that the reply of a batch is stored. Later batches may then start more.
func (s *sessionRun) over(d *batchRun) {
	defer s.announceHead()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line.Over(d)
	s.giveTurns()
}

// giveTurns wakes the batches for which it has changed which calls they may start. The caller holds
// mu.
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

// rest records that a batch only waits: for people, or for an earlier batch. until is when it has
// to be looked at again. rest reports whether all batches of the session only wait, so that the
// session is now suspended.
func (s *sessionRun) rest(d *batchRun, until time.Time) bool {
	s.mu.Lock()
	s.line.Rest(d, until)
	s.mu.Unlock()
	return s.suspendIfQuiet()
}

// suspendIfQuiet ends the runs of all batches of the session, if every batch only waits and nothing
// new has come for any. It reports whether the session is suspended.
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

// noteRested makes intake hand back the deliveries of this session's waiting batches without a look
// at them. The caller holds mu.
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

// wake records that something new has come for a batch. It returns false if the session is
// suspended: its next driver finds what is new when it begins.
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

// suspendedUntil returns the latest time to look at the session again.
func (s *sessionRun) suspendedUntil() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.suspended
}

// lookForControls is for batches that still wait for an earlier batch, so that their machines do
// not poll yet. It makes them look for controls, such as an abort.
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
