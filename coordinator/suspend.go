package coordinator

import (
	"context"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/session"
)

// suspend suspends the session if this batch and all others of the session only wait. It
// returns true if this batch is suspended.
func (d *batchRun) suspend(ctx context.Context) bool {
	for d.fatal == nil {
		until, waits := d.machine.Rest()
		switch session.DecideSuspend(session.Quiet{Waits: waits, Until: until, Now: time.Now(), Sure: d.sure}) {
		case session.Ask:
			d.askLeader(ctx)
		case session.Suspend:
			if !d.session.rest(d, until) {
				return false
			}
			d.suspended = d.session.suspendedUntil()
			d.log.Debug("the batch is suspended: it waits for people", "until", until)
			return true
		case session.Continue:
			return false
		}
	}
	return false
}

// askLeader reads everything about the batch from the stream's leader and gives it to the
// machine. It tries until it succeeds, because nobody looks at a suspended batch for minutes.
// It reads the controls (aborts and steering messages) last. So it sees every control that was
// stored before a call began to wait for a person.
func (d *batchRun) askLeader(ctx context.Context) {
	var events []batch.Event
	d.insist(ctx, "read the journal before the batch is suspended", func() error {
		known, err := d.journal.Calls(ctx, d.accepted.Key)
		if err != nil {
			return err
		}
		controls, err := d.controls(ctx)
		events = append(controls, d.known(ctx, known)...)
		return err
	})
	for _, event := range events {
		d.step(ctx, event)
	}
	d.sure = d.fatal == nil
}

// pause waits for the given time, or until ctx ends.
func pause(ctx context.Context, wait time.Duration) {
	select {
	case <-time.After(wait):
	case <-ctx.Done():
	}
}
