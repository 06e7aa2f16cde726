// Package audit is the record for people: who asked for a call, who allowed it, what ran where, and how it ended.
//
//	audit.<t>.<s>.<b>.<i>              one line about a call on its way: a question, a decision, a start that needed one
//	audit.<t>.<s>.ended.<n>.lines      the lines of a session's batches, a message for each batch: one for each of its calls,
//	                                   or that it was refused, and once what they have in common; n is of the ten minutes
//	                                   in which the batches were accepted
//	audit.<t>.<s>.<b>.refused.aside    that a batch was refused which did not wait for its turn in the session, or the lines
//	                                   of one that were missing when later batches had theirs
//
// The lines about the calls of a batch are stored together, before the batch leaves the log, by compare-and-set: of any
// number of coordinators that bring a batch to its end one writes them. A subject costs the server memory for as long as
// lines are kept, so the batches of a session share one; and to look at its newest message makes the server load what lies
// around it, so a session has another one after ten minutes. Nothing is ever changed or taken away; the stream forgets by age
// alone.
//
// A line holds no arguments and no results, but for the fields that the operator lists. What it holds is hashes of them,
// made with a key of the tenant's: equal arguments of one tenant have equal hashes, and nobody without the key finds the
// arguments by trying.
//
//	hash = first 16 hex of HMAC-SHA256(key of the tenant, hex SHA-256 of the canonical JSON)
//	key of the tenant = HMAC-SHA256(key of the fleet, "toolfleet audit v1 " + tenant)
//
// What a line says is made by pure functions (lines.go). When lines are written, and what waits for them, is left to the
// coordinator and the worker.
package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/messages"
)

// Config is the tunables of a Log. The zero value works.
type Config struct {
	// Plain makes hashes that anybody can make: the beginning of the SHA-256 itself. Default: keyed.
	Plain bool
	// Key is the key of the fleet, of 32 bytes at least, the same for all its members. Default: one that is made at random
	// and kept in a bucket.
	Key string
	// Include lists fields of arguments that lines show, as TOOL.FIELD or *.FIELD. Default: none.
	Include []string
}

// minKey is the length of the shortest key, in bytes.
const minKey = 32

// Log is the record for people over one connection.
type Log struct {
	conn    *bus.Conn
	names   messages.Names
	plain   bool
	include Include
	given   bool // the key is one of the settings

	mu   sync.Mutex
	key  []byte    // of the fleet; nil: not read yet; guarded by mu
	read time.Time // when it was; guarded by mu
}

// Validate names everything that is wrong with the settings.
func (c Config) Validate() error {
	_, err := ParseInclude(c.Include)
	if len(c.Key) > 0 && len(c.Key) < minKey {
		err = errors.Join(err, fmt.Errorf("audit.key has %d bytes; it needs at least %d", len(c.Key), minKey))
	}
	return err
}

// New is the record behind a connection.
func New(conn *bus.Conn, cfg Config) (*Log, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	include, _ := ParseInclude(cfg.Include)
	l := &Log{conn: conn, names: conn.Names(), plain: cfg.Plain, include: include}
	if cfg.Key != "" {
		l.key, l.given = []byte(cfg.Key), true
	}
	return l, nil
}

// Write appends one line about the call that it names. It returns when the line is stored. Its hashes are given as they are
// in the journal; the arguments of an edit are left out.
func (l *Log) Write(ctx context.Context, line messages.AuditRecord) error {
	return l.WriteAt(ctx, messages.KeyOf(string(line.Tenant), line.Session, line.Batch).Call(line.Index), line)
}

// WriteAt is Write for a line about a call of which only the address is known.
func (l *Log) WriteAt(ctx context.Context, key messages.CallKey, line messages.AuditRecord) error {
	hasher, err := l.Hasher(ctx)
	if err != nil {
		return err
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
	if _, err := l.conn.Append(ctx, l.names.OfCall(messages.VerbAudit, key), nil, messages.MustMarshal(line)); err != nil {
		return fmt.Errorf("audit %s of call %s: %w", line.Type, key, err)
	}
	return nil
}
