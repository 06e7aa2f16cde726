package wire_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

func TestControlRecordAborts(t *testing.T) {
	const ttl = time.Hour
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for name, row := range map[string]struct {
		abort  string // the abort of the control
		upTo   uint64
		batch  string
		seq    uint64
		stored time.Duration // when the batch is stored, after the control
		want   bool
	}{
		"id, in the log":                          {`"b"`, 7, "b", 7, -time.Minute, true},
		"id, in the log for long":                 {`"b"`, 7, "b", 3, -5 * time.Hour, true},
		"id, in the log by a clock that ran back": {`"b"`, 7, "b", 7, 2 * ttl, true},
		"id, stored while the log was read":       {`"b"`, 6, "b", 7, -time.Millisecond, true},
		"id, later":                               {`"b"`, 0, "b", 1, time.Minute, true},
		"id, later by batch_ttl":                  {`"b"`, 6, "b", 7, ttl, true},
		"id, later than that":                     {`"b"`, 6, "b", 7, ttl + time.Nanosecond, false},
		"another id, in the log":                  {`"b"`, 7, "c", 7, -time.Minute, false},
		"another id, later":                       {`"b"`, 6, "c", 7, time.Minute, false},
		"an id that is encoded":                   {`"b.*"`, 6, messages.Token("b.*"), 7, time.Minute, true},
		"session, in the log":                     {`true`, 7, "b", 7, -time.Minute, true},
		"session, by a clock that is behind":      {`true`, 7, "b", 7, time.Second, true},
		"session, later at a place given again":   {`true`, 7, "b", 7, time.Minute, false},
		"session, later":                          {`true`, 6, "b", 7, time.Second, false},
		"session, an empty log":                   {`true`, 0, "b", 1, time.Second, false},
		"no abort, in the log":                    {``, 7, "b", 7, -time.Minute, false},
		"no abort, later":                         {``, 6, "b", 7, time.Minute, false},
		"an empty id":                             {`""`, 7, "", 7, -time.Minute, false},
	} {
		record := wire.ControlRecord{Control: messages.Control{Abort: json.RawMessage(row.abort)}, UpTo: row.upTo}
		if got := record.Aborts(at, row.batch, row.seq, at.Add(row.stored), ttl); got != row.want {
			t.Errorf("%s: abort %s up to %d, batch %q at %d, %v later: %v, want %v", name, row.abort, row.upTo, row.batch, row.seq, row.stored, got, row.want)
		}
	}
}
