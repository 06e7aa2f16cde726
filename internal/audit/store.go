package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/messages"
)

// Include is the fields of arguments that this record shows.
func (l *Log) Include() Include { return l.include }

// headroom is what a message may need beside its lines: headers, the subject, the envelope. In bytes.
const headroom = 64 << 10

// Append stores the lines of a batch that has come to its end, and returns when each of its calls has one that is stored:
// ours, or that of another who was faster. seq is the place of the batch in the log.
func (l *Log) Append(ctx context.Context, key messages.BatchKey, seq uint64, all messages.AuditLines) error {
	for part := 0; len(all.Lines) > 0; part++ {
		some, body := fitting(all, l.conn.MaxPayload()-headroom)
		_, err := l.conn.CompareAndSet(ctx, l.names.Ended(key, seq, part), nil, body, 0)
		if errors.Is(err, bus.ErrConflict) {
			some, err = l.stored(ctx, key, seq, part, all.About.Accepted)
		}
		if err != nil {
			return fmt.Errorf("put the calls of batch %s on record: %w", key, err)
		}
		all.Lines = without(all.Lines, some.Lines)
	}
	return nil
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

// without is the lines of those calls that are not stored. Another writer may have put fewer or more into its part.
func without(lines, stored []messages.AuditRecord) []messages.AuditRecord {
	return slices.DeleteFunc(slices.Clone(lines), func(l messages.AuditRecord) bool {
		return slices.ContainsFunc(stored, func(s messages.AuditRecord) bool { return s.Index == l.Index })
	})
}

// stored is a part as it is stored; empty where it is of no batch that was accepted then.
func (l *Log) stored(ctx context.Context, key messages.BatchKey, seq uint64, part int, accepted time.Time) (messages.AuditLines, error) {
	msg, err := l.conn.Last(ctx, l.names.Stream(bus.Audit), l.names.Ended(key, seq, part))
	return ofBatchAt(accepted, msg), err
}

// ofBatchAt is the part in a message, where it is of the batch that was accepted at that moment. A log that was made anew
// gives its places out again. The digest of a batch would not tell it apart as well: it is another with another key.
func ofBatchAt(accepted time.Time, msg bus.Msg) messages.AuditLines {
	var part messages.AuditLines
	if json.Unmarshal(msg.Data, &part) != nil || !part.About.Accepted.Equal(accepted) {
		return messages.AuditLines{}
	}
	return part
}

// Written reports whether the lines of a batch that was accepted then are stored, with those of its first calls.
func (l *Log) Written(ctx context.Context, key messages.BatchKey, seq uint64, accepted time.Time, calls int) (bool, error) {
	every := strings.TrimSuffix(l.names.Ended(key, seq, 0), "0") + "*"
	parts, err := l.conn.All(ctx, l.names.Stream(bus.Audit), every)
	if err != nil {
		return false, fmt.Errorf("read what is on record of batch %s: %w", key, err)
	}
	last, has := false, map[int]bool{}
	for _, msg := range parts {
		part := ofBatchAt(accepted, msg)
		last = last || part.Last
		for _, line := range part.Lines {
			has[line.Index] = true
		}
	}
	for i := range calls {
		last = last && has[i]
	}
	return last, nil
}
