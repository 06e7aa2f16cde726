package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// DeadLetterEntry is a stored dead letter. If another program wrote it in another form, Letter
// has its subject and body, and Reason says why the form cannot be read.
type DeadLetterEntry struct {
	Seq    uint64
	Stored time.Time // when the message became a dead letter
	Letter wire.DeadLetter
}

// DeadLetters returns the newest dead letters without their bodies, the newest first. most
// limits their number. It reads them one by one from the end, so its cost does not depend on
// how many are stored.
func (j *Journal) DeadLetters(ctx context.Context, most int) ([]DeadLetterEntry, error) {
	stream := j.names.Stream(bus.Dead)
	first, err := j.conn.First(ctx, stream, ">")
	if errors.Is(err, bus.ErrNotFound) {
		return nil, nil
	}
	var last bus.Msg
	if err == nil {
		last, err = j.conn.Last(ctx, stream, ">")
	}
	var entries []DeadLetterEntry
	for seq := last.Seq; err == nil && seq >= first.Seq && len(entries) < most; seq-- {
		var e DeadLetterEntry
		if e, err = j.DeadLetterAt(ctx, seq); err == nil {
			e.Letter.Body = nil
			entries = append(entries, e)
		} else if errors.Is(err, bus.ErrNotFound) { // deleted since the last read
			err = nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read the dead letters: %w", err)
	}
	return entries, nil
}

// DeadLetterAt returns the dead letter at a sequence, or bus.ErrNotFound.
func (j *Journal) DeadLetterAt(ctx context.Context, seq uint64) (DeadLetterEntry, error) {
	msg, err := j.conn.At(ctx, j.names.Stream(bus.Dead), seq)
	if err != nil {
		return DeadLetterEntry{}, err
	}
	e := DeadLetterEntry{Seq: msg.Seq, Stored: msg.Time}
	if err := json.Unmarshal(msg.Data, &e.Letter); err != nil {
		e.Letter = wire.DeadLetter{
			Subject: msg.Subject, Reason: "not a dead letter of toolfleet: " + err.Error(), Body: msg.Data, Size: len(msg.Data), Stored: msg.Time,
		}
	}
	return e, nil
}

// DropDeadLetter deletes the dead letter at a sequence. It returns bus.ErrNotFound if there is
// none at that sequence.
func (j *Journal) DropDeadLetter(ctx context.Context, seq uint64) error {
	if _, err := j.conn.At(ctx, j.names.Stream(bus.Dead), seq); err != nil {
		return err
	}
	return j.conn.Delete(ctx, j.names.Stream(bus.Dead), seq)
}
