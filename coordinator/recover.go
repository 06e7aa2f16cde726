package coordinator

import (
	"context"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/messages"
)

// recall tells the machine what the journal holds of a batch that may have been driven before, and reports
// whether there was anything (found), and whether this is not certainly its first driver (late). There is no
// other recovery: the same records, through the same machine.
func (d *drive) recall(ctx context.Context) (found, late bool, err error) {
	d.mu.Lock()
	late = d.delivery == nil || d.delivery.Delivered > 1
	d.mu.Unlock()
	if !late {
		return false, false, nil
	}
	plans, err := d.journal.Plans(ctx, d.accepted.Key)
	if err != nil {
		return false, late, err
	}
	known, err := d.journal.Calls(ctx, d.accepted.Key)
	if err != nil {
		return false, late, err
	}
	for _, entry := range plans {
		if err := d.samePlan(entry.Record); err != nil {
			return false, late, err
		}
		d.machine.Step(d.began, batch.Planned{Record: entry.Record, Seq: entry.Seq})
	}
	for _, event := range d.known(ctx, known) {
		d.machine.Step(d.began, event)
	}
	found = len(plans)+len(known.Records)+len(known.Results)+len(known.Hands) > 0
	if found {
		d.log.Info("batch taken over", "calls", len(d.in.calls), "ended", d.machine.Ended())
	}
	return found, late, nil
}

// refusedReply answers a batch of which nothing was run.
func refusedReply(b messages.Batch, digest string, refusal *messages.Refusal) messages.Reply {
	return messages.Reply{
		V: messages.Version, Batch: b.ID, Session: b.Session, Provider: b.Provider, Status: messages.Refused,
		Digest: digest, Reinjection: []byte("null"), Results: []messages.Result{}, Error: refusal,
	}
}
