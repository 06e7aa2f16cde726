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
// session's subject tells how far its record is. Where it tells of a later batch, what is missing of this one goes aside.
func (l *Log) Append(ctx context.Context, key messages.BatchKey, seq uint64, all messages.AuditLines) error {
	return l.append(ctx, l.inTurn, key, seq, all)
}

// AppendAside is Append for a batch that is refused without waiting for those before it in its session. It has a subject
// with those of its id, of which the log holds one at a time.
func (l *Log) AppendAside(ctx context.Context, key messages.BatchKey, seq uint64, all messages.AuditLines) error {
	return l.append(ctx, l.aside, key, seq, all)
}

// look finds out what is stored of a batch.
type look func(context.Context, messages.BatchKey, place) (recorded, error)

func (l *Log) append(ctx context.Context, look look, key messages.BatchKey, seq uint64, all messages.AuditLines) error {
	all.Token, all.Seq = key.Batch, seq
	at := placeOf(all)
	found, err := look(ctx, key, at)
	for err == nil {
		all.Lines, all.Earlier = without(all.Lines, found.has), found.has
		if len(all.Lines) == 0 {
			return nil
		}
		some, body := fitting(all, l.conn.MaxPayload()-headroom)
		found.newest, err = l.conn.CompareAndSet(ctx, found.subject, nil, body, found.newest)
		found.has = stored(some)
		if errors.Is(err, bus.ErrConflict) { // somebody else has stored something, and that may be all
			found, err = look(ctx, key, at)
		}
	}
	return fmt.Errorf("put the calls of batch %s on record: %w", key, err)
}

// Written reports whether the lines of a batch that was accepted then are stored, with those of its first calls.
func (l *Log) Written(ctx context.Context, key messages.BatchKey, seq uint64, accepted time.Time, calls int) (bool, error) {
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

// place is where a batch stands in the log, and since when. A log that was made anew gives its places out again, so that a
// place alone names no batch, and neither does a moment.
type place struct {
	seq      uint64
	accepted time.Time
}

func placeOf(part messages.AuditLines) place { return place{part.Seq, part.About.Accepted} }

func (p place) is(other place) bool { return p.seq == other.seq && p.accepted.Equal(other.accepted) }

// follows reports whether p came after another for certain: where place and time do not agree, the log was made anew in
// between, or its leader changed and the clock of the next one is behind.
func (p place) follows(other place) bool {
	return p.seq > other.seq && !p.accepted.Before(other.accepted)
}

// recorded is what is stored of a batch, and where the rest of it goes.
type recorded struct {
	subject string
	newest  uint64 // the sequence of the subject's newest message; 0: there is none
	has     []int  // the lines of the batch that are stored
	last    bool   // no part of them follows
	missed  bool   // the newest message is of a batch that came later, or may have
}

// inTurn is what is stored of a batch at its session's subject. Where a message of that does not come before it for certain
// the batch has missed its turn: then it is looked for among all, and the rest of it goes aside, because the newest message of a
// session's subject never goes back.
func (l *Log) inTurn(ctx context.Context, key messages.BatchKey, at place) (recorded, error) {
	found, err := l.lookAt(ctx, l.names.Ended(key.Tenant, key.Session, at.accepted), at, at.follows)
	if err != nil || !found.missed {
		return found, err
	}
	aside, err := l.aside(ctx, key, at)
	aside.has, aside.last = append(found.has, aside.has...), found.last || aside.last
	return aside, err
}

// aside is what is stored of a batch at the subject of its id, where nothing has a turn.
func (l *Log) aside(ctx context.Context, key messages.BatchKey, at place) (recorded, error) {
	return l.lookAt(ctx, l.names.Aside(key), at, func(place) bool { return false })
}

// clocks is how much those of two servers may differ.
const clocks = time.Minute

// lookAt reads the newest message of a subject. It tells all that is stored there of the batch when it is of that batch, or of
// one that comes before it; one that nobody can read is of nobody, and must not hold up those that come. Else what is stored of
// the batch, if anything, lies further back.
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

func partOf(msg bus.Msg) (part messages.AuditLines, err error) {
	err = json.Unmarshal(msg.Data, &part)
	return part, err
}

// add takes in what a part says to be stored of a batch, if it is of that batch.
func (r *recorded) add(part messages.AuditLines, at place) bool {
	own := at.is(placeOf(part))
	if own {
		r.has, r.last = append(r.has, stored(part)...), part.Last
	}
	return own
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
