// Package recall turns what the journal has about a batch into events for the batch's machine.
// A new driver gives these events to its machine first. Each poll makes them again, to find
// what the machine has missed.
//
// The package is pure. The driver and the simulation both call it.
package recall

import (
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Controls returns the controls of a session (aborts and steering messages) that concern one
// of its batches, as events. An abort by id concerns a batch that was stored before the abort,
// or at most ttl after it. A steering message skips calls of every batch that was in the log
// when the message came, no matter which reply has the message.
func Controls(entries []journal.ControlEntry, a journal.Accepted, ttl time.Duration) []batch.Event {
	var events []batch.Event
	for _, e := range entries {
		stop := wire.Stop{V: messages.Version, Reason: e.Record.Reason, By: e.Record.By}
		if e.Record.Aborts(e.Stored, a.Key.Batch, a.Seq, a.Stored, ttl) {
			events = append(events, batch.Aborted{Stop: stop})
		}
		w := e.Record.When
		if (w == messages.SteerBetweenGroups || w == messages.SteerImmediate) && e.Record.Covers(e.Stored, a.Seq, a.Stored) {
			events = append(events, batch.Steered{Stop: stop, Now: w == messages.SteerImmediate})
		}
	}
	return events
}

// Batch holds what the functions of this package need to know about a batch.
type Batch struct {
	Calls  int
	Claims func(index int) bool // whether the call must be claimed before it runs, as far as the batch's machine knows
	// IsOf reports whether a stored result belongs to the call at an index.
	IsOf func(index int, r messages.Result) bool
	// Local converts a time of the server's clock to the clock of the machine's steps.
	Local func(time.Time) time.Time
}

// Calls returns the records and results of the calls as events. If a call has a record, only
// its record counts. If a result does not fit the call, it belongs to another batch and is
// left out.
func Calls(known journal.Known, b Batch) []batch.Event {
	var events []batch.Event
	for _, key := range known.Hands { // first, because a record of the same call is newer
		if key.Index < b.Calls {
			events = append(events, batch.HandedBack{Index: key.Index})
		}
	}
	recorded := map[int]bool{}
	for _, e := range known.Records {
		i := e.Key.Index
		if i < b.Calls && (e.Record.Result == nil || b.IsOf(i, *e.Record.Result)) {
			recorded[i] = true
			events = append(events, Recorded(i, e.Record, e.Seq, b.Local))
		}
	}
	for _, e := range known.Results {
		if i := e.Key.Index; i < b.Calls && !recorded[i] && !b.Claims(i) && b.IsOf(i, e.Result) {
			events = append(events, batch.Ended{Index: i, Result: e.Result})
		}
	}
	return events
}

// Notice returns a worker's notice about a call as an event, or nil if the notice has no news.
// A result in the notice is already stored, so no read of the journal is needed.
func Notice(n wire.Notice, b Batch) batch.Event {
	switch {
	case n.Index < 0 || n.Index >= b.Calls:
	case n.Result != nil && b.IsOf(n.Index, *n.Result):
		return batch.Ended{Index: n.Index, Result: *n.Result}
	case n.Record != nil && n.Record.Result == nil:
		return Recorded(n.Index, *n.Record, n.Seq, b.Local)
	case n.Hand != nil:
		return batch.HandedBack{Index: n.Index}
	case n.LetGo != nil:
		return batch.LetGo{Index: n.Index, After: time.Duration(n.LetGo.AfterMS) * time.Millisecond, Attempt: n.LetGo.Attempt}
	case n.Running:
		return batch.Running{Index: n.Index}
	}
	return nil
}

// Recorded returns the record of a call as an event.
func Recorded(index int, record wire.CallRecord, seq uint64, local func(time.Time) time.Time) batch.Recorded {
	event := batch.Recorded{Index: index, Record: record, Seq: seq}
	if record.State == wire.Parked && record.Approval != nil {
		event.Expires = local(record.Approval.Expires)
	}
	return event
}

// Ends returns two maps by call index: the result of each call that has certainly ended, and
// the newest record of each call that has one. If both the call's own record and a plan record
// have a result, the call's own counts. A stored result alone does not count, because while
// there is no record a worker can still claim the call.
func Ends(known journal.Known, plans []journal.PlanEntry) (ends map[int]messages.Result, newest map[int]journal.CallEntry) {
	ends, newest = map[int]messages.Result{}, map[int]journal.CallEntry{}
	ended := func(i int, r messages.Result) {
		if _, has := ends[i]; !has {
			ends[i] = r
		}
	}
	for _, e := range known.Records {
		newest[e.Key.Index] = e
		if e.Record.State == wire.Ended && e.Record.Result != nil {
			ended(e.Key.Index, *e.Record.Result)
		}
	}
	for _, plan := range plans {
		for _, r := range plan.Record.Results {
			ended(r.Index, r)
		}
	}
	return ends, newest
}

// WaitsForPeople reports whether the batch may be suspended: one of its calls waits for a
// decision, or is granted and not yet claimed.
func WaitsForPeople(known journal.Known) bool {
	return slices.ContainsFunc(known.Records, func(e journal.CallEntry) bool {
		return e.Record.State == wire.Parked || e.Record.State == wire.Granted
	})
}
