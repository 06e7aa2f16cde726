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

// History is everything that the journal still has about a batch, except arguments and most
// outputs. It is for people to read. No code makes decisions with it.
type History struct {
	Accepted Accepted // the batch; Seq is 0 if it has left the log
	Plans    []PlanEntry
	Records  []CallEntry     // every record of every call, the oldest first
	Results  []StoredResult  // results of calls that ran without a claim; empty if the reply has them
	Reply    *messages.Reply // the reply without its reinjection; nil if there is none
	Replied  time.Time       // when the reply was stored
	Lines    wire.AuditLines // the lines of the audit log about the calls

	// answers has the sequence and the time of the batch that the reply answers.
	answers Accepted
}

// StoredResult is the result of a call that ran without a claim.
type StoredResult struct {
	Key    wire.CallKey
	Stored time.Time
	Result messages.Result
}

// Outputs says which outputs a history keeps. If the batch has its reply, the history keeps
// no outputs, because the reply has them.
type Outputs int

// The outputs that a history may keep.
const (
	// SmallOutputs keeps the outputs that are small enough for an end event.
	SmallOutputs Outputs = iota
	// AllOutputs keeps every output in the records. A record has only a ref to an output that
	// is in the object store.
	AllOutputs
)

// History returns the history of a batch up to now, or bus.ErrNotFound for an unknown batch.
// It leaves out call records and results that cannot be read.
func (j *Journal) History(ctx context.Context, key wire.BatchKey, outputs Outputs) (s History, err error) {
	// Read the log first. A batch leaves the log only after its reply is stored, so at least
	// one of the two reads finds the batch.
	accepted, open, err := j.Open(ctx, key)
	if err != nil {
		return s, err
	}
	if s.Accepted = accepted; !open {
		s.Accepted = Accepted{Key: key}
	}
	if err := j.historyReply(ctx, key, &s); err != nil {
		return s, err
	}
	if s.Reply == nil && !open {
		return s, bus.ErrNotFound
	}
	if s.Plans, err = j.Plans(ctx, key); err != nil {
		return s, err
	}
	lighten := func(r *messages.Result) {
		switch {
		case r == nil:
		case s.Reply != nil:
			r.Output, r.Content = nil, nil
		case outputs == SmallOutputs:
			*r = r.Brief()
		}
	}
	for _, p := range s.Plans {
		for i := range p.Record.Results {
			lighten(&p.Record.Results[i])
		}
	}
	records, err := j.conn.All(ctx, j.names.Stream(bus.Calls), j.names.Of(wire.VerbCall, key)+".*")
	if err != nil {
		return s, fmt.Errorf("read the records of batch %s: %w", key, err)
	}
	for _, msg := range records {
		if entry, err := j.callEntry(msg); err == nil {
			entry.Record.Input = nil
			if entry.Record.Approval != nil {
				entry.Record.Approval.Input = nil
			}
			lighten(entry.Record.Result)
			s.Records = append(s.Records, entry)
		}
	}
	if s.Reply == nil || len(s.Reply.Results) == 0 {
		if err := j.historyResults(ctx, key, &s, lighten); err != nil {
			return s, err
		}
	}
	if !open {
		return s, j.historyLines(ctx, key, &s)
	}
	return s, nil
}

// historyResults adds the stored results of the calls that ran without a claim.
func (j *Journal) historyResults(ctx context.Context, key wire.BatchKey, s *History, lighten func(*messages.Result)) error {
	results, err := j.conn.LastOfEach(ctx, j.names.Stream(bus.Results), j.names.Of(wire.VerbResult, key)+".*")
	if err != nil {
		return fmt.Errorf("read the results of batch %s: %w", key, err)
	}
	for _, msg := range results {
		var known Known
		if j.addMessage(&known, msg) == nil && len(known.Results) == 1 {
			r := known.Results[0]
			lighten(&r.Result)
			s.Results = append(s.Results, StoredResult{r.Key, msg.Time, r.Result})
		}
	}
	return nil
}

// skipped ignores the JSON value that is decoded into it.
type skipped struct{}

func (*skipped) UnmarshalJSON([]byte) error { return nil }

// historyReply adds the reply, if there is one. If the results of the reply are in an object
// that cannot be read, it adds the reply without results.
func (j *Journal) historyReply(ctx context.Context, key wire.BatchKey, s *History) error {
	msg, err := j.conn.Last(ctx, j.names.Stream(bus.Replies), j.names.Of(wire.VerbFinal, key))
	if errors.Is(err, bus.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the reply of batch %s: %w", key, err)
	}
	body, err := j.FullReply(ctx, msg.Data)
	if err != nil {
		body = msg.Data // the message has only a part of the reply
	}
	var reply struct {
		messages.Reply
		// Skip the reinjection: it would repeat the outputs of all calls.
		Reinjection skipped `json:"reinjection"`
	}
	if err := json.Unmarshal(body, &reply); err != nil {
		return fmt.Errorf("stored reply of batch %s: %w", key, err)
	}
	s.Reply, s.Replied = &reply.Reply, msg.Time
	s.answers.Seq, s.answers.Stored = answered(msg)
	return nil
}

// clocks is the largest difference that is expected between the clocks of two servers.
const clocks = time.Minute

// historyLines adds the audit lines about the batch that the stored reply answers. It reads
// the lines of the session, and then those on the batch's overflow subject. All lines were
// stored after the batch was accepted. So it begins at that time minus clocks.
func (j *Journal) historyLines(ctx context.Context, key wire.BatchKey, s *History) error {
	if s.answers.Seq == 0 {
		return nil
	}
	whole := false
	for _, subject := range []string{j.names.Ended(key.Tenant, key.Session, s.answers.Stored), j.names.Aside(key)} {
		if whole {
			break
		}
		since := bus.From{Time: s.answers.Stored.Add(-clocks)}
		err := j.conn.Scan(ctx, j.names.Stream(bus.Audit), subject, since, func(msg bus.Msg) bool {
			var part wire.AuditLines
			if json.Unmarshal(msg.Data, &part) != nil || part.Seq != s.answers.Seq || !part.About.Accepted.Equal(s.answers.Stored) {
				return true
			}
			s.Lines.Lines = append(s.Lines.Lines, part.Whole()...)
			whole = part.Last
			return !whole
		})
		if err != nil {
			return fmt.Errorf("read the lines about batch %s: %w", key, err)
		}
	}
	return nil
}
