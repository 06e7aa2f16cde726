package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// This file finds sessions that make no progress. The batches of a session wait for its head,
// the oldest batch. A head may itself wait for a good reason: a person, a worker or a running
// call. Then stored records show the reason. If no record shows one, probably no coordinator
// drives the head.

// StuckHead is the head of a session that has made no progress for long, although no record
// gives a reason to wait.
type StuckHead struct {
	Key     wire.BatchKey
	Session messages.SessionID // if the batch cannot be read: the token in Key
	Batch   messages.BatchID   // if the batch cannot be read: the token in Key
	Seq     uint64             // the batch's sequence in the log
	Since   time.Time          // when the last progress of the session was stored
	// Replied says that the batch has its reply and is still in the log. If it is false, no
	// call of the batch is queued, is running, or waits for a person.
	Replied bool
}

// removal is how long a batch with a reply may stay in the log, counted from its reply, or
// from when the batch became the head. A coordinator needs this time to write the audit lines.
// If that coordinator is lost, another one needs this time to notice.
const removal = time.Minute

// Limits of one step of a sweep. With them, a long log costs the server only a little at a
// time.
const (
	stepMessages = 1000
	stepBytes    = 8 << 20
	stepHeads    = 32 // limit of heads that need their own requests
)

// HeadSweep reads the log once, from the oldest batch on, and finds the stuck heads. It is not
// safe for concurrent use.
type HeadSweep struct {
	j        *Journal
	patience time.Duration
	next     uint64          // sequence in the log at which the next step begins
	seen     map[string]bool // sessions whose head was checked
	// asked has the batches with an open question. It is nil until the sweep finds its first
	// old head and reads the questions from the index. A head in asked needs no request: it
	// waits for a person. A head that is not in asked may also wait for a person, because the
	// index may lack a question.
	asked map[wire.BatchKey]bool
	stuck []StuckHead
}

// SweepHeads begins a sweep. patience is how long a head without a reply may make no progress
// although no stored record gives a reason.
func (j *Journal) SweepHeads(patience time.Duration) *HeadSweep {
	return &HeadSweep{j: j, patience: patience, next: 1, seen: map[string]bool{}}
}

// Stuck returns the stuck heads that were found so far, the oldest in the log first.
func (s *HeadSweep) Stuck() []StuckHead { return s.stuck }

// Step reads the next part of the log, with a limited number of requests. done means that the
// sweep has reached the end. After an error, the next call repeats the step.
func (s *HeadSweep) Step(ctx context.Context) (done bool, err error) {
	now := s.j.conn.Now(ctx)
	heads, next, done, err := s.heads(ctx, now)
	if err != nil {
		return false, fmt.Errorf("look for sessions that stand still: %w", err)
	}
	quiet, err := s.unexplained(ctx, now, heads)
	if err != nil {
		return false, fmt.Errorf("look for sessions that stand still: %w", err)
	}
	if len(quiet) > stepHeads {
		next, done = quiet[stepHeads].Seq, false
		quiet = quiet[:stepHeads]
	}
	var stuck []StuckHead
	for i, q := range quiet {
		head, is, err := s.checkHead(ctx, now, q)
		if err != nil && i > 0 && ctx.Err() != nil { // time is up, so the next step begins here
			next, done = q.Seq, false
			break
		}
		if err != nil {
			return false, fmt.Errorf("look whether session %s stands still: %w", q.Key.Session, err)
		}
		if is {
			stuck = append(stuck, head)
		}
	}
	for _, h := range heads {
		if h.Seq < next {
			s.seen[sessionOf(h.Key)] = true
		}
	}
	s.next, s.stuck = next, append(s.stuck, stuck...)
	return done, nil
}

func sessionOf(key wire.BatchKey) string { return key.Tenant + "." + key.Session }

// heads returns the heads in the next part of the log, except those of sessions that the sweep
// has seen before. next is the sequence after that part. done means that all later batches are
// too young to be stuck.
func (s *HeadSweep) heads(ctx context.Context, now time.Time) (heads []Accepted, next uint64, done bool, err error) {
	next, done = s.next, true
	here := map[string]bool{}
	messagesLeft, bytesLeft := stepMessages, stepBytes
	filter := s.j.names.EveryBatch(wire.VerbBatch)
	err = s.j.conn.Scan(ctx, s.j.names.Stream(bus.Batches), filter, bus.From{Seq: s.next}, func(msg bus.Msg) bool {
		if now.Sub(msg.Time) < removal {
			return false
		}
		if messagesLeft--; messagesLeft < 0 || bytesLeft < 0 {
			done = false
			return false
		}
		bytesLeft -= len(msg.Data)
		next = msg.Seq + 1
		a, err := s.j.Accepted(msg)
		if session := sessionOf(a.Key); err == nil && !s.seen[session] && !here[session] {
			here[session] = true
			heads = append(heads, a)
		}
		return true
	})
	return heads, next, done, err
}

// quietHead is a head that the sweep has to check, because it knows no reason to wait.
type quietHead struct {
	Accepted
	replied bool
}

// unexplained returns the heads that may be stuck: those with a reply, and old ones that do
// not wait for a person. However many heads there are, it makes the same number of requests.
func (s *HeadSweep) unexplained(ctx context.Context, now time.Time, heads []Accepted) (quiet []quietHead, err error) {
	finals := make([]string, len(heads))
	old := false
	for i, h := range heads {
		finals[i] = s.j.names.Of(wire.VerbFinal, h.Key)
		old = old || now.Sub(h.Stored) >= s.patience
	}
	replies, err := s.j.conn.Glance(ctx, s.j.names.Stream(bus.Replies), finals...)
	if err != nil {
		return nil, err
	}
	replied := map[string]time.Time{}
	for _, msg := range replies {
		replied[msg.Subject] = msg.Time
	}
	if old && s.asked == nil {
		open, err := s.j.Pending(ctx, "*")
		if err != nil {
			return nil, err
		}
		s.asked = map[wire.BatchKey]bool{}
		for _, q := range open {
			s.asked[wire.KeyOf(string(q.Tenant), q.Session, q.Batch)] = true
		}
	}
	for i, h := range heads {
		at, has := replied[finals[i]]
		if has && now.Sub(at) >= removal || !has && now.Sub(h.Stored) >= s.patience && !s.asked[h.Key] {
			quiet = append(quiet, quietHead{h, has})
		}
	}
	return quiet, nil
}

// checkHead reports whether the head of a session is stuck. The last progress of the session
// decides.
func (s *HeadSweep) checkHead(ctx context.Context, now time.Time, q quietHead) (head StuckHead, stuck bool, err error) {
	last, replied, err := s.j.LastReplied(ctx, q.Key.Tenant, q.Key.Session)
	if err != nil {
		return head, false, err
	}
	since, patience := q.Stored, removal
	if replied && last.Stored.After(since) {
		since = last.Stored
	}
	if !q.replied {
		patience = s.patience
		if since, err = s.lastSign(ctx, q.Key, since); err != nil {
			return head, false, err
		}
	}
	if now.Sub(since) < patience {
		return head, false, nil
	}
	if !q.replied {
		until, err := s.explainedUntil(ctx, q.Key)
		if err != nil || now.Sub(until) < patience {
			return head, false, err
		}
	}
	newest, found, err := s.j.Head(ctx, q.Key.Tenant, q.Key.Session)
	if err != nil || !found || newest.Seq != q.Seq { // the session has made progress since
		return head, false, err
	}
	head = StuckHead{Key: q.Key, Session: messages.SessionID(q.Key.Session), Batch: messages.BatchID(q.Key.Batch), Seq: q.Seq, Since: since, Replied: q.replied}
	if b, _ := messages.DecodeBatch(q.Body); wire.KeyOf(q.Key.Tenant, b.Session, b.ID) == q.Key {
		head.Session, head.Batch = b.Session, b.ID
	}
	return head, true, nil
}

// lastSign returns when the newest record of a batch was stored. It returns since if that is
// later.
func (s *HeadSweep) lastSign(ctx context.Context, key wire.BatchKey, since time.Time) (time.Time, error) {
	calls, results := s.j.names.Stream(bus.Calls), s.j.names.Stream(bus.Results)
	for _, at := range []struct{ stream, subject string }{
		{calls, s.j.names.Of(wire.VerbCall, key) + ".*"},
		{calls, s.j.names.Of(wire.VerbPlan, key)},
		{calls, s.j.names.Of(wire.VerbHand, key) + ".*"},
		{results, s.j.names.Of(wire.VerbResult, key) + ".*"},
	} {
		msg, err := s.j.conn.Last(ctx, at.stream, at.subject)
		if err != nil && !errors.Is(err, bus.ErrNotFound) {
			return since, err
		}
		if err == nil && msg.Time.After(since) {
			since = msg.Time
		}
	}
	return since, nil
}

// explainedUntil returns until when the records of a batch give a reason to wait. The reasons
// are: a call is queued, is with a worker, is claimed, or waits for its next attempt or a
// person.
func (s *HeadSweep) explainedUntil(ctx context.Context, key wire.BatchKey) (until time.Time, err error) {
	later := func(t time.Time) {
		if t.After(until) {
			until = t
		}
	}
	for _, lane := range []wire.Verb{wire.VerbRead, wire.VerbWrite} { // the filter below matches every pool
		msg, err := s.j.conn.Last(ctx, s.j.names.Stream(bus.Jobs), s.j.names.Of(lane+".*", key)+".*")
		if errors.Is(err, bus.ErrNotFound) {
			continue
		}
		if err != nil {
			return until, err
		}
		later(msg.Time)
		var job wire.Job
		if json.Unmarshal(msg.Data, &job) == nil {
			later(job.NotAfter)
		}
	}
	known, err := s.j.Calls(ctx, key)
	for _, e := range known.Records {
		switch e.Record.State {
		case wire.Parked:
			if e.Record.Approval != nil {
				later(e.Record.Approval.Expires)
			}
		case wire.Claimed, wire.Renewed:
			later(e.Stored.Add(time.Duration(e.Record.LeaseMS) * time.Millisecond))
		case wire.Released:
			later(e.Stored.Add(time.Duration(e.Record.RetryAfterMS) * time.Millisecond))
		}
	}
	return until, err
}
