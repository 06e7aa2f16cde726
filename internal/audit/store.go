package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Include returns the argument fields that the lines of this log show.
func (l *Log) Include() Include { return l.include }

// Append stores the lines of a batch that has ended, and returns when each of its calls has a
// stored line: ours, or that of a faster writer. seq is the place of the batch in the log. The
// batches of a session end one after another, in the order of the log, and leave it only when their
// lines are stored, so the newest message of the session's subject shows how far the session's
// lines go. When that message is of a later batch, Append stores what is missing at the aside
// subject.
func (l *Log) Append(ctx context.Context, key wire.BatchKey, seq uint64, all wire.AuditLines) error {
	return l.append(ctx, l.inTurn, key, seq, all)
}

// AppendAside is Append for a batch that is refused without waiting for the earlier batches of its
// session. It shares a subject with the batches of the same id, of which the log holds one at a
// time.
func (l *Log) AppendAside(ctx context.Context, key wire.BatchKey, seq uint64, all wire.AuditLines) error {
	return l.append(ctx, l.aside, key, seq, all)
}

// look finds what is stored of a batch.
type look func(context.Context, wire.BatchKey, place) (recorded, error)

// append stores the missing lines, one message at a time, each behind the newest message that look
// has found. After a conflict it looks again: the other writer may have stored all of them.
func (l *Log) append(ctx context.Context, look look, key wire.BatchKey, seq uint64, all wire.AuditLines) error {
	all.Token, all.Seq = key.Batch, seq
	at := placeOf(all)
	found, err := look(ctx, key, at)
	for err == nil {
		all.Lines, all.Earlier = without(all.Lines, found.has), found.has
		if len(all.Lines) == 0 {
			return nil
		}
		some, body := fitting(all, l.conn.MaxBody())
		found.newest, err = l.conn.CompareAndSet(ctx, found.subject, nil, body, found.newest)
		found.has = stored(some)
		if errors.Is(err, bus.ErrConflict) { // another writer stored something
			found, err = look(ctx, key, at)
		}
	}
	return fmt.Errorf("put the calls of batch %s on record: %w", key, err)
}

// Written reports whether all lines of a batch are stored, including those of its first calls.
// accepted is when the batch was stored in the log.
func (l *Log) Written(ctx context.Context, key wire.BatchKey, seq uint64, accepted time.Time, calls int) (bool, error) {
	found, err := l.inTurn(ctx, key, place{seq, accepted})
	if err != nil {
		return false, fmt.Errorf("read what is on record of batch %s: %w", key, err)
	}
	all := found.last
	for i := range calls {
		all = all && slices.Contains(found.has, i)
	}
	return all, nil
}

// place is where and when a batch was stored in the log. A recreated log gives out its sequences
// again, so neither the sequence nor the time alone identifies a batch.
type place struct {
	seq      uint64
	accepted time.Time
}

func placeOf(part wire.AuditLines) place { return place{part.Seq, part.About.Accepted} }

func (p place) is(other place) bool { return p.seq == other.seq && p.accepted.Equal(other.accepted) }

// follows reports whether p certainly came after other. Sequence and time disagree when the log was
// recreated in between, or when its leader changed and the clock of the next one is behind.
func (p place) follows(other place) bool {
	return p.seq > other.seq && !p.accepted.Before(other.accepted)
}

// recorded is what is stored of a batch, and where the missing lines go.
type recorded struct {
	subject string
	newest  uint64 // the sequence of the subject's newest message; 0: there is none
	has     []int  // the indices of the stored lines of the batch
	last    bool   // the newest part of the batch is its last
	missed  bool   // the newest message is, or may be, of a later batch
}

// inTurn finds what is stored of a batch at its session's subject. If the newest message there may
// belong to a later batch, the batch has missed its turn. The missing lines then go to the aside
// subject, because the newest message of a session's subject must never go back to an earlier
// batch.
func (l *Log) inTurn(ctx context.Context, key wire.BatchKey, at place) (recorded, error) {
	found, err := l.lookAt(ctx, l.names.Ended(key.Tenant, key.Session, at.accepted), at, at.follows)
	if err != nil || !found.missed {
		return found, err
	}
	aside, err := l.aside(ctx, key, at)
	aside.has, aside.last = append(found.has, aside.has...), found.last || aside.last
	return aside, err
}

// aside finds what is stored of a batch at the subject of its id, where batches have no order.
func (l *Log) aside(ctx context.Context, key wire.BatchKey, at place) (recorded, error) {
	return l.lookAt(ctx, l.names.Aside(key), at, func(place) bool { return false })
}

// clocks is how far apart the clocks of two servers may be.
const clocks = time.Minute

// lookAt reads the newest message of a subject. If that message is of the batch, it lists all
// stored lines of the batch; if it is of an earlier batch, none are stored. A message that cannot
// be read belongs to no batch and must not block later ones. In any other case the lines of the
// batch, if there are any, lie further back: lookAt scans for them and sets missed. comesAfter
// reports whether the batch certainly came after the given place.
func (l *Log) lookAt(ctx context.Context, subject string, at place, comesAfter func(place) bool) (recorded, error) {
	found := recorded{subject: subject}
	newest, err := l.conn.Last(ctx, l.names.Stream(bus.Audit), subject)
	if errors.Is(err, bus.ErrNotFound) {
		return found, nil
	}
	if err != nil {
		return found, err
	}
	found.newest = newest.Seq
	if part, err := partOf(newest); err != nil || comesAfter(placeOf(part)) || found.add(part, at) {
		return found, nil
	}
	found.missed = true
	since, seen := at.accepted.Add(-clocks), false
	err = l.conn.Scan(ctx, l.names.Stream(bus.Audit), subject, bus.From{Time: since}, func(msg bus.Msg) bool {
		seen = seen || msg.Seq >= newest.Seq
		if part, err := partOf(msg); err == nil {
			found.add(part, at)
		}
		return true
	})
	if err == nil && !seen && !newest.Time.Before(since) {
		err = errors.New("a server that is behind has answered")
	}
	return found, err
}

// partOf decodes a message of the audit stream.
func partOf(msg bus.Msg) (part wire.AuditLines, err error) {
	err = json.Unmarshal(msg.Data, &part)
	return part, err
}

// add takes over the stored lines that a part lists, and reports whether the part is of the batch
// at.
func (r *recorded) add(part wire.AuditLines, at place) bool {
	own := at.is(placeOf(part))
	if own {
		r.has, r.last = append(r.has, stored(part)...), part.Last
	}
	return own
}

// stored returns the indices of the lines that are stored once this part is.
func stored(part wire.AuditLines) []int {
	has := slices.Clone(part.Earlier)
	for _, line := range part.Lines {
		has = append(has, line.Index)
	}
	return has
}

// without returns the lines that are not stored. Another writer may have split its parts elsewhere.
func without(lines []messages.AuditRecord, stored []int) []messages.AuditRecord {
	return slices.DeleteFunc(slices.Clone(lines), func(l messages.AuditRecord) bool { return slices.Contains(stored, l.Index) })
}

// fitting returns as many of the first lines as fit into limit bytes, and at least one. A first
// line that does not fit by itself becomes bare.
func fitting(all wire.AuditLines, limit int) (wire.AuditLines, []byte) {
	all.Last = true
	body := rawjson.MustMarshal(all)
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
	return some, rawjson.MustMarshal(some)
}
