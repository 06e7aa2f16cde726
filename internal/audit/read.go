package audit

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Filter selects lines. A line must match every field that is set. The zero value selects all
// lines.
type Filter struct {
	// Key is the key of a batch. If it is set, Tenant, Session and Batch are ignored.
	Key      wire.BatchKey
	Tenant   string // the token of a tenant
	Session  messages.SessionID
	Batch    messages.BatchID
	Call     messages.CallID
	Tool     string
	Status   messages.Status
	Type     messages.AuditType
	Effect   string // effect of the permission: allow, ask or deny
	Approver string // a person who agreed or decided
	Worker   string // the worker that ran the call, or the process that wrote the line
	Trace    string
	Round    int // round of the batch, if its agent numbered it; 0: any round
	// Since and Until limit when a line was stored, by the server's clock. The line was stored
	// at Since or later, and before Until.
	Since, Until time.Time
}

// Entry is a line with the place where it is stored.
type Entry struct {
	Seq    uint64 // sequence of the message, which may have several lines
	Stored time.Time
	Key    wire.BatchKey // key of the batch, in subject tokens
	Line   messages.AuditRecord
	// ByWorker says that the line is on a subject to which every worker may write. Earlier
	// builds also wrote lines of coordinators about open calls to these subjects.
	ByWorker bool
	Err      error // if set, the message cannot be read, and Line is empty
}

// key returns the key that the filter selects. A part that is "" selects anything. It turns
// ids into tokens, because an id may have characters that a subject cannot have.
func (f Filter) key() wire.BatchKey {
	token := func(id string) string {
		if id == "" {
			return ""
		}
		return messages.Token(id)
	}
	return cmp.Or(f.Key, wire.BatchKey{
		Tenant: token(f.Tenant), Session: token(string(f.Session)), Batch: token(string(f.Batch)),
	})
}

// subject returns the filter for the server. It does not select a batch, because the batches
// of a session share subjects.
func (f Filter) subject(n wire.Names) string {
	key := f.key()
	return n.OfSession(wire.VerbAudit, cmp.Or(key.Tenant, "*"), cmp.Or(key.Session, "*")) + ".>"
}

// matches applies the parts of the filter that the server cannot apply. Key must be set.
func (f Filter) matches(e Entry) bool {
	if !f.Until.IsZero() && !e.Stored.Before(f.Until) || e.Stored.Before(f.Since) {
		return false
	}
	if f.Key.Batch != "" && f.Key.Batch != e.Key.Batch {
		return false
	}
	if e.Err != nil {
		return true
	}
	l := e.Line
	for _, field := range [][2]string{
		{string(f.Call), string(l.CallID)}, {f.Tool, l.Tool}, {f.Trace, l.TraceID},
		{string(f.Status), string(l.Status)}, {string(f.Type), string(l.Type)},
	} {
		if field[0] != "" && field[0] != field[1] {
			return false
		}
	}
	if f.Round != 0 && f.Round != l.Round || f.Worker != "" && f.Worker != l.Worker && f.Worker != l.Writer {
		return false
	}
	if p := l.Permission; f.Effect != "" && (p == nil || p.Effect != f.Effect) {
		return false
	}
	return f.Approver == "" || l.Decision != nil && l.Decision.By == f.Approver ||
		l.Permission != nil && slices.Contains(l.Permission.By, f.Approver)
}

// mayMatchBatch reports whether a message may be about the selected batch. Most messages then
// need no decoding.
func (f Filter) mayMatchBatch(msg bus.Msg) bool {
	return strings.Contains(msg.Subject, f.Key.Batch) || bytes.Contains(msg.Data, []byte(f.Key.Batch))
}

// requiredTexts returns texts that a message must have if the filter selects one of its lines.
func (f Filter) requiredTexts() (words [][]byte) {
	for _, text := range []string{string(f.Call), f.Tool, f.Approver, f.Worker, f.Trace} {
		if text != "" {
			quoted := rawjson.Quote(text) // in the form that every writer uses
			words = append(words, quoted[1:len(quoted)-1])
		}
	}
	return words
}

func contains(data []byte, words [][]byte) bool {
	return !slices.ContainsFunc(words, func(word []byte) bool { return !bytes.Contains(data, word) })
}

// entries returns the lines of a message: one line about an open call, or the lines of an
// ended batch. Workers may write to the subjects of open calls. If a line on such a subject
// says that a call has ended, it becomes an error.
func (l *Log) entries(msg bus.Msg) []Entry {
	var one struct {
		messages.AuditRecord
		Token string                 `json:"token"`
		About messages.AuditRecord   `json:"about"`
		Lines []messages.AuditRecord `json:"lines"`
	}
	err := json.Unmarshal(msg.Data, &one)
	key, open := l.keyOf(msg.Subject)
	e := Entry{Seq: msg.Seq, Stored: msg.Time, Key: key, ByWorker: open}
	lines := wire.AuditLines{About: one.About, Lines: one.Lines}.Whole()
	switch ends := one.Type == "" || one.Type == messages.AuditCall || one.Type == messages.AuditBatchRefused; {
	case !open:
		e.Key.Batch = cmp.Or(one.Token, e.Key.Batch)
	case ends:
		lines = nil
	default:
		lines = []messages.AuditRecord{one.AuditRecord}
	}
	if err != nil || len(lines) == 0 {
		e.Err = fmt.Errorf("message %d at %.200s is not an audit line", msg.Seq, msg.Subject)
		return []Entry{e}
	}
	found := make([]Entry, len(lines))
	for i, line := range lines {
		found[i] = e
		found[i].Line = line
	}
	return found
}

// keyOf returns the key in an audit subject. open means that workers write to the subject:
// only such subjects have four tokens. A session's subject has no batch: its third token is
// "ended".
func (l *Log) keyOf(subject string) (key wire.BatchKey, open bool) {
	tokens := strings.Split(strings.TrimPrefix(subject, strings.TrimSuffix(l.names.All(wire.VerbAudit), ">")), ".")
	if len(tokens) > 2 {
		key.Tenant, key.Session, key.Batch = tokens[0], tokens[1], tokens[2]
	}
	return key, len(tokens) == 4
}

// Read calls the function each for every selected line, in the order in which the lines were
// stored, until each returns false. For a message that cannot be read, each gets an Entry with
// Err. Read keeps one page in memory.
func (l *Log) Read(ctx context.Context, f Filter, each func(Entry) (more bool)) error {
	_, err := l.readFrom(ctx, f, bus.From{Time: f.Since}, each)
	return err
}

// readFrom is like Read, but it begins at a place in the stream. It returns the place where
// the next read has to begin.
func (l *Log) readFrom(ctx context.Context, f Filter, from bus.From, each func(Entry) (more bool)) (bus.From, error) {
	f.Key = f.key()
	words := f.requiredTexts()
	err := l.conn.Scan(ctx, l.names.Stream(bus.Audit), f.subject(l.names), from, func(msg bus.Msg) bool {
		from = bus.From{Seq: msg.Seq + 1}
		if !f.Until.IsZero() && !msg.Time.Before(f.Until) {
			return false
		}
		if !f.mayMatchBatch(msg) || !contains(msg.Data, words) {
			return true
		}
		for _, e := range l.entries(msg) {
			if f.matches(e) && !each(e) {
				return false
			}
		}
		return true
	})
	if err != nil {
		return from, fmt.Errorf("read the audit log: %w", err)
	}
	return from, nil
}

// readDelay is how long after the publication of a message a follower reads, because the
// message may be stored a moment after it is published. In any case a follower reads every
// readInterval.
const (
	readDelay    = 50 * time.Millisecond
	readInterval = 2 * time.Second
)

// Follow is like Read, but it continues with lines that are stored later. It returns nil when
// ctx ends. A published message only starts a read: Follow reads every line from the stream,
// once and in order, even after lost connections. It ignores Until. After the first read, it
// tries again after every error that is not terminal (bus.IsTerminal).
func (l *Log) Follow(ctx context.Context, f Filter, each func(Entry)) error {
	published := make(chan struct{}, 1)
	wake := func() {
		select {
		case published <- struct{}{}:
		default:
		}
	}
	unsubscribe, err := l.conn.Subscribe(f.subject(l.names), "", func(bus.Msg) { wake() })
	if err != nil {
		return err
	}
	defer unsubscribe()
	defer l.conn.OnReconnect(wake)()
	f.Until = time.Time{}
	from, err := l.readFrom(ctx, f, bus.From{Time: f.Since}, func(e Entry) bool { each(e); return true })
	if err != nil && ctx.Err() == nil {
		return err
	}
	ticker := time.NewTicker(readInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-published:
			select {
			case <-time.After(readDelay):
			case <-ctx.Done():
				return nil
			}
		}
		next, err := l.readFrom(ctx, f, from, func(e Entry) bool { each(e); return true })
		from = next
		if bus.IsTerminal(err) {
			return err
		}
	}
}
