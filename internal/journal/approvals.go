package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// The index is a bucket of open questions, which makes it cheap to list the calls that wait
// for people. It may be out of date, and can be made again from the journal: the newest record
// of a call decides whether its question is open.

// NoQuestion is the error for a call that does not wait for a person: it has no question, or
// its question is answered.
type NoQuestion struct {
	Key    wire.CallKey
	Newest CallEntry // newest record of the call; Seq is 0 if it has none
}

func (n *NoQuestion) Error() string {
	return fmt.Sprintf("call %s does not wait for a decision", n.Key)
}

// Question returns the newest record of a call that waits for a person. It reads from the
// leader of the stream, so a decision can be written to follow that record. If the call does
// not wait, the error is a *NoQuestion.
func (j *Journal) Question(ctx context.Context, key wire.CallKey) (CallEntry, error) {
	entry, found, err := j.Newest(ctx, key)
	if err != nil {
		return CallEntry{}, err
	}
	if !found || entry.Record.State != wire.Parked || entry.Record.Approval == nil {
		return CallEntry{}, &NoQuestion{Key: key, Newest: entry}
	}
	return entry, nil
}

// Ask puts a question into the index, or updates its entry. fresh means that the index did not
// have the question. If several coordinators ask at once, only one of them gets fresh.
func (j *Journal) Ask(ctx context.Context, key wire.CallKey, question messages.Approval) (fresh bool, err error) {
	entry := rawjson.MustMarshal(question.Pending())
	listed, found, last, err := j.listed(ctx, key)
	if err != nil {
		return false, fmt.Errorf("index the question of call %s: %w", key, err)
	}
	if found && slices.Equal(rawjson.MustMarshal(listed), entry) {
		return false, nil
	}
	_, err = j.conn.CompareAndSet(ctx, j.listing(key.String()), nil, entry, last)
	switch {
	// Another coordinator has put the same question there, or has removed it.
	case errors.Is(err, bus.ErrConflict):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("index the question of call %s: %w", key, err)
	}
	return !found || !listed.Asked.Equal(question.Asked), nil
}

// Forget removes the question of a call from the index. found is true only for the call of
// Forget that removed the question.
func (j *Journal) Forget(ctx context.Context, key wire.CallKey) (was messages.Pending, found bool, err error) {
	was, found, last, err := j.listed(ctx, key)
	if err != nil {
		return was, false, fmt.Errorf("remove the question of call %s from the index: %w", key, err)
	}
	if !found {
		return was, false, nil
	}
	gone := bus.Header{operation: {"DEL"}}
	if _, err := j.conn.CompareAndSet(ctx, j.listing(key.String()), gone, nil, last); err != nil && !errors.Is(err, bus.ErrConflict) {
		return was, false, fmt.Errorf("remove the question of call %s from the index: %w", key, err)
	} else if err != nil {
		return was, false, nil
	}
	return was, true, nil
}

// Pending returns the open questions of a tenant, the oldest first. It leaves out questions
// that have expired by the server's clock. The list may be out of date.
func (j *Journal) Pending(ctx context.Context, tenant string) ([]messages.Pending, error) {
	msgs, err := j.conn.Glance(ctx, j.index(), j.listing(tenant+".>"))
	if err != nil {
		return nil, fmt.Errorf("list the open questions of tenant %s: %w", tenant, err)
	}
	now := j.conn.Now(ctx)
	open := []messages.Pending{}
	for _, msg := range msgs {
		if entry, ok := pending(msg); ok && now.Before(entry.Expires) {
			open = append(open, entry)
		}
	}
	slices.SortStableFunc(open, func(a, b messages.Pending) int { return a.Asked.Compare(b.Asked) })
	return open, nil
}

// listed returns the index entry of a call. last is the sequence that the next write of the
// entry must follow.
func (j *Journal) listed(
	ctx context.Context, key wire.CallKey,
) (entry messages.Pending, found bool, last uint64, err error) {
	msg, err := j.conn.Last(ctx, j.index(), j.listing(key.String()))
	if errors.Is(err, bus.ErrNotFound) {
		return entry, false, 0, nil
	}
	entry, found = pending(msg)
	return entry, found, msg.Seq, err
}

// operation is the header of an entry that deletes a key. Every client of a bucket sets it for
// a deletion.
const operation = "KV-Operation"

// pending decodes an index entry. ok is false if the entry is a deletion or cannot be read.
func pending(msg bus.Msg) (entry messages.Pending, ok bool) {
	if msg.Header.Get(operation) != "" || len(msg.Data) == 0 {
		return entry, false
	}
	return entry, json.Unmarshal(msg.Data, &entry) == nil
}

// index returns the stream of the bucket.
func (j *Journal) index() string { return "KV_" + j.names.Stream(bus.BucketApprovals) }

// listing returns the subject of a key in the bucket.
func (j *Journal) listing(key string) string {
	return "$KV." + j.names.Stream(bus.BucketApprovals) + "." + key
}
