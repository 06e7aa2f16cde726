package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/messages"
)

// Include is the fields of arguments that this record shows.
func (l *Log) Include() Include { return l.include }

// headroom is what a message may need beside its lines: headers, the subject, the envelope. In bytes.
const headroom = 64 << 10

// Append stores the lines of a batch that has come to its end, which are in the order of their indices, and returns when
// they are stored: these, or those of another who was faster. seq is the place of the batch in the log.
func (l *Log) Append(ctx context.Context, key messages.BatchKey, seq uint64, lines []messages.AuditRecord) error {
	for part := 0; len(lines) > 0; part++ {
		some := lines
		body := messages.MustMarshal(messages.AuditLines{V: messages.Version, Lines: some})
		if limit := l.conn.MaxPayload() - headroom; len(body) > limit {
			some = fitting(lines, limit)
			body = messages.MustMarshal(messages.AuditLines{V: messages.Version, Lines: some})
		}
		_, err := l.conn.CompareAndSet(ctx, l.names.Ended(key, seq, part), nil, body, 0)
		if errors.Is(err, bus.ErrConflict) {
			some, err = l.stored(ctx, key, seq, part)
		}
		if err != nil {
			return fmt.Errorf("put the calls of batch %s on record: %w", key, err)
		}
		lines = behind(lines, some)
	}
	return nil
}

// fitting is as many of the first lines as fit into a message, and at least one. One that is larger by itself goes without
// the arguments that it shows.
func fitting(lines []messages.AuditRecord, limit int) []messages.AuditRecord {
	size := 0
	for n, line := range lines {
		more := len(messages.MustMarshal(line)) + 1
		if n == 0 && more > limit {
			line.Arguments = nil
			return []messages.AuditRecord{line}
		}
		if size += more; size > limit {
			return lines[:n]
		}
	}
	return lines
}

// behind is the lines after those that are stored. Another writer may have put fewer or more into its part.
func behind(lines, stored []messages.AuditRecord) []messages.AuditRecord {
	for len(lines) > 0 && len(stored) > 0 && lines[0].Index <= stored[len(stored)-1].Index {
		lines = lines[1:]
	}
	return lines
}

func (l *Log) stored(ctx context.Context, key messages.BatchKey, seq uint64, part int) ([]messages.AuditRecord, error) {
	msg, err := l.conn.Last(ctx, l.names.Stream(bus.Audit), l.names.Ended(key, seq, part))
	var lines messages.AuditLines
	if err == nil {
		err = json.Unmarshal(msg.Data, &lines)
	}
	return lines.Lines, err
}

// Written reports whether the lines of a batch are stored, up to that of the call at an index (-1: the batch's own).
func (l *Log) Written(ctx context.Context, key messages.BatchKey, seq uint64, last int) (bool, error) {
	every := strings.TrimSuffix(l.names.Ended(key, seq, 0), "0") + "*"
	parts, err := l.conn.All(ctx, l.names.Stream(bus.Audit), every)
	if err != nil {
		return false, fmt.Errorf("read what is on record of batch %s: %w", key, err)
	}
	for _, part := range parts {
		var lines messages.AuditLines
		if err := json.Unmarshal(part.Data, &lines); err != nil {
			return false, fmt.Errorf("read what is on record of batch %s: %w", key, err)
		}
		for _, line := range lines.Lines {
			if line.Index >= last {
				return true, nil
			}
		}
	}
	return false, nil
}
