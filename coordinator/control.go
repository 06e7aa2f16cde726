package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

const notHeard = "what was said to the session cannot be read; it is tried again at the next poll"

// controls is what was said to the session, as far as it means this batch.
func (d *drive) controls(ctx context.Context) ([]batch.Event, error) {
	entries, err := d.journal.Controls(ctx, d.accepted.Key.Tenant, d.accepted.Key.Session)
	if err != nil {
		return nil, err
	}
	d.said = entries
	var events []batch.Event
	for _, e := range entries {
		if by := e.Record.Taken; by != "" && by != d.accepted.Key.Batch { // what was said before was heard with that reply
			events = slices.DeleteFunc(events, func(ev batch.Event) bool { _, steered := ev.(batch.Steered); return steered })
		}
		stop := wire.Stop{V: messages.Version, Reason: e.Record.Reason, By: e.Record.By}
		if e.Record.Aborts(e.Stored, d.accepted.Key.Batch, d.accepted.Seq, d.accepted.Stored, d.cfg.BatchTTL) {
			events = append(events, batch.Aborted{Stop: stop})
		}
		if e.Record.UpTo < d.accepted.Seq {
			continue
		}
		if w := e.Record.When; w == messages.SteerBetweenGroups || w == messages.SteerImmediate {
			events = append(events, batch.Steered{Stop: stop, Now: w == messages.SteerImmediate})
		}
	}
	return events, nil
}

// steering is the messages that this batch's reply takes along, which no other reply does: it is noted down before
// the reply is stored. What is said later, or cannot be noted down, waits for the next reply.
func (d *drive) steering(ctx context.Context) json.RawMessage {
	var taken []json.RawMessage
	d.insist(ctx, "take the steering along", func() error {
		for {
			var untaken uint64
			if taken, untaken = journal.Steering(d.said, d.accepted.Key.Batch); untaken == 0 {
				return nil
			}
			// Another coordinator may have replied while we drove it too: what was said since is for the next reply.
			if _, replied, err := d.journal.Reply(ctx, d.accepted.Key); err != nil || replied {
				taken = nil
				return err
			}
			err := d.journal.TakeSteering(ctx, d.accepted.Key, untaken)
			switch {
			case err == nil:
				return nil
			case errors.Is(err, bus.ErrFull):
				d.log.Warn("the steering stays for the next reply", "err", err)
				taken = nil
				return nil
			}
			// More was said meanwhile, or it is not known whether this was stored: what now stands there tells.
			entries, readErr := d.journal.Controls(ctx, d.accepted.Key.Tenant, d.accepted.Key.Session)
			if readErr != nil {
				return readErr
			}
			d.said = entries
			if !errors.Is(err, bus.ErrConflict) {
				return err
			}
		}
	})
	return list(taken)
}

// steerAgain puts the steering back that our reply took along, when another coordinator's reply was stored first and
// does not have it.
func (d *drive) steerAgain(ctx context.Context, stored []byte) error {
	var reply messages.Reply
	if len(d.reply.Steering) == 0 || json.Unmarshal(stored, &reply) != nil || reply.Ref != nil || len(reply.Steering) > 0 {
		return nil
	}
	var lost []json.RawMessage
	if err := json.Unmarshal(d.reply.Steering, &lost); err != nil {
		return nil
	}
	for _, message := range lost {
		control := messages.Control{Steer: message}
		if _, err := d.journal.WriteControl(ctx, d.accepted.Key.Tenant, d.accepted.Key.Session, control); err != nil {
			return err
		}
	}
	d.reply.Steering = nil
	return nil
}

func list(steering []json.RawMessage) json.RawMessage {
	if len(steering) == 0 {
		return nil
	}
	return rawjson.MustMarshal(steering)
}

// stop tells whoever runs a call that it is not wanted any more.
func (d *drive) stop(want batch.Stop) {
	subject := d.names.OfCall(wire.VerbStop, d.accepted.Key.Call(want.Index))
	if err := d.conn.Publish(subject, nil, rawjson.MustMarshal(want.Why)); err != nil {
		d.log.Debug("a stop was not sent; it is repeated", d.call(want.Index), "err", err)
	}
}
