package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/messages"
)

// What people are shown of the calls that wait for them. The truth about a question is the newest record of its call;
// the bucket of open questions is an index that makes a list of them cheap. It may be behind, and is made again from
// the journal.

// NoQuestion says that a call does not wait for a person: it has no question, or that one has its answer.
type NoQuestion struct {
	Key    messages.CallKey
	Newest CallEntry // of the call; Seq is 0 when it has no record
}

func (n *NoQuestion) Error() string {
	return fmt.Sprintf("call %s waits for nobody's decision", n.Key)
}

// Question is the record of a call that waits for a person, as the leader has it: whatever follows is written behind it.
// The error is a *NoQuestion when the call does not wait.
func (j *Journal) Question(ctx context.Context, key messages.CallKey) (CallEntry, error) {
	entry, found, err := j.Newest(ctx, key)
	if err != nil {
		return CallEntry{}, err
	}
	if !found || entry.Record.State != messages.Parked || entry.Record.Approval == nil {
		return CallEntry{}, &NoQuestion{Key: key, Newest: entry}
	}
	return entry, nil
}

// Ask puts a question into the index, or brings its entry up to date. It reports whether the question is new there; of
// those who ask at the same time one hears so.
func (j *Journal) Ask(ctx context.Context, key messages.CallKey, question messages.Approval) (fresh bool, err error) {
	entry := messages.MustMarshal(question.Pending())
	listed, found, last, err := j.listed(ctx, key)
	if err != nil {
		return false, fmt.Errorf("list the question of call %s: %w", key, err)
	}
	if found && slices.Equal(messages.MustMarshal(listed), entry) {
		return false, nil
	}
	_, err = j.conn.CompareAndSet(ctx, j.listing(key.String()), nil, entry, last)
	switch {
	case errors.Is(err, bus.ErrConflict): // by another who asks the same, or takes it off the list
		return false, nil
	case err != nil:
		return false, fmt.Errorf("list the question of call %s: %w", key, err)
	}
	return !found || !listed.Asked.Equal(question.Asked), nil
}

// Forget takes the question of a call off the index, and reports whether it was there.
func (j *Journal) Forget(ctx context.Context, key messages.CallKey) (was messages.Pending, found bool, err error) {
	was, found, last, err := j.listed(ctx, key)
	if err != nil {
		return was, false, fmt.Errorf("take the question of call %s off the list: %w", key, err)
	}
	if !found {
		return was, false, nil
	}
	gone := bus.Header{operation: {"DEL"}}
	if _, err := j.conn.CompareAndSet(ctx, j.listing(key.String()), gone, nil, last); err != nil && !errors.Is(err, bus.ErrConflict) {
		return was, false, fmt.Errorf("take the question of call %s off the list: %w", key, err)
	} else if err != nil {
		return was, false, nil
	}
	return was, true, nil
}

// Pending is the open questions of a tenant, the oldest first: those that have not expired by the server's clock.
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

// listed is the entry of a call, and the sequence behind which the next is written.
func (j *Journal) listed(ctx context.Context, key messages.CallKey) (entry messages.Pending, found bool, last uint64, err error) {
	msg, err := j.conn.Last(ctx, j.index(), j.listing(key.String()))
	if errors.Is(err, bus.ErrNotFound) {
		return entry, false, 0, nil
	}
	entry, found = pending(msg)
	return entry, found, msg.Seq, err
}

// operation marks an entry of a bucket that stands for nothing, as a bucket's own clients write it.
const operation = "KV-Operation"

// pending reads an entry. One that marks a deletion, or cannot be read, is none.
func pending(msg bus.Msg) (entry messages.Pending, ok bool) {
	if msg.Header.Get(operation) != "" || len(msg.Data) == 0 {
		return entry, false
	}
	return entry, json.Unmarshal(msg.Data, &entry) == nil
}

func (j *Journal) index() string { return "KV_" + j.names.Stream(bus.BucketApprovals) }

func (j *Journal) listing(key string) string {
	return "$KV." + j.names.Stream(bus.BucketApprovals) + "." + key
}
