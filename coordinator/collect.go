package coordinator

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/messages"
)

// heard follows a worker's word. A result in it is what the worker stored, so it saves a read.
func (d *drive) heard(ctx context.Context, n messages.Notice) {
	if n.Index < 0 || n.Index >= len(d.in.calls) {
		return
	}
	switch {
	case n.Result != nil:
		d.step(ctx, batch.Ended{Index: n.Index, Result: *n.Result})
	case n.Running:
		d.step(ctx, batch.Running{Index: n.Index})
	}
}

// look reads the journal and tells the machine what it holds.
func (d *drive) look(ctx context.Context) {
	for _, told := range d.lookAll(ctx) {
		d.step(ctx, told)
	}
}

func (d *drive) lookAll(ctx context.Context) []batch.Event {
	records, results, err := d.journal.Calls(ctx, d.accepted.Key)
	if err != nil {
		d.log.Warn("the journal cannot be read; it is tried again at the next poll", "err", err)
		return nil
	}
	return append(d.known(records, results), batch.Looked{})
}

// known is records and results as events. What is not about a call of this batch is nobody's.
func (d *drive) known(records []journal.CallEntry, results []messages.Result) []batch.Event {
	var events []batch.Event
	for _, e := range records {
		if e.Key.Index < len(d.in.calls) {
			events = append(events, batch.Recorded{Index: e.Key.Index, Record: e.Record, Seq: e.Seq})
		}
	}
	for _, r := range results {
		if r.Index >= 0 && r.Index < len(d.in.calls) {
			events = append(events, batch.Ended{Index: r.Index, Result: r})
		}
	}
	return events
}

// storePlan stores the plan record and tells what is then stored: ours, or that of a coordinator that was faster.
// Nothing exclusive can start before, so there is nothing better to do than to go on trying.
func (d *drive) storePlan(ctx context.Context, want batch.StorePlan) []batch.Event {
	var events []batch.Event
	d.insist(ctx, "store plan", func() error {
		stored, err := d.journal.WritePlan(ctx, d.accepted.Key, want.Record, want.Expect)
		for _, entry := range stored {
			events = append(events, batch.Planned{Record: entry.Record, Seq: entry.Seq})
		}
		return err
	})
	return events
}

// end stores a result for a call that nobody runs, and tells what is then stored: it, or the record of a
// worker that was faster.
func (d *drive) end(ctx context.Context, want batch.End) []batch.Event {
	key := d.accepted.Key.Call(want.Index)
	d.log.Warn("call ended from outside", "call", want.Index, "tool", want.Result.Tool, "status", want.Result.Status, "code", want.Result.Err.Code)
	if !d.machine.Plan().Calls[want.Index].Claims() {
		stored, err := d.journal.WriteResult(ctx, key, want.Result)
		if err != nil {
			d.log.Warn("the end of a call is not stored; it is tried again", "call", want.Index, "err", err)
			return nil
		}
		return []batch.Event{batch.Ended{Index: want.Index, Result: stored}}
	}
	record := messages.CallRecord{
		V: messages.Version, State: messages.Ended, Nonce: rand.Text(), Attempt: want.Result.Attempt, Result: &want.Result,
	}
	seq, err := d.journal.Write(ctx, key, record, want.Expect)
	var lost *journal.Lost
	switch {
	case errors.As(err, &lost):
		return []batch.Event{batch.Recorded{Index: want.Index, Record: lost.Newest.Record, Seq: lost.Newest.Seq}}
	case err != nil:
		d.log.Warn("the end of a call is not stored; it is tried again", "call", want.Index, "err", err)
		return nil
	}
	return []batch.Event{batch.Recorded{Index: want.Index, Record: record, Seq: seq}}
}

// insist repeats what must happen before the batch can go on, until it does, ctx ends, or it never can.
func (d *drive) insist(ctx context.Context, what string, try func() error) {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		err := try()
		if err == nil {
			return
		}
		if bus.IsTerminal(err) || ctx.Err() != nil {
			d.fatal = err
			return
		}
		d.log.Warn(what+" failed; trying again", "err", err, "wait", wait)
		d.inProgress()
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}
