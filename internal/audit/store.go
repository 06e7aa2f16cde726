package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/messages"
)

// Include is the fields of arguments that this record shows.
func (l *Log) Include() Include { return l.include }

// headroom is what a message may need beside its lines: headers, the subject, the envelope. In bytes.
const headroom = 64 << 10

// Append stores the lines of a batch that has come to its end, and returns when each of its calls has one that is stored:
// ours, or that of another who was faster. seq is the place of the batch in the log. The batches of a session come to their
// end one after another, in the order of the log, and leave it only when they are on record: so the newest message of the
// session's subject tells how far its record is.
func (l *Log) Append(ctx context.Context, key messages.BatchKey, seq uint64, all messages.AuditLines) error {
	return l.append(ctx, l.names.Ended(key.Tenant, key.Session), key, seq, all)
}

// AppendAside is Append for a batch that is refused without waiting for those before it in its session. It has a subject
// with those of its id, of which the log holds one at a time.
func (l *Log) AppendAside(ctx context.Context, key messages.BatchKey, seq uint64, all messages.AuditLines) error {
	return l.append(ctx, l.names.Aside(key), key, seq, all)
}

func (l *Log) append(ctx context.Context, subject string, key messages.BatchKey, seq uint64, all messages.AuditLines) error {
	all.Token, all.Seq = key.Batch, seq
	found, err := l.look(ctx, subject, seq, all.About.Accepted)
	for err == nil {
		all.Lines, all.Earlier = without(all.Lines, found.has), found.has
		if found.later || len(all.Lines) == 0 {
			return nil
		}
		some, body := fitting(all, l.conn.MaxPayload()-headroom)
		found.newest, err = l.conn.CompareAndSet(ctx, subject, nil, body, found.newest)
		found.has = stored(some)
		if errors.Is(err, bus.ErrConflict) { // somebody else has stored something, and that may be all
			found, err = l.look(ctx, subject, seq, all.About.Accepted)
		}
	}
	return fmt.Errorf("put the calls of batch %s on record: %w", key, err)
}

// Written reports whether the lines of a batch that was accepted then are stored, with those of its first calls.
func (l *Log) Written(ctx context.Context, key messages.BatchKey, seq uint64, accepted time.Time, calls int) (bool, error) {
	found, err := l.look(ctx, l.names.Ended(key.Tenant, key.Session), seq, accepted)
	if err != nil {
		return false, fmt.Errorf("read what is on record of batch %s: %w", key, err)
	}
	all := found.last
	for i := range calls {
		all = all && slices.Contains(found.has, i)
	}
	return all || found.later, nil
}

// recorded is what the newest message of a subject says about a batch.
type recorded struct {
	newest uint64 // its sequence; 0: there is none
	has    []int  // the lines of the batch that are stored
	last   bool   // no part of them follows
	later  bool   // the message is of a later batch, so this one is on record, all of it
}

// look reads the newest message of a subject. One that nobody can read is of no batch: it must not hold up those that come.
//
// A log that was made anew gives its places out again, so a place alone names no batch, and neither does a moment: the
// clocks of two leaders of the log may differ by some milliseconds. A batch is later than ours when it has a larger place and
// was not accepted before ours. In one log places rise, so that a batch that comes after us never takes us for the later one,
// whatever the clocks say. A larger place from before our time is of the log that was there before. It may also be of our
// own, when its leader changed between the two batches, its clock is behind by more than what lies between them, and we were
// held up for so long: then our lines are there twice, which is better than not at all.
func (l *Log) look(ctx context.Context, subject string, seq uint64, accepted time.Time) (recorded, error) {
	msg, err := l.conn.Last(ctx, l.names.Stream(bus.Audit), subject)
	if errors.Is(err, bus.ErrNotFound) {
		return recorded{}, nil
	}
	found := recorded{newest: msg.Seq}
	var part messages.AuditLines
	if err != nil || json.Unmarshal(msg.Data, &part) != nil {
		return found, err
	}
	switch at := part.About.Accepted; {
	case part.Seq == seq && at.Equal(accepted):
		found.has, found.last = stored(part), part.Last
	case part.Seq > seq && !at.Before(accepted):
		found.later = true
	}
	return found, nil
}

// stored is the lines that are stored once a part is.
func stored(part messages.AuditLines) []int {
	has := slices.Clone(part.Earlier)
	for _, line := range part.Lines {
		has = append(has, line.Index)
	}
	return has
}

// without is the lines of those calls that are not stored. Another writer may have put fewer or more into its part.
func without(lines []messages.AuditRecord, stored []int) []messages.AuditRecord {
	return slices.DeleteFunc(slices.Clone(lines), func(l messages.AuditRecord) bool { return slices.Contains(stored, l.Index) })
}

// fitting is as many of the first lines as fit into a message, and at least one. One that is larger by itself is bare.
func fitting(all messages.AuditLines, limit int) (messages.AuditLines, []byte) {
	all.Last = true
	body := messages.MustMarshal(all)
	if len(body) <= limit {
		return all, body
	}
	some := all
	some.Lines = nil
	size := len(messages.MustMarshal(some))
	for _, line := range all.Lines {
		more := len(messages.MustMarshal(line)) + 1
		if len(some.Lines) == 0 && size+more > limit {
			line = bare(line)
			more = len(messages.MustMarshal(line)) + 1
		} else if size+more > limit {
			break
		}
		size += more
		some.Lines = append(some.Lines, line)
	}
	some.Last = len(some.Lines) == len(all.Lines)
	return some, messages.MustMarshal(some)
}
