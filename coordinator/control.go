package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// What is said to a session is bounded, because it stands in results and replies.
const (
	maxReason   = 1000      // bytes
	maxBy       = 200       // bytes
	maxSteering = 256 << 10 // bytes
)

// controlDoor stores what somebody says to a session: that a batch, or all of them, is not wanted any more, or a
// message that the next reply takes along. Once it is answered it holds, whoever drives the batches then.
func (c *Coordinator) controlDoor(ctx context.Context, m bus.Msg) {
	tenant, session, err := c.names.Session(m.Subject)
	if err != nil {
		c.refuseControl(m, "400", &messages.Refusal{Class: messages.ClassSubjectMismatch, Message: err.Error()})
		return
	}
	control, err := readControl(m.Data)
	if err != nil {
		c.refuseControl(m, "400", &messages.Refusal{Class: messages.ClassMalformedMessage, Message: "control: " + err.Error()})
		return
	}
	seq, err := c.journal.WriteControl(ctx, tenant, session, control)
	if err != nil {
		c.log.Warn("a control could not be stored", "session", session, "tenant", tenant, "err", err)
		c.refuseControl(m, "503", &messages.Refusal{Class: messages.ClassBusy, Message: "It could not be stored. Try again.", RetryAfterMS: 500})
		return
	}
	c.log.Info("control stored", "session", session, "tenant", tenant, "abort", len(control.Abort) > 0, "by", control.By)
	c.respond(m, nil, rawjson.MustMarshal(messages.ControlAnswer{OK: true, Seq: seq}))
	c.wake(ctx, tenant, session, c.waitsForPeople)
}

func (c *Coordinator) refuseControl(m bus.Msg, code string, refusal *messages.Refusal) {
	c.respond(m, serviceError(string(refusal.Class), code), rawjson.MustMarshal(messages.ControlAnswer{Error: refusal}))
}

// readControl reads what somebody says and refuses what nobody could act on.
func readControl(body []byte) (messages.Control, error) {
	var control messages.Control
	if err := rawjson.Check(body); err != nil {
		return control, err
	}
	if err := json.Unmarshal(body, &control); err != nil {
		return control, errors.New("not an object of the form {\"abort\": ...} or {\"steer\": ...}")
	}
	_, all := control.Batch()
	batch, _ := control.Batch()
	switch {
	case control.V != messages.Version && control.V != 0:
		return control, fmt.Errorf("v is %d; this coordinator speaks %d", control.V, messages.Version)
	case len(control.Abort) == 0 && len(control.Steer) == 0:
		return control, errors.New("neither abort nor steer")
	case string(control.Steer) == "null":
		return control, errors.New("steer is null; want a message")
	case len(control.Abort) > 0 && !all && batch == "":
		return control, errors.New("abort is neither a batch id nor true")
	case len(batch) > messages.MaxID:
		return control, fmt.Errorf("abort has %d bytes; the limit is %d", len(batch), messages.MaxID)
	case len(control.Reason) > maxReason || len(control.By) > maxBy:
		return control, fmt.Errorf("reason has %d bytes and by %d; the limits are %d and %d", len(control.Reason), len(control.By), maxReason, maxBy)
	case len(control.Steer) > maxSteering:
		return control, fmt.Errorf("steer has %d bytes; the limit is %d", len(control.Steer), maxSteering)
	}
	switch control.When {
	case "", messages.SteerAfterBatch, messages.SteerBetweenGroups, messages.SteerImmediate:
		return control, nil
	}
	return control, fmt.Errorf("when is %.40q; want after_batch, between_groups or immediate", control.When)
}

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
