package coordinator

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/recall"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// controls reads the session's controls: its aborts and steering messages. It returns those
// that concern this batch, as events.
func (d *batchRun) controls(ctx context.Context) ([]batch.Event, error) {
	entries, err := d.journal.Controls(ctx, d.accepted.Key.Tenant, d.accepted.Key.Session)
	if err != nil {
		return nil, err
	}
	d.controlsRead = entries
	return recall.Controls(entries, d.accepted, d.cfg.BatchTTL), nil
}

// steering returns the steering messages for this reply. It first stores a record that this
// reply takes them, so that no other reply repeats them. A message that comes after this
// record waits for the next reply. If the record cannot be stored, all messages wait for it.
func (d *batchRun) steering(ctx context.Context) json.RawMessage {
	var taken []json.RawMessage
	d.insist(ctx, "recording which steering the reply takes along", func() error {
		for {
			var untaken uint64
			if taken, untaken = journal.Steering(d.controlsRead, d.accepted.Key.Batch); untaken == 0 {
				return nil
			}
			// A peer that also drives the batch may have stored the reply already. Then the
			// messages belong to the next reply.
			if _, replied, err := d.journal.Reply(ctx, d.accepted.Key); err != nil || replied {
				taken = nil
				return err
			}
			err := d.journal.TakeSteering(ctx, d.accepted.Key, untaken)
			switch {
			case err == nil:
				return nil
			case errors.Is(err, bus.ErrFull):
				d.log.Warn("the steering waits for the next reply: the stream of calls is full", "err", err)
				taken = nil
				return nil
			}
			// Another abort or steering message was stored first, or the outcome of this write
			// is unknown. Read the controls again.
			entries, readErr := d.journal.Controls(ctx, d.accepted.Key.Tenant, d.accepted.Key.Session)
			if readErr != nil {
				return readErr
			}
			d.controlsRead = entries
			if !errors.Is(err, bus.ErrConflict) {
				return err
			}
		}
	})
	if len(taken) == 0 {
		return nil
	}
	return rawjson.MustMarshal(taken)
}

// steerAgain is called when another coordinator may have stored the reply of this batch first.
// If the stored reply has no steering messages, the messages that this reply took would be
// lost. steerAgain then stores the messages again, as new steering messages, and the next
// reply takes them.
func (d *batchRun) steerAgain(ctx context.Context, stored []byte) error {
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

// stop tells the worker that runs a call to stop it.
func (d *batchRun) stop(want batch.Stop) {
	subject := d.names.OfCall(wire.VerbStop, d.accepted.Key.Call(want.Index))
	if err := d.conn.Publish(subject, nil, rawjson.MustMarshal(want.Why)); err != nil {
		d.log.Debug("a stop was not sent to the worker; the next poll sends it again", d.callAttr(want.Index), "err", err)
	}
}
