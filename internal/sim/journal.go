package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/plan"
	"github.com/toolfleet/toolfleet/internal/journal/outcome"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

var names = wire.Names{}

// The streams by their roles.
var (
	logStream     = names.Stream("BATCHES")
	callsStream   = names.Stream("CALLS")
	resultsStream = names.Stream("RESULTS")
	repliesStream = names.Stream("REPLIES")
	jobsStream    = names.Stream("JOBS")
)

// Submission is what an agent publishes: a Batch, decoded and planned beforehand, since neither is what is tried here.
type Submission struct {
	Key  wire.BatchKey
	Plan plan.Plan
	// Refused cannot be decoded.
	Refused bool
}

// reply is what is stored of a batch in the end.
type reply struct {
	by      string
	refused bool
	results []messages.Result
}

// journal is internal/journal, one command at a time. What it answers after a conflict and after silence is the
// same: the newest record decides.
type journal struct{ *task }

// entry is a stored record of a call.
type entry struct {
	seq    uint64 // 0: there is none
	record wire.CallRecord
}

// lostTo says that another writer's record is the newest.
type lostTo struct{ newest entry }

func (l *lostTo) Error() string {
	return fmt.Sprintf("%s at %d is newer", l.newest.record.State, l.newest.seq)
}

func (j journal) write(key wire.CallKey, record wire.CallRecord, last uint64, deadline time.Time) (seq uint64, err error) {
	subject := names.OfCall(wire.VerbCall, key)
	began := j.Now
	err = j.askUntil(deadline, string(record.State), subject, func() error {
		stored, err := j.CompareAndSet(subject, record, last)
		seq = stored
		return err
	})
	answer := answerTo(err)
	if answer.Final() {
		return seq, err
	}
	// What became of it is asked for no longer than the write took.
	newest, readErr := j.newestBy(j.Now.Add(max(j.Now.Sub(began), 500*time.Millisecond)), key)
	seen := outcome.Newest{Read: readErr == nil, Seq: newest.seq, Own: newest.seq > 0 && newest.record.Nonce == record.Nonce}
	switch outcome.Of(answer, last, seen) {
	case outcome.Won:
		return newest.seq, nil
	case outcome.Overtaken:
		return 0, &lostTo{newest}
	case outcome.Refused:
		return 0, errImpossible
	}
	return 0, ErrUnknown
}

// errImpossible is the error of a write that no try stores. The broker here refuses none that way.
var errImpossible = errors.New("the write can never be stored")

// answerTo is the answer to a write that ended with err.
func answerTo(err error) outcome.Answer {
	switch {
	case err == nil:
		return outcome.Stored
	case errors.Is(err, ErrConflict):
		return outcome.Conflict
	}
	return outcome.Unknown
}

// first decides a write as the first of its subject, by what a read found there afterwards.
func first(err error, found bool, readErr error) error {
	newest := outcome.Newest{Read: readErr == nil}
	if found {
		newest.Seq = 1
	}
	switch outcome.Of(answerTo(err), 0, newest) {
	case outcome.Won, outcome.Overtaken:
		return nil
	case outcome.Refused:
		return errImpossible
	}
	return ErrUnknown
}

func (j journal) newest(key wire.CallKey) (entry, error) { return j.newestBy(never, key) }

func (j journal) newestBy(deadline time.Time, key wire.CallKey) (e entry, err error) {
	subject := names.OfCall(wire.VerbCall, key)
	err = j.readUntil(deadline, "newest", subject, func() error {
		if m := j.Stream(callsStream).Last(subject); m != nil {
			e = entry{m.Seq, m.Body.(wire.CallRecord)}
		}
		return nil
	})
	return e, err
}

func (j journal) writeResult(key wire.CallKey, result messages.Result) (messages.Result, error) {
	subject := names.OfCall(wire.VerbResult, key)
	err := j.ask("result", subject, func() error {
		_, err := j.CompareAndSet(subject, result, 0)
		return err
	})
	if err == nil {
		return result, nil
	}
	stored, found, readErr := j.result(key)
	return stored, first(err, found, readErr)
}

func (j journal) result(key wire.CallKey) (r messages.Result, found bool, err error) {
	subject := names.OfCall(wire.VerbResult, key)
	err = j.read("result?", subject, func() error {
		if m := j.Stream(resultsStream).Last(subject); m != nil {
			r, found = m.Body.(messages.Result), true
		}
		return nil
	})
	return r, found, err
}

func (j journal) handBack(key wire.CallKey) error {
	subject := names.OfCall(wire.VerbHand, key)
	err := j.ask("hand back", subject, func() error {
		_, err := j.CompareAndSet(subject, wire.HandBack{}, 0)
		return err
	})
	if errors.Is(err, ErrConflict) {
		return nil
	}
	return err
}

// writePlan gives every record that the batch then has after last.
func (j journal) writePlan(key wire.BatchKey, record wire.PlanRecord, last uint64) ([]*Message, error) {
	subject := names.Of(wire.VerbPlan, key)
	var stored []*Message
	err := j.ask("plan", subject, func() error {
		seq, err := j.CompareAndSet(subject, record, last)
		stored = []*Message{{Subject: subject, Seq: seq, Body: record}}
		return err
	})
	if err == nil {
		return stored, nil
	}
	all, readErr := j.plans(key)
	newer := slices.IndexFunc(all, func(m *Message) bool { return m.Seq > last })
	newest := outcome.Newest{Read: readErr == nil}
	if newer >= 0 {
		newest.Seq = all[newer].Seq
	}
	switch outcome.Of(answerTo(err), last, newest) {
	case outcome.Overtaken:
		return all[newer:], nil
	case outcome.Refused:
		return nil, errImpossible
	}
	return nil, ErrUnknown
}

func (j journal) plans(key wire.BatchKey) (all []*Message, err error) {
	subject := names.Of(wire.VerbPlan, key)
	err = j.read("plans?", subject, func() error {
		all = j.Stream(callsStream).All(subject)
		return nil
	})
	return all, err
}

// known is what the journal holds about the calls of a batch.
type known struct{ hands, records, results []*Message }

func (j journal) calls(key wire.BatchKey) (k known, err error) {
	all := func(v wire.Verb) string { return names.Of(v, key) + ".*" }
	for _, read := range []struct {
		stream string
		verb   wire.Verb
		into   *[]*Message
	}{
		{callsStream, wire.VerbHand, &k.hands},
		{callsStream, wire.VerbCall, &k.records},
		{resultsStream, wire.VerbResult, &k.results},
	} {
		if err := j.read("look", all(read.verb), func() error {
			*read.into = j.Stream(read.stream).LastOfEach(all(read.verb))
			return nil
		}); err != nil {
			return known{}, err
		}
	}
	return k, nil
}

func (j journal) writeReply(key wire.BatchKey, r reply) error {
	subject := names.Of(wire.VerbFinal, key)
	err := j.ask("reply", subject, func() error {
		_, err := j.CompareAndSet(subject, r, 0)
		return err
	})
	if err == nil {
		return nil
	}
	replied, readErr := j.replied(key)
	return first(err, replied, readErr)
}

func (j journal) replied(key wire.BatchKey) (found bool, err error) {
	subject := names.Of(wire.VerbFinal, key)
	err = j.read("reply?", subject, func() error {
		found = j.Stream(repliesStream).Last(subject) != nil
		return nil
	})
	return found, err
}

// control stores what somebody has to say to a session, for the batches that it has now.
func (j journal) control(key wire.BatchKey, control messages.Control) error {
	return j.ask("control", names.OfSession(wire.VerbCtl, key.Tenant, key.Session), func() error {
		record := wire.ControlRecord{Control: control}
		for _, m := range j.Stream(logStream).All(names.OfSession(wire.VerbBatch, key.Tenant, key.Session) + ".*") {
			record.UpTo = m.Seq
		}
		_, err := j.Append(names.OfSession(wire.VerbCtl, key.Tenant, key.Session), record)
		return err
	})
}

func (j journal) controls(key wire.BatchKey) (all []*Message, err error) {
	subject := names.OfSession(wire.VerbCtl, key.Tenant, key.Session)
	err = j.read("controls?", subject, func() error {
		all = j.Stream(callsStream).All(subject)
		return nil
	})
	return all, err
}

// head is the oldest unfinished batch of a session.
func (j journal) head(key wire.BatchKey) (m *Message, err error) {
	filter := names.OfSession(wire.VerbBatch, key.Tenant, key.Session) + ".*"
	err = j.read("head?", filter, func() error {
		m = j.Stream(logStream).First(filter)
		return nil
	})
	return m, err
}

// remove looks at the place first: it may have been given to another batch.
func (j journal) remove(m *Message) error {
	var there *Message
	err := j.read("at", m.Subject, func() error {
		log := j.Stream(logStream)
		if at, found := log.find(m.Seq); found {
			there = log.msgs[at]
		}
		return nil
	})
	if err != nil || there == nil || there.Subject != m.Subject || !there.Time.Equal(m.Time) {
		return err
	}
	return j.ask("remove", m.Subject, func() error {
		j.Delete(logStream, m.Seq)
		return nil
	})
}

// open is the batches in the log that are at least so old, the oldest first.
func (j journal) open(age time.Duration) (all []*Message, err error) {
	err = j.read("sweep", logStream, func() error {
		for _, m := range j.Stream(logStream).All(names.EveryBatch(wire.VerbBatch)) {
			if j.Now.Sub(m.Time) >= age {
				all = append(all, m)
			}
		}
		return nil
	})
	return all, err
}

// insist repeats what must happen before anything else can, until it does or never can.
func (t *task) insist(try func() error) error {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		if err := try(); err == nil || errors.Is(err, errImpossible) {
			return err
		}
		t.sleep(wait)
	}
}
