package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal/outcome"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// acceptedHeader is the header of a stored reply that has the sequence and the time of its
// batch in the log. A later batch with the same id has another sequence. If the log was made
// anew, it may have the same sequence, but it has another time.
const acceptedHeader = "Toolfleet-Accepted"

// mark is the value of acceptedHeader for a batch.
func (a Accepted) mark() string {
	return strconv.FormatUint(a.Seq, 10) + " " + a.Stored.UTC().Format(time.RFC3339Nano)
}

// answered returns the sequence and the time of the batch that a stored reply answers. It
// returns zeros if the reply does not have them.
func answered(reply bus.Msg) (seq uint64, stored time.Time) {
	place, at, _ := strings.Cut(reply.Header.Get(acceptedHeader), " ")
	seq, err := strconv.ParseUint(place, 10, 64)
	if err == nil {
		stored, err = time.Parse(time.RFC3339Nano, at)
	}
	if err != nil {
		return 0, time.Time{}
	}
	return seq, stored
}

// WriteReply stores the reply of a batch and returns the bytes that are then stored: these, or
// those of an earlier reply. The server publishes the stored bytes on the reply subject. If
// the reply is too large for a message, it goes to the object store, and the stored reply
// refers to it.
func (j *Journal) WriteReply(ctx context.Context, a Accepted, reply messages.Reply) ([]byte, error) {
	key, body := a.Key, wire.Encode(reply)
	if len(body) > j.inline() {
		ref, err := j.objects.Put(ctx, body)
		if err != nil {
			return nil, fmt.Errorf("store the large reply of batch %s: %w", key, err)
		}
		reply.Reinjection, reply.Results, reply.Steering, reply.Ref = json.RawMessage("null"), []messages.Result{}, nil, &ref
		reply = reply.WithAppend() // also leaves out the list to append
		body = wire.Encode(reply)
	}
	header := bus.Header{acceptedHeader: {a.mark()}}
	_, err := j.conn.CompareAndSet(ctx, j.names.Of(wire.VerbFinal, key), header, body, 0)
	answer := answerTo(err)
	if answer == outcome.Stored {
		return body, nil
	}
	stored, found, readErr := j.Reply(ctx, key)
	if firstWins(answer, found, readErr) {
		return stored, nil
	}
	return nil, fmt.Errorf("store the reply of batch %s: %w", key, undecided(err, readErr))
}

// Reply returns the stored reply of a batch as it was published. A large reply only refers to
// its body.
func (j *Journal) Reply(ctx context.Context, key wire.BatchKey) ([]byte, bool, error) {
	stored, found, err := j.replyTo(ctx, key)
	return stored.Data, found, err
}

// StoredReply is a stored reply under the id of a batch in the log.
type StoredReply struct {
	Body   []byte
	Stored time.Time
	Own    bool // the reply was made for this batch, not for an earlier one with the same id
}

// ReplyTo returns the stored reply under the id of a batch in the log.
func (j *Journal) ReplyTo(ctx context.Context, a Accepted) (reply StoredReply, found bool, err error) {
	msg, found, err := j.replyTo(ctx, a.Key)
	return StoredReply{msg.Data, msg.Time, found && msg.Header.Get(acceptedHeader) == a.mark()}, found, err
}

func (j *Journal) replyTo(ctx context.Context, key wire.BatchKey) (bus.Msg, bool, error) {
	msg, err := j.conn.Last(ctx, j.names.Stream(bus.Replies), j.names.Of(wire.VerbFinal, key))
	if errors.Is(err, bus.ErrNotFound) {
		return bus.Msg{}, false, nil
	}
	if err != nil {
		return bus.Msg{}, false, fmt.Errorf("read the reply of batch %s: %w", key, err)
	}
	return msg, true, nil
}

// FullReply returns the whole body of a stored reply. If the reply refers to an object, it
// reads that object.
func (j *Journal) FullReply(ctx context.Context, stored []byte) ([]byte, error) {
	var reply messages.Reply
	if err := rawjson.Unmarshal(stored, &reply); err != nil || reply.Ref == nil {
		return stored, err
	}
	return j.objects.Get(ctx, *reply.Ref)
}
