package coordinator

import (
	"context"
	"fmt"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/messages"
)

// recall tells the machine what the journal holds of a batch that may have been driven before, and reports
// whether there was anything. There is no other recovery: the same records, through the same machine.
//
// A batch that was never delivered before is not looked for. Should it have been driven all the same, every
// record that is written meets the one that is there, by compare-and-set, and is told of it.
func (d *drive) recall(ctx context.Context) (found bool, err error) {
	d.mu.Lock()
	fresh := d.delivery == nil || d.delivery.Delivered <= 1
	d.mu.Unlock()
	if fresh {
		return false, nil
	}
	plans, err := d.journal.Plans(ctx, d.accepted.Key)
	if err != nil {
		return false, err
	}
	records, results, err := d.journal.Calls(ctx, d.accepted.Key)
	if err != nil {
		return false, err
	}
	for _, entry := range plans {
		if entry.Record.Digest != d.digest {
			return false, fmt.Errorf("the journal holds the plan of another body under this id (digest %s)", entry.Record.Digest)
		}
		d.machine.Step(d.began, batch.Planned{Record: entry.Record, Seq: entry.Seq})
	}
	for _, known := range d.known(records, results) {
		d.machine.Step(d.began, known)
	}
	found = len(plans)+len(records)+len(results) > 0
	if found {
		d.log.Info("batch taken over", "calls", len(d.in.calls), "ended", d.machine.Ended())
	}
	return found, nil
}

// refusedReply answers a batch of which nothing was run.
func refusedReply(b messages.Batch, digest string, refusal *messages.Refusal) messages.Reply {
	return messages.Reply{
		V: messages.Version, Batch: b.ID, Session: b.Session, Provider: b.Provider, Status: messages.Refused,
		Digest: digest, Reinjection: []byte("null"), Results: []messages.Result{}, Error: refusal,
	}
}
