package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Include returns the argument fields that the lines of this log have.
func (l *Log) Include() Include { return l.include }

// Append stores the lines of a batch that has ended. It returns when every call has a stored
// line, from this writer or another. seq is the sequence of the batch in the log.
//
// A batch leaves the log only after its lines are stored. So the newest message of the
// session's subject shows up to which batch the session's lines are stored. Batches of a
// session may end in another order than that of the log. If the newest message is of a later
// batch, Append stores missing lines on the batch's overflow subject.
func (l *Log) Append(ctx context.Context, key wire.BatchKey, seq uint64, all wire.AuditLines) error {
	all.Token, all.Seq = key.Batch, seq
	at, first, losses := positionOf(all), true, l.conn.Losses()
	subject := l.names.Ended(key.Tenant, key.Session, at.accepted)
	find := func(ctx context.Context, key wire.BatchKey, at position) (storedLines, error) {
		if first {
			first = false
			if guess, known := l.ends.guess(subject, at); known {
				return guess, nil
			}
		}
		return l.findOrdered(ctx, key, at)
	}
	newest, err := l.append(ctx, find, key, all)
	if err == nil && newest.subject == subject && newest.newest > 0 && !newest.overtaken {
		l.ends.note(subject, newest.newest, at, losses)
	}
	return err
}

// AppendUnordered is like Append, for a batch that is refused while earlier batches of its
// session may still run. It uses the overflow subject of the batch. Batches with the same id
// share that subject, but the log has only one of them at a time.
func (l *Log) AppendUnordered(ctx context.Context, key wire.BatchKey, seq uint64, all wire.AuditLines) error {
	all.Token, all.Seq = key.Batch, seq
	_, err := l.append(ctx, l.findUnordered, key, all)
	return err
}

// finder finds the stored lines of a batch.
type finder func(context.Context, wire.BatchKey, position) (storedLines, error)

// append stores the missing lines, one message at a time. It writes each message by
// compare-and-set after the newest message that find returned. After a conflict it calls find
// again, because another writer may have stored all lines. It returns where the lines are.
func (l *Log) append(ctx context.Context, find finder, key wire.BatchKey, all wire.AuditLines) (storedLines, error) {
	at := positionOf(all)
	found, err := find(ctx, key, at)
	for err == nil {
		all.Lines, all.Earlier = without(all.Lines, found.indices), found.indices
		if len(all.Lines) == 0 {
			return found, nil
		}
		some, body := fitting(all, l.conn.MaxBody())
		found.newest, err = l.conn.CompareAndSet(ctx, found.subject, nil, body, found.newest)
		found.indices = stored(some)
		if errors.Is(err, bus.ErrConflict) { // another writer stored first
			found, err = find(ctx, key, at)
		}
	}
	return found, fmt.Errorf("write the audit lines of batch %s: %w", key, err)
}

// Written reports whether all lines of a batch are stored, including one for each of its
// calls. accepted is when the log stored the batch.
func (l *Log) Written(ctx context.Context, key wire.BatchKey, seq uint64, accepted time.Time, calls int) (bool, error) {
	found, err := l.findOrdered(ctx, key, position{seq, accepted})
	if err != nil {
		return false, fmt.Errorf("read the audit lines of batch %s: %w", key, err)
	}
	all := found.last
	for i := range calls {
		all = all && slices.Contains(found.indices, i)
	}
	return all, nil
}

// position says where and when a batch was stored in the log. A log that is made again gives
// out the same sequences again. So only sequence and time together identify a batch.
type position struct {
	seq      uint64
	accepted time.Time
}

func positionOf(part wire.AuditLines) position { return position{part.Seq, part.About.Accepted} }

func (p position) equals(other position) bool {
	return p.seq == other.seq && p.accepted.Equal(other.accepted)
}

// isAfter reports whether the position p is certainly after the position other. Sequence and
// time may disagree if the log was made again between the two, or if the clock of the log's
// new leader is behind.
func (p position) isAfter(other position) bool {
	return p.seq > other.seq && !p.accepted.Before(other.accepted)
}

// storedLines says which lines of a batch are stored, and where the missing ones go.
type storedLines struct {
	subject   string
	newest    uint64 // sequence of the subject's newest message; 0: no message
	indices   []int  // the indices of the batch's stored lines
	last      bool   // the newest part of the batch is the last part
	overtaken bool   // the newest message is, or may be, of a later batch
}

// findOrdered finds the stored lines of a batch on its session's subject. If the newest
// message there may be of a later batch, the missing lines go to the overflow subject: on a
// session's subject, a message of an earlier batch must never follow one of a later batch.
func (l *Log) findOrdered(ctx context.Context, key wire.BatchKey, at position) (storedLines, error) {
	found, err := l.findAt(ctx, l.names.Ended(key.Tenant, key.Session, at.accepted), at, at.isAfter)
	if err != nil || !found.overtaken {
		return found, err
	}
	aside, err := l.findUnordered(ctx, key, at)
	aside.indices, aside.last = append(found.indices, aside.indices...), found.last || aside.last
	return aside, err
}

// findUnordered finds the stored lines of a batch on its overflow subject, where batches
// have no order.
func (l *Log) findUnordered(ctx context.Context, key wire.BatchKey, at position) (storedLines, error) {
	return l.findAt(ctx, l.names.Aside(key), at, func(position) bool { return false })
}

// maxClockSkew is the largest difference between the clocks of two servers of a cluster. If a
// batch ends after a later one, the lines of the session from this much earlier have to be
// read.
const maxClockSkew = 5 * time.Second

// findAt finds the stored lines of a batch from the newest message of a subject. A message of
// this batch lists the stored lines of the batch. If the message is of an earlier batch, no
// line of this batch is stored. A message that cannot be read counts as one of an earlier
// batch, so that it does not block later batches. In any other case the stored lines of the
// batch are further back: findAt scans for them and sets overtaken. The function comesAfter
// reports whether the batch certainly comes after a position.
func (l *Log) findAt(
	ctx context.Context, subject string, at position, comesAfter func(position) bool,
) (storedLines, error) {
	found := storedLines{subject: subject}
	newest, err := l.conn.Last(ctx, l.names.Stream(bus.Audit), subject)
	if errors.Is(err, bus.ErrNotFound) {
		return found, nil
	}
	if err != nil {
		return found, err
	}
	found.newest = newest.Seq
	if part, err := partOf(newest); err != nil || comesAfter(positionOf(part)) || found.add(part, at) {
		return found, nil
	}
	found.overtaken = true
	since, seen := at.accepted.Add(-maxClockSkew), false
	err = l.conn.Scan(ctx, l.names.Stream(bus.Audit), subject, bus.From{Time: since}, func(msg bus.Msg) bool {
		seen = seen || msg.Seq >= newest.Seq
		if part, err := partOf(msg); err == nil {
			found.add(part, at)
		}
		return true
	})
	if err == nil && !seen && !newest.Time.Before(since) {
		err = errors.New("the answer comes from a replica that lags behind")
	}
	return found, err
}

// partOf decodes a message of the audit stream.
func partOf(msg bus.Msg) (part wire.AuditLines, err error) {
	err = rawjson.Unmarshal(msg.Data, &part)
	return part, err
}

// add adds the stored lines that a part lists, if the part belongs to the batch at the
// position. If the part belongs to another batch, add adds nothing and returns false.
func (r *storedLines) add(part wire.AuditLines, at position) bool {
	own := at.equals(positionOf(part))
	if own {
		r.indices, r.last = append(r.indices, stored(part)...), part.Last
	}
	return own
}

// stored returns the indices of the lines that are stored if this part is stored.
func stored(part wire.AuditLines) []int {
	has := slices.Clone(part.Earlier)
	for _, line := range part.Lines {
		has = append(has, line.Index)
	}
	return has
}

// without returns the lines that are not stored. It compares each line, because another writer
// may have split the lines at other places.
func without(lines []messages.AuditRecord, stored []int) []messages.AuditRecord {
	return slices.DeleteFunc(slices.Clone(lines),
		func(l messages.AuditRecord) bool { return slices.Contains(stored, l.Index) })
}

// fitting returns as many lines from the start as fit into limit bytes, but at least one. If
// the first line alone does not fit, it is replaced by a bare line.
func fitting(all wire.AuditLines, limit int) (wire.AuditLines, []byte) {
	all.Last = true
	body := wire.Encode(all)
	if len(body) <= limit {
		return all, body
	}
	some := all
	some.Lines = nil
	size := len(rawjson.MustMarshal(some))
	for _, line := range all.Lines {
		more := len(rawjson.MustMarshal(line)) + 1
		if len(some.Lines) == 0 && size+more > limit {
			line = bare(line)
			more = len(rawjson.MustMarshal(line)) + 1
		} else if size+more > limit {
			break
		}
		size += more
		some.Lines = append(some.Lines, line)
	}
	some.Last = len(some.Lines) == len(all.Lines)
	return some, wire.Encode(some)
}
