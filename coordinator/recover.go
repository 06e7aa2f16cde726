package coordinator

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// past holds what earlier drivers and workers of a batch have written to the journal.
type past struct {
	plans []journal.PlanEntry
	known journal.Known
}

// holds reports whether the journal has a record, a result or a hand-back of a call.
func (p past) holds(index int) bool {
	return slices.ContainsFunc(p.known.Records, func(e journal.CallEntry) bool { return e.Key.Index == index }) ||
		slices.ContainsFunc(p.known.Results, func(e journal.ResultEntry) bool { return e.Key.Index == index }) ||
		slices.ContainsFunc(p.known.Hands, func(k wire.CallKey) bool { return k.Index == index })
}

// fresh reports whether no coordinator can have driven the batch before.
func (d *batchRun) fresh(ctx context.Context) bool {
	delivery := d.lease.current()
	switch {
	case !d.first, delivery == nil, delivery.Delivered > 1:
		return false
	case d.conn.Before(ctx, d.accepted.Stored): // after a restart the server may have lost the delivery count
		return false
	}
	// If the batch has waited here for long, a peer may have taken over its session.
	return time.Since(d.came) <= d.cfg.AckWait/2
}

// readPast reads what earlier drivers and workers have left in the queues and in the journal.
// It reads the queues first. A worker stores the end of a call before it removes the job. So
// readPast finds the job, or the end, or both. A fresh batch has no past.
func (d *batchRun) readPast(ctx context.Context) (p past, err error) {
	if d.fresh(ctx) {
		return past{}, nil
	}
	d.again, d.late = true, !d.first
	if err := d.retry(ctx, "reading which jobs of the batch are queued", func() error { return d.jobs.Adopt(ctx, time.Now()) }); err != nil {
		return past{}, err
	}
	var other error // samePlan has found the plan of another body, so a new read does not help
	err = d.retry(ctx, "reading what the journal holds of the batch", func() (err error) {
		if p.plans, err = d.journal.Plans(ctx, d.accepted.Key); err != nil {
			return err
		}
		for _, entry := range p.plans {
			if other = samePlan(entry.Record, d.digest); other != nil {
				return nil
			}
		}
		p.known, err = d.journal.Calls(ctx, d.accepted.Key)
		return err
	})
	return p, cmp.Or(err, other)
}

// recall gives the past to the machine as events. They are the same events that new records
// cause, so the machine needs no other code for recovery.
func (d *batchRun) recall(ctx context.Context, p past) {
	for _, entry := range p.plans {
		d.machine.Step(time.Now(), batch.Planned{Record: entry.Record, Seq: entry.Seq})
	}
	for _, event := range d.known(ctx, p.known) {
		d.machine.Step(time.Now(), event)
	}
	if len(p.plans)+len(p.known.Records)+len(p.known.Results)+len(p.known.Hands) == 0 {
		return
	}
	d.resumed, d.late = true, true
	d.spans.Link(p.known.Records)
	d.cfg.Metrics.Resumed.Inc()
	level, what := describeResume(p.known.Records)
	d.log.Log(ctx, level, what, "calls", len(d.in.Calls), "ended", d.machine.Ended())
}

// describeResume returns the level and text of the log line about a batch that had a driver
// before. If the batch was suspended, a person has answered or a question has expired. If it
// was not, it is taken over from a driver that is gone.
func describeResume(records []journal.CallEntry) (slog.Level, string) {
	states := map[wire.CallState]bool{}
	denied := false
	for _, e := range records {
		states[e.Record.State] = true
		if r := e.Record.Result; r != nil && r.Err != nil && r.Err.Code == messages.CodeDeniedByUser {
			denied = true
		}
	}
	switch {
	case states[wire.Claimed]: // claimed since the answer: a driver was lost after it
	case states[wire.Granted], denied && !states[wire.Parked]:
		return slog.LevelInfo, "batch goes on after an answer"
	case states[wire.Parked]:
		return slog.LevelDebug, "batch that waits for people is looked at"
	}
	return slog.LevelInfo, "batch taken over"
}
