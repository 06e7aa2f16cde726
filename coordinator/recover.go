package coordinator

import (
	"context"
	"log/slog"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// recall tells the machine what the journal holds of a batch that may have had a driver before.
// found: it held something. late: this is not known to be the first driver. There is no other
// recovery code: the machine gets old records as it gets new ones.
func (d *batchRun) recall(ctx context.Context) (found, late bool, err error) {
	// After a restart, the server may not know how many times it has delivered the batch.
	delivery := d.lease.current()
	if delivery != nil && delivery.Delivered == 1 && !d.conn.Before(ctx, d.accepted.Stored) {
		return false, false, nil
	}
	// A batch that nobody can have driven before is read too: it may have waited here for so long
	// that a peer took the session over.
	late = !d.first
	d.again = true
	plans, err := d.journal.Plans(ctx, d.accepted.Key)
	if err != nil {
		return false, late, err
	}
	known, err := d.journal.Calls(ctx, d.accepted.Key)
	if err != nil {
		return false, late, err
	}
	for _, entry := range plans {
		if err := samePlan(entry.Record, d.digest); err != nil {
			return false, late, err
		}
		d.machine.Step(time.Now(), batch.Planned{Record: entry.Record, Seq: entry.Seq})
	}
	for _, event := range d.known(ctx, known) {
		d.machine.Step(time.Now(), event)
	}
	found = len(plans)+len(known.Records)+len(known.Results)+len(known.Hands) > 0
	late = late || found
	if found {
		d.spans.Link(known.Records)
		d.cfg.Metrics.Resumed.Inc()
		level, what := describeResume(known.Records)
		d.log.Log(ctx, level, what, "calls", len(d.in.Calls), "ended", d.machine.Ended())
	}
	return found, late, nil
}

// describeResume returns the log line for a batch that had a driver before. A warning means that
// the driver was lost. A suspended batch lost none: it continues because a person has answered or a
// question has expired.
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
	case states[wire.Claimed]: // a worker has the call, so there was a driver after the answer
	case states[wire.Granted], denied && !states[wire.Parked]:
		return slog.LevelInfo, "batch goes on after an answer"
	case states[wire.Parked]:
		return slog.LevelDebug, "batch that waits for people is looked at"
	}
	return slog.LevelInfo, "batch taken over"
}
