package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/messages"
)

// DeadEntry is a message that was set aside. One that is no [messages.Buried], because somebody else wrote it,
// is shown as it is: its own subject and body, and the reason that it cannot be read.
type DeadEntry struct {
	Seq    uint64
	Stored time.Time // when it was set aside
	Buried messages.Buried
}

// Dead is the newest messages that were set aside, newest first, at most as many. It goes backwards one by one, so
// that neither their number nor their sizes matter.
func (j *Journal) Dead(ctx context.Context, most int) ([]DeadEntry, error) {
	stream := j.names.Stream(bus.Dead)
	first, err := j.conn.First(ctx, stream, ">")
	if errors.Is(err, bus.ErrNotFound) {
		return nil, nil
	}
	var last bus.Msg
	if err == nil {
		last, err = j.conn.Last(ctx, stream, ">")
	}
	var entries []DeadEntry
	for seq := last.Seq; err == nil && seq >= first.Seq && len(entries) < most; seq-- {
		var e DeadEntry
		if e, err = j.DeadAt(ctx, seq); err == nil {
			e.Buried.Body = nil
			entries = append(entries, e)
		} else if errors.Is(err, bus.ErrNotFound) { // dropped
			err = nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read what was set aside: %w", err)
	}
	return entries, nil
}

// DeadAt is the message that was set aside at a place. bus.ErrNotFound when there is none.
func (j *Journal) DeadAt(ctx context.Context, seq uint64) (DeadEntry, error) {
	msg, err := j.conn.At(ctx, j.names.Stream(bus.Dead), seq)
	if err != nil {
		return DeadEntry{}, err
	}
	e := DeadEntry{Seq: msg.Seq, Stored: msg.Time}
	if err := json.Unmarshal(msg.Data, &e.Buried); err != nil {
		e.Buried = messages.Buried{
			Subject: msg.Subject, Reason: "not set aside by toolfleet: " + err.Error(), Body: msg.Data, Size: len(msg.Data), Stored: msg.Time,
		}
	}
	return e, nil
}

// DropDead forgets a message that was set aside. bus.ErrNotFound when there is none.
func (j *Journal) DropDead(ctx context.Context, seq uint64) error {
	if _, err := j.conn.At(ctx, j.names.Stream(bus.Dead), seq); err != nil {
		return err
	}
	return j.conn.Delete(ctx, j.names.Stream(bus.Dead), seq)
}
