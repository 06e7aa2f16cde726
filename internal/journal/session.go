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

// The replies of a session are stored in the order of the log, since its batches run one at a time. So a place among the
// replies says what has ended since, whatever the clocks say.

// Replied is a batch that has ended, as far as its stored reply tells without its results.
type Replied struct {
	Key    messages.BatchKey
	Place  uint64 // among all replies
	Stored time.Time
	Size   int              // of what was read
	Batch  messages.BatchID // "": the reply cannot be read
	Status messages.ReplyStatus
}

// LastReplied is the batch of a session that has ended last, as far as its reply is kept.
func (j *Journal) LastReplied(ctx context.Context, tenant, session string) (Replied, bool, error) {
	msg, err := j.conn.Last(ctx, j.names.Stream(bus.Replies), j.names.OfSession(messages.VerbFinal, tenant, session)+".*")
	if errors.Is(err, bus.ErrNotFound) {
		return Replied{}, false, nil
	}
	if err != nil {
		return Replied{}, false, fmt.Errorf("read the replies of session %s: %w", session, err)
	}
	return j.readReplied(msg), true, nil
}

// EachReplied calls each for every batch of a session that has ended since, the oldest first, until each says that it needs no
// more. It holds a page of replies at a time, and may be behind.
func (j *Journal) EachReplied(ctx context.Context, tenant, session string, from bus.From, each func(Replied) (more bool)) error {
	filter := j.names.OfSession(messages.VerbFinal, tenant, session) + ".*"
	return j.conn.Scan(ctx, j.names.Stream(bus.Replies), filter, from, func(msg bus.Msg) bool { return each(j.readReplied(msg)) })
}

func (j *Journal) readReplied(msg bus.Msg) Replied {
	r := Replied{Place: msg.Seq, Stored: msg.Time, Size: len(msg.Data)}
	_, r.Key, _ = j.names.Batch(msg.Subject)
	var reply struct {
		Batch  messages.BatchID
		Status messages.ReplyStatus
	}
	if json.Unmarshal(msg.Data, &reply) == nil {
		r.Batch, r.Status = reply.Batch, reply.Status
	}
	return r
}
