package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// ControlEntry is a stored control record.
type ControlEntry struct {
	Seq    uint64
	Stored time.Time
	Record wire.ControlRecord
}

// Controls returns the records of a session's controls (aborts and steering messages), in the
// order in which they were stored. It leaves out records that cannot be read.
func (j *Journal) Controls(ctx context.Context, tenant, session string) ([]ControlEntry, error) {
	stream, subject := j.names.Stream(bus.Calls), j.names.OfSession(wire.VerbCtl, tenant, session)
	// Most sessions have no control. Reading only the last message shows that, and is cheaper
	// than reading all.
	_, err := j.conn.Last(ctx, stream, subject)
	if errors.Is(err, bus.ErrNotFound) {
		return nil, nil
	}
	var msgs []bus.Msg
	if err == nil {
		msgs, err = j.conn.All(ctx, stream, subject)
	}
	if err != nil {
		return nil, fmt.Errorf("read the controls of session %s: %w", session, err)
	}
	var entries []ControlEntry
	for _, msg := range msgs {
		entry := ControlEntry{Seq: msg.Seq, Stored: msg.Time}
		if json.Unmarshal(msg.Data, &entry.Record) == nil {
			entries = append(entries, entry)
		}
	}
	return entries, nil
}

// WriteControl stores a control of a session: an abort or a steering message. The control
// applies to the batches that are in the log now. An abort of one batch by its id also applies
// if the batch comes later.
func (j *Journal) WriteControl(
	ctx context.Context, tenant, session string, control messages.Control,
) (seq uint64, err error) {
	record := wire.ControlRecord{Control: control}
	record.V = messages.Version
	newest, err := j.conn.Last(ctx, j.names.Stream(bus.Batches), j.names.OfSession(wire.VerbBatch, tenant, session)+".*")
	if err != nil && !errors.Is(err, bus.ErrNotFound) {
		return 0, fmt.Errorf("read the log of session %s: %w", session, err)
	}
	record.UpTo = newest.Seq
	seq, err = j.conn.Append(ctx, j.names.OfSession(wire.VerbCtl, tenant, session), nil, rawjson.MustMarshal(record))
	if err != nil {
		return 0, fmt.Errorf("store a control of session %s: %w", session, err)
	}
	return seq, nil
}

// TakeSteering records that the reply of a batch has the steering messages of the session, up
// to the record at sequence last. It returns bus.ErrConflict if a newer control was stored
// first.
func (j *Journal) TakeSteering(ctx context.Context, key wire.BatchKey, last uint64) error {
	record := wire.ControlRecord{Control: messages.Control{V: messages.Version}, Taken: key.Batch}
	_, err := j.conn.CompareAndSet(ctx, j.names.OfSession(wire.VerbCtl, key.Tenant, key.Session), nil,
		rawjson.MustMarshal(record), last)
	if err != nil {
		return fmt.Errorf("take the steering of session %s along: %w", key.Session, err)
	}
	return nil
}

// Steering returns the steering messages for the reply of a batch: those that no earlier reply
// has taken. If a record must still say that this reply takes them, untaken is the sequence of
// the newest control record. Otherwise untaken is 0.
func Steering(entries []ControlEntry, batch string) (messages []json.RawMessage, untaken uint64) {
	var waiting []json.RawMessage
	for _, e := range entries {
		switch {
		case len(e.Record.Steer) > 0:
			waiting = append(waiting, e.Record.Steer)
		case e.Record.Taken == batch:
			messages = append(messages, waiting...)
			waiting = nil
		case e.Record.Taken != "":
			waiting = nil
		}
	}
	if len(waiting) > 0 {
		untaken = entries[len(entries)-1].Seq
	}
	return append(messages, waiting...), untaken
}
