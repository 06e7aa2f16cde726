// Package audit is the audit log: who asked for a call, who allowed it, what ran where, and
// how it ended.
//
//	audit.<t>.<s>.<b>.<i>            one line of a worker about an open call: the call starts
//	                                 and has to be logged, or an approval is void
//	audit.<t>.<s>.<b>.<i>.question   one line of a coordinator about an open call: a question,
//	                                 a decision or a refused decision
//	audit.<t>.<s>.ended.<n>.lines    the lines of a session's batches, in one or more messages
//	                                 for each batch: a line for each call, a line if the batch
//	                                 was refused, and once the members that all lines share.
//	                                 n is the number of ten minutes from 1970 to the time when
//	                                 the batches were accepted
//	audit.<t>.<s>.<b>.refused.aside  the refusal of a batch that did not wait for earlier
//	                                 batches of its session, or lines that were still missing
//	                                 when lines of later batches were stored
//
// The lines of a batch are stored together by compare-and-set, before the batch leaves the
// log. If several coordinators end the same batch, each line is therefore stored once. A
// subject uses memory of the server as long as its lines are kept, so the batches of a session
// share a subject. When the newest message of a subject is read, the server loads the messages
// around it, so a session gets a new subject every ten minutes. Lines are never changed, and
// the server deletes them only at their maximum age.
//
// Workers may write only to the first of these subjects. Earlier builds also wrote lines of
// coordinators there. So each [Entry] says on which kind of subject its line was.
//
// A line has no arguments and no results, except the argument fields that the operator lists.
// In their place it has hashes, made with a key of the tenant. Equal arguments of one tenant
// have equal hashes. Without the key, nobody can find the arguments by guessing and comparing
// hashes.
//
//	hash = first 16 hex of HMAC-SHA256(key of the tenant, hex SHA-256 of the canonical JSON)
//	key of the tenant = HMAC-SHA256(key of the fleet, "toolfleet audit v1 " + tenant)
//
// Pure functions make the content of a line (lines.go). The coordinator and the worker decide
// when they write lines, and what waits for the lines.
package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Config holds the settings of a Log. The zero value works.
type Config struct {
	// Plain makes hashes without a key: the first 16 hex digits of the SHA-256. Default:
	// hashes with a key.
	Plain bool
	// Key is the key of the fleet: at least 32 bytes, the same for all members. Default: a
	// random key, which is made once and kept in a bucket.
	Key string
	// Include lists the argument fields that lines show, as TOOL.FIELD or *.FIELD. Default:
	// none.
	Include []string
}

// minKey is the length of the shortest key, in bytes.
const minKey = 32

// Log reads and writes the audit log over one connection. Safe for concurrent use.
type Log struct {
	conn    *bus.Conn
	names   wire.Names
	plain   bool
	include Include
	given   bool // the key comes from the settings
	ends    ends // the newest lines that this process wrote, by session

	mu   sync.Mutex
	key  []byte    // key of the fleet; nil: not read yet; guarded by mu
	read time.Time // when key was read; guarded by mu
}

// Validate returns an error with all mistakes in the settings.
func (c Config) Validate() error {
	_, err := ParseInclude(c.Include)
	if len(c.Key) > 0 && len(c.Key) < minKey {
		err = errors.Join(err, fmt.Errorf("audit.key has %d bytes; it needs at least %d", len(c.Key), minKey))
	}
	return err
}

// New returns the audit log over a connection. It returns an error for invalid settings. It
// sends nothing before a line is written or read.
func New(conn *bus.Conn, cfg Config) (*Log, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	include, _ := ParseInclude(cfg.Include)
	l := &Log{conn: conn, names: conn.Names(), plain: cfg.Plain, include: include, ends: ends{losses: conn.Losses}}
	if cfg.Key != "" {
		l.key, l.given = []byte(cfg.Key), true
	}
	return l, nil
}

// Write appends a worker's line about the call that the line names. It returns when the line
// is stored. The caller gives it the hashes of the journal, and Write replaces them by keyed
// hashes.
func (l *Log) Write(ctx context.Context, line messages.AuditRecord) error {
	key := wire.KeyOf(string(line.Tenant), line.Session, line.Batch).Call(line.Index)
	line, err := l.prepared(ctx, key, line)
	if err != nil {
		return err
	}
	return l.appendLine(ctx, key, line, l.names.OfCall(wire.VerbAudit, key), rawjson.MustMarshal(line))
}

// WriteQuestion is like Write, for a coordinator's line. It leaves out the arguments of an
// edit. The message has the form of a batch's lines, which earlier builds can read.
func (l *Log) WriteQuestion(ctx context.Context, key wire.CallKey, line messages.AuditRecord) error {
	line, err := l.prepared(ctx, key, line)
	if err != nil {
		return err
	}
	about := messages.AuditRecord{V: line.V, Type: line.Type, Time: line.Time, Index: -1, Tenant: line.Tenant, Session: line.Session, Batch: line.Batch}
	body := rawjson.MustMarshal(wire.AuditLines{V: line.V, Token: key.Batch, About: about, Lines: []messages.AuditRecord{line}})
	return l.appendLine(ctx, key, line, l.names.Question(key), body)
}

func (l *Log) appendLine(ctx context.Context, key wire.CallKey, line messages.AuditRecord, subject string, body []byte) error {
	if _, err := l.conn.Append(ctx, subject, nil, body); err != nil {
		return fmt.Errorf("audit %s of call %s: %w", line.Type, key, err)
	}
	return nil
}

// prepared returns a line in its stored form.
func (l *Log) prepared(ctx context.Context, key wire.CallKey, line messages.AuditRecord) (messages.AuditRecord, error) {
	hasher, err := l.Hasher(ctx)
	if err != nil {
		return line, err
	}
	line.V = messages.Version
	if line.Time.IsZero() {
		line.Time = time.Now()
	}
	line.Tenant = cmp.Or(line.Tenant, messages.TenantID(key.Tenant))
	line.ArgsHash, line.Original = hasher.Of(line.Tenant, line.ArgsHash), hasher.Of(line.Tenant, line.Original)
	if line.Decision != nil {
		decision := *line.Decision
		decision.Input = nil
		line.Decision = &decision
	}
	return line, nil
}
