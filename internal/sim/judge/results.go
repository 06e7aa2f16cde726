package judge

import (
	"bytes"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/sim/world"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// isWhole checks a reply against guarantees 1 and 3: it must have the true result of every
// call.
func (l *Ledger) isWhole(a *account) {
	if r := a.reply; (r.Status == messages.ReplyRefused) != a.sub.Refused || len(r.Results) != len(a.sub.Plan.Calls) {
		l.Fail("%s has %d calls and %d results (%s)", a.sub.Key, len(a.sub.Plan.Calls), len(r.Results), r.Status)
	}
	for i, result := range a.reply.Results {
		l.isTrue(a, i, result)
		l.isWanted(a, i, result)
	}
}

// isUnknown reports whether the stored outcome of a call is unknown.
func (a *account) isUnknown(i int) bool {
	return a.recorded[i] != nil && a.recorded[i].Status == messages.StatusOutcomeUnknown
}

// isStored checks the result of a call against its stored end: in the call's own journal, or
// else in a plan record, or else in the stream of results. A record that a power loss has
// deleted still counts as stored. If several coordinators drive a batch, one of them may know
// a result of a read that was deleted, while another has stored a later result. Then the reply
// may have one or the other.
func (l *Ledger) isStored(a *account, i int, r messages.Result) {
	call, alone := a.plannedCall(i), l.coordinators == 1
	stored := a.results[i]
	for _, s := range []struct {
		result *messages.Result
		counts bool
	}{{a.planned[i], alone}, {a.recorded[i], alone || call.Claims()}} {
		switch {
		case s.result == nil:
		case s.counts:
			stored = []messages.Result{*s.result}
		default:
			stored = append(slices.Clone(stored), *s.result)
		}
	}
	if call.Refused == nil && !slices.ContainsFunc(stored, func(s messages.Result) bool { return equal(s, r) }) {
		l.Fail("the result of call %d of %s (%s, attempt %d) is none that is stored: %+v", i, a.sub.Key, r.Status, r.Attempt, stored)
	}
}

func equal(a, b messages.Result) bool {
	a.WasConcurrent, b.WasConcurrent = false, false // the reply sets this field from all results
	return bytes.Equal(rawjson.MustMarshal(a), rawjson.MustMarshal(b))
}

// isWanted checks the reason why a call did not run. If the result says aborted or steered,
// the batch must have been aborted or steered. An unknown outcome before the call is a reason
// too.
func (l *Ledger) isWanted(a *account, i int, r messages.Result) {
	if r.Err == nil {
		return
	}
	unknown := slices.ContainsFunc(a.reply.Results[:i], func(r messages.Result) bool { return r.Status == messages.StatusOutcomeUnknown })
	switch {
	case r.Err.Code == messages.CodeAborted && !l.isSaid(a, world.Never, control.aborts):
		l.Fail("call %d of %s is aborted, and nobody has said so", i, a.sub.Key)
	case r.Err.Code == messages.CodeSkipped && !unknown && !l.isSaid(a, world.Never, control.steers):
		l.Fail("call %d of %s is skipped, and nobody has said so", i, a.sub.Key)
	}
}

// isSaid reports whether an abort or a steering message was stored for the batch's session
// before a time. It counts only those for which the function what returns true.
func (l *Ledger) isSaid(a *account, by time.Time, what func(control, *account) bool) bool {
	return slices.ContainsFunc(l.controls[a.sub.Key.Session], func(c control) bool { return c.at.Before(by) && what(c, a) })
}

func (c control) aborts(a *account) bool {
	return c.record.Aborts(c.at, a.sub.Key.Batch, a.seq, a.at, BatchTTL)
}

func (c control) steers(a *account) bool {
	return c.record.When != "" && c.record.Covers(c.at, a.seq, a.at)
}

func (c control) stops(a *account) bool {
	return c.steers(a) && c.record.When == messages.SteerImmediate
}

// meansTheLog checks the record of an abort or a steering message: it must cover every batch
// that was in the log well before the record was stored.
func (l *Ledger) meansTheLog(session string, record wire.ControlRecord, at time.Time) {
	for _, a := range l.order {
		if a.sub.Key.Session == session && a.reply == nil && at.Sub(a.at) > slack && record.UpTo < a.seq {
			l.Fail("%s was accepted %v ago, and what is said to its session means batches up to %d, not %d", a.sub.Key, at.Sub(a.at), record.UpTo, a.seq)
		}
	}
}

// Sends checks a job that a driver sends against what was stored when the driver began.
func (l *Ledger) Sends(d Drive, i int) {
	a := l.batches[d.Sub.Key]
	switch {
	case l.isSaid(a, d.Born, control.aborts):
		l.Fail("%s was aborted before %s began to drive it, and the job of call %d is sent", d.Sub.Key, d.Name, i)
	case a.plannedCall(i).Claims() && len(l.chain[d.Sub.Key.Call(i)]) == 0 && l.isSaid(a, d.Born, control.stops):
		l.Fail("%s was steered before %s began to drive it, and the job of call %d is sent", d.Sub.Key, d.Name, i)
	case a.reply != nil && a.replied.Before(d.Born) && a.durable[i] && !d.First:
		l.Fail("%s was answered before %s began to drive it, and the job of call %d is sent", d.Sub.Key, d.Name, i)
	}
}

// isTrue checks one result against what really happened.
func (l *Ledger) isTrue(a *account, i int, r messages.Result) {
	call, runs := a.plannedCall(i), a.runs[i]
	if r.Index != i || r.CallID != call.ID {
		l.Fail("result %d of %s is that of call %d (%s)", i, a.sub.Key, r.Index, r.CallID)
	}
	came := false    // a run that may have given this result ended well
	applied := false // a run may have changed the world
	for _, run := range runs {
		applied = applied || !run.again || !run.Done
		came = came || run.Done && !run.fails && (!call.Claims() || run.attempt == r.Attempt)
	}
	switch {
	case r.Err != nil && r.Err.Code == messages.CodeWorkerLost && !a.silent[i] && l.lost[a.sub.Key.Call(i)] < Poison:
		l.Fail("call %d of %s is given up after %d lost deliveries", i, a.sub.Key, l.lost[a.sub.Key.Call(i)])
	case r.Status == messages.StatusOK && !came:
		l.Fail("call %d of %s is reported as done by attempt %d; runs: %d", i, a.sub.Key, r.Attempt, len(runs))
	case r.Status == messages.StatusOutcomeUnknown && !a.claimed[i]:
		l.Fail("call %d of %s is reported as unknown, and was never claimed", i, a.sub.Key)
	case r.Err != nil && r.Err.Code == messages.CodeInternal && l.Tally()["broken drivers"] == 0:
		l.Fail("call %d of %s ended with an internal error, and no driver broke", i, a.sub.Key)
	case call.Claims() && applied && r.Err != nil && r.Err.Code == messages.CodeInternal:
		l.Fail("call %d of %s is reported as not known to have run, and has run", i, a.sub.Key)
	case call.Refused != nil && len(runs) > 0:
		l.Fail("call %d of %s is refused (%s), and has run", i, a.sub.Key, r.Status)
	case call.Claims() && applied && (r.Status == messages.StatusExpired || r.Status == messages.StatusSkipped || r.Status == messages.StatusAborted || r.Status == messages.StatusDenied):
		l.Fail("call %d of %s is reported as not run (%s), and has run", i, a.sub.Key, r.Status)
	}
}
