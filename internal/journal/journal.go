// Package journal is the durable truth about batches and calls: what was planned and claimed,
// how each call ended, and what was replied. If a delivery, a lease of the broker or a notice
// contradicts the journal, the journal counts.
//
//	call.<t>.<s>.<b>.<i>    the states of a claimed call        CALLS    each follows the newest
//	plan.<t>.<s>.<b>        the plan of a batch, and results    CALLS    each follows the newest
//	                        of reads that a write builds on
//	hand.<t>.<s>.<b>.<i>    a call that was handed back         CALLS    the first counts
//	ctl.<t>.<s>             aborts and steering of a session    CALLS    in the order of arrival
//	result.<t>.<s>.<b>.<i>  the result of a call that ran       RESULTS  the first counts
//	                        without a claim
//	final.<t>.<s>.<b>       the reply                           REPLIES  the first counts
//
// Calls that wait for a person are also listed in a bucket (approvals.go), which can be made
// again from these subjects.
//
// Every write is a compare-and-set on its subject, except that controls and dead letters are
// appended. The acknowledgement of a write can be lost. If that happens to a call record, a
// result, a plan or a reply, the journal reads the newest record of the subject, and package
// outcome decides. If the newest record is the one that was written, the write succeeded (a
// call record has a nonce by which the writer recognizes it). If it is another writer's, that
// record counts. The caller gets one of these two outcomes, or an error.
//
// [bus.IsTerminal] is true for an error of this package only if no retry can succeed. After a
// conflict it is false if the newest record could not be read.
//
// This package also reads the log: the BATCHES stream of accepted batches that are not
// finished. The head of a session is its oldest batch there. The coordinator drives the
// session from its head.
package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/objects"
	"github.com/toolfleet/toolfleet/internal/journal/outcome"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Store has the broker's streams. [bus.Conn] implements it and documents the methods. In the
// simulation, the model of the broker implements it.
type Store interface {
	Names() wire.Names
	MaxBody() int
	Now(ctx context.Context) time.Time

	CompareAndSet(ctx context.Context, subject string, h bus.Header, data []byte, last uint64) (seq uint64, err error)
	Append(ctx context.Context, subject string, h bus.Header, data []byte) (seq uint64, err error)
	Delete(ctx context.Context, stream string, seq uint64) error

	First(ctx context.Context, stream, filter string) (bus.Msg, error)
	Next(ctx context.Context, stream, filter string, after uint64) (bus.Msg, error)
	Last(ctx context.Context, stream, subject string) (bus.Msg, error)
	At(ctx context.Context, stream string, seq uint64) (bus.Msg, error)
	NewestAt(ctx context.Context, stream string, seq uint64) (bus.Msg, error)
	All(ctx context.Context, stream, filter string) ([]bus.Msg, error)
	LastOfEach(ctx context.Context, stream string, filters ...string) ([]bus.Msg, error)
	Glance(ctx context.Context, stream string, filters ...string) ([]bus.Msg, error)
	Scan(ctx context.Context, stream, filter string, from bus.From, each func(bus.Msg) (more bool)) error
}

// Objects stores bodies that are too large for a record. [objects.Store] implements it and
// documents the methods.
type Objects interface {
	Put(ctx context.Context, data []byte) (messages.Ref, error)
	Get(ctx context.Context, ref messages.Ref) ([]byte, error)
}

// Clock measures requests and limits their time. A process uses its own clock. The simulation
// uses a simulated one.
type Clock interface {
	Now() time.Time
	WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc)
}

// Journal reads and writes the records in a store. It has no state of its own.
type Journal struct {
	conn    Store
	objects Objects
	clock   Clock
	names   wire.Names
}

// New returns the journal of the fleet that conn is connected to.
func New(conn *bus.Conn) *Journal { return In(conn, objects.In(conn), processClock{}) }

// In returns the journal in the given store.
func In(store Store, objects Objects, clock Clock) *Journal {
	return &Journal{store, objects, clock, store.Names()}
}

type processClock struct{}

func (processClock) Now() time.Time { return time.Now() }

func (processClock) WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d)
}

// CallEntry is a stored record of a call.
type CallEntry struct {
	Key    wire.CallKey
	Seq    uint64 // the sequence of a claim is its fencing token
	Stored time.Time
	Record wire.CallRecord
}

// Unreadable is the state of a record that cannot be read. No stored record has this state.
const Unreadable wire.CallState = "unreadable"

// Lost means that another writer has written first: its record is now the newest of the call.
type Lost struct{ Newest CallEntry }

func (l *Lost) Error() string {
	return fmt.Sprintf("call %s: another record is the newest: %s at %d",
		l.Newest.Key, l.Newest.Record.State, l.Newest.Seq)
}

// Write appends a record to a call's journal and returns its sequence. The record must follow
// the record at sequence last, or be the first record if last is 0. If another writer has
// written first, the error is a *Lost.
func (j *Journal) Write(
	ctx context.Context, key wire.CallKey, rec wire.CallRecord, last uint64,
) (seq uint64, err error) {
	rec.V = messages.Version
	began := j.clock.Now()
	seq, err = j.conn.CompareAndSet(ctx, j.names.OfCall(wire.VerbCall, key), nil, wire.Encode(rec), last)
	answer := answerTo(err)
	if answer.Final() {
		return seq, err
	}
	reading, done := j.readContext(ctx, j.clock.Now().Sub(began))
	defer done()
	newest, found, readErr := j.newest(reading, key)
	seen := outcome.Newest{Read: readErr == nil, Seq: newest.Seq, Own: found && newest.Record.Nonce == rec.Nonce}
	switch outcome.Of(answer, last, seen) {
	case outcome.Won:
		return newest.Seq, nil
	case outcome.Overtaken:
		return 0, &Lost{newest}
	}
	return 0, fmt.Errorf("write %s record of call %s: %w", rec.State, key, undecided(err, readErr))
}

// answerTo classifies the error of a write.
func answerTo(err error) outcome.Answer {
	switch {
	case err == nil:
		return outcome.Stored
	case errors.Is(err, bus.ErrConflict):
		return outcome.Conflict
	case bus.IsTerminal(err):
		return outcome.Impossible
	}
	return outcome.Unknown
}

// undecided returns the error of a write that may or may not be stored. It joins the errors of
// the write and of the read after it. It hides a bus.ErrConflict from errors.Is, because
// callers do not retry after that error.
func undecided(write, read error) error {
	if errors.Is(write, bus.ErrConflict) {
		write = errors.New(write.Error())
	}
	return errors.Join(write, read)
}

// readContext returns a context for the read that decides what became of a write. It does not
// end when ctx ends. The read may take as long as the write has taken, but at least 500 ms and
// at most 5 s.
func (j *Journal) readContext(ctx context.Context, took time.Duration) (context.Context, context.CancelFunc) {
	return j.clock.WithTimeout(context.WithoutCancel(ctx), min(max(took, 500*time.Millisecond), 5*time.Second))
}

// Newest returns the newest record of a call, from the stream's leader. If that record
// cannot be read, Newest returns an error.
func (j *Journal) Newest(ctx context.Context, key wire.CallKey) (CallEntry, bool, error) {
	entry, found, err := j.newest(ctx, key)
	if err == nil && entry.Record.State == Unreadable {
		return CallEntry{}, false, fmt.Errorf("record %d of call %s cannot be read", entry.Seq, key)
	}
	return entry, found, err
}

// newest is like Newest, but returns a record that cannot be read as [Unreadable].
func (j *Journal) newest(ctx context.Context, key wire.CallKey) (CallEntry, bool, error) {
	msg, err := j.conn.Last(ctx, j.names.Stream(bus.Calls), j.names.OfCall(wire.VerbCall, key))
	if errors.Is(err, bus.ErrNotFound) {
		return CallEntry{}, false, nil
	}
	if err != nil {
		return CallEntry{}, false, fmt.Errorf("read the journal of call %s: %w", key, err)
	}
	entry, err := j.callEntry(msg)
	if err != nil {
		return unreadable(key, msg), true, nil
	}
	return entry, true, nil
}

func (j *Journal) callEntry(msg bus.Msg) (CallEntry, error) {
	_, key, err := j.names.Call(msg.Subject)
	if err != nil {
		return CallEntry{}, err
	}
	entry := CallEntry{Key: key, Seq: msg.Seq, Stored: msg.Time}
	if err := rawjson.Unmarshal(msg.Data, &entry.Record); err != nil {
		return CallEntry{}, fmt.Errorf("record %d of call %s: %w", msg.Seq, key, err)
	}
	return entry, nil
}

// WriteResult stores the result of a call that runs without a claim. It returns the result
// that is then stored: this one, or an earlier one.
func (j *Journal) WriteResult(ctx context.Context, key wire.CallKey, result messages.Result) (messages.Result, error) {
	subject := j.names.OfCall(wire.VerbResult, key)
	_, err := j.conn.CompareAndSet(ctx, subject, nil, wire.Encode(result), 0)
	answer := answerTo(err)
	if answer == outcome.Stored {
		return result, nil
	}
	stored, found, readErr := j.Result(ctx, key)
	if firstWins(answer, found, readErr) {
		return stored, nil
	}
	return messages.Result{}, fmt.Errorf("store the result of call %s: %w", key, undecided(err, readErr))
}

// firstWins reports whether the read after a write shows what became of the write. It does if
// the subject has a record, because the first record counts, whether this writer or another
// wrote it.
func firstWins(answer outcome.Answer, found bool, readErr error) bool {
	newest := outcome.Newest{Read: readErr == nil}
	if found {
		newest.Seq = 1
	}
	return found && outcome.Of(answer, 0, newest) == outcome.Overtaken
}

// Result returns the stored result of a call that runs without a claim.
func (j *Journal) Result(ctx context.Context, key wire.CallKey) (messages.Result, bool, error) {
	msg, err := j.conn.Last(ctx, j.names.Stream(bus.Results), j.names.OfCall(wire.VerbResult, key))
	if errors.Is(err, bus.ErrNotFound) {
		return messages.Result{}, false, nil
	}
	var result messages.Result
	if err == nil {
		err = rawjson.Unmarshal(msg.Data, &result)
	}
	if err != nil {
		return messages.Result{}, false, fmt.Errorf("read the result of call %s: %w", key, err)
	}
	return result, true, nil
}

// ResultEntry is the stored result of a call that runs without a claim.
type ResultEntry struct {
	Key    wire.CallKey
	Result messages.Result
}

// Known is what the journal has about calls of a batch: the newest record of each call that
// has one, the result of each call that ran without a claim, and which calls were handed back.
// Unread has an error for each message that cannot be read. If such a message is a call
// record, Records has it as [Unreadable].
type Known struct {
	Records []CallEntry
	Results []ResultEntry
	Hands   []wire.CallKey
	Unread  []error
}

// Calls returns what the journal has about all calls of a batch, or about the calls at the
// given indices. With indices, the answer may be out of date.
func (j *Journal) Calls(ctx context.Context, key wire.BatchKey, indices ...int) (Known, error) {
	filters := func(verbs ...wire.Verb) []string {
		var filters []string
		for _, v := range verbs {
			if len(indices) == 0 {
				filters = append(filters, j.names.Of(v, key)+".*")
			}
			for _, i := range indices {
				filters = append(filters, j.names.OfCall(v, key.Call(i)))
			}
		}
		return filters
	}
	each := j.conn.LastOfEach
	// Only polls give indices. They may read from any replica: what one poll misses, the next
	// poll finds.
	if len(indices) > 0 {
		each = j.conn.Glance
	}
	var known Known
	calls, err := each(ctx, j.names.Stream(bus.Calls), filters(wire.VerbCall, wire.VerbHand)...)
	if err != nil {
		return known, fmt.Errorf("read the journal of batch %s: %w", key, err)
	}
	results, err := each(ctx, j.names.Stream(bus.Results), filters(wire.VerbResult)...)
	if err != nil {
		return known, fmt.Errorf("read the results of batch %s: %w", key, err)
	}
	for _, msg := range append(calls, results...) {
		if err := j.addMessage(&known, msg); err != nil {
			known.Unread = append(known.Unread, err)
		}
	}
	return known, nil
}

// addMessage adds the content of one message of the journal to known.
func (j *Journal) addMessage(known *Known, msg bus.Msg) error {
	verb, key, err := j.names.Call(msg.Subject)
	if err != nil {
		return err
	}
	switch verb {
	case wire.VerbHand:
		known.Hands = append(known.Hands, key)
	case wire.VerbResult:
		var result messages.Result
		if err := rawjson.Unmarshal(msg.Data, &result); err != nil {
			return fmt.Errorf("result at %.200s: %w", msg.Subject, err)
		}
		known.Results = append(known.Results, ResultEntry{key, result})
	default:
		entry, err := j.callEntry(msg)
		// The sequence of an unreadable record is still needed, because the record that ends
		// the call must follow it.
		if err != nil {
			entry = unreadable(key, msg)
		}
		known.Records = append(known.Records, entry)
		return err
	}
	return nil
}

func unreadable(key wire.CallKey, msg bus.Msg) CallEntry {
	return CallEntry{Key: key, Seq: msg.Seq, Stored: msg.Time, Record: wire.CallRecord{State: Unreadable}}
}

// WriteHandBack records that a worker has handed a call back: with the input that hooks have
// changed, the call must run alone. The first such record of a call counts.
func (j *Journal) WriteHandBack(ctx context.Context, key wire.CallKey, back wire.HandBack) error {
	back.V = messages.Version
	_, err := j.conn.CompareAndSet(ctx, j.names.OfCall(wire.VerbHand, key), nil, rawjson.MustMarshal(back), 0)
	if err != nil && !errors.Is(err, bus.ErrConflict) {
		return fmt.Errorf("hand back call %s: %w", key, err)
	}
	return nil
}

// Accepted is a batch in the log.
type Accepted struct {
	Key    wire.BatchKey
	Seq    uint64
	Stored time.Time
	Header bus.Header
	Body   []byte
}

// Head returns the oldest batch of a session in the log.
func (j *Journal) Head(ctx context.Context, tenant, session string) (Accepted, bool, error) {
	return j.Next(ctx, tenant, session, 0)
}

// Open returns a batch that is still in the log.
func (j *Journal) Open(ctx context.Context, key wire.BatchKey) (Accepted, bool, error) {
	msg, err := j.conn.First(ctx, j.names.Stream(bus.Batches), j.names.Of(wire.VerbBatch, key))
	if errors.Is(err, bus.ErrNotFound) {
		return Accepted{}, false, nil
	}
	if err != nil {
		return Accepted{}, false, fmt.Errorf("read the log for batch %s: %w", key, err)
	}
	a, err := j.Accepted(msg)
	return a, err == nil, err
}

// Next returns the oldest batch of a session in the log after a sequence. After 0 this is the
// head. Next leaves out messages that are not batches; a coordinator makes them dead letters.
func (j *Journal) Next(ctx context.Context, tenant, session string, after uint64) (Accepted, bool, error) {
	filter := j.names.OfSession(wire.VerbBatch, tenant, session) + ".*"
	for {
		msg, err := j.conn.Next(ctx, j.names.Stream(bus.Batches), filter, after)
		if errors.Is(err, bus.ErrNotFound) {
			return Accepted{}, false, nil
		}
		if err != nil {
			return Accepted{}, false, fmt.Errorf("read the log for %s: %w", filter, err)
		}
		if a, err := j.Accepted(msg); err == nil {
			return a, true, nil
		}
		after = msg.Seq
	}
}

// Accepted decodes a message of the log. It returns an error if the message's subject is not
// the subject of a batch.
func (j *Journal) Accepted(msg bus.Msg) (Accepted, error) {
	_, key, err := j.names.Batch(msg.Subject)
	return Accepted{Key: key, Seq: msg.Seq, Stored: msg.Time, Header: msg.Header, Body: msg.Data}, err
}

// Remove removes a finished batch from the log. It first checks that the batch is still at its
// sequence, because a server that has restarted may have given the sequence to a new batch.
func (j *Journal) Remove(ctx context.Context, a Accepted) error {
	there, err := j.conn.NewestAt(ctx, j.names.Stream(bus.Batches), a.Seq)
	if errors.Is(err, bus.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("take batch %s out of the log: %w", a.Key, err)
	}
	if there.Subject != j.names.Of(wire.VerbBatch, a.Key) || !there.Time.Equal(a.Stored) {
		return nil // the batch has left the log already
	}
	if err := j.conn.Delete(ctx, j.names.Stream(bus.Batches), a.Seq); err != nil {
		return fmt.Errorf("take batch %s out of the log: %w", a.Key, err)
	}
	return nil
}

// DeadLetter stores a message that cannot be processed as a dead letter for people. The dead
// letter has the reason and as much of the message as it has room for.
func (j *Journal) DeadLetter(ctx context.Context, msg bus.Msg, reason string) error {
	letter := wire.DeadLetter{
		V: messages.Version, Subject: msg.Subject, Reason: reason, Header: msg.Header, Body: msg.Data, Size: len(msg.Data), Stored: msg.Time,
	}
	body := rawjson.MustMarshal(letter)
	if len(body) > j.inline() {
		letter.Header, letter.Body = nil, msg.Data[:min(len(msg.Data), j.inline()/2)]
		body = rawjson.MustMarshal(letter)
	}
	if _, err := j.conn.Append(ctx, j.names.Dead(), nil, body); err != nil {
		return fmt.Errorf("dead-letter the message of %.200s: %w", msg.Subject, err)
	}
	return nil
}

// Records returns every record of a call, the oldest first. A record that cannot be read has
// the state [Unreadable].
func (j *Journal) Records(ctx context.Context, key wire.CallKey) ([]CallEntry, error) {
	msgs, err := j.conn.All(ctx, j.names.Stream(bus.Calls), j.names.OfCall(wire.VerbCall, key))
	if err != nil {
		return nil, fmt.Errorf("read the records of call %s: %w", key, err)
	}
	entries := make([]CallEntry, len(msgs))
	for i, msg := range msgs {
		if entries[i], err = j.callEntry(msg); err != nil {
			entries[i] = unreadable(key, msg)
		}
	}
	return entries, nil
}

// Input returns the arguments with this hash from the records of a call, or nil if no record
// has them. A record has arguments only if they differ from the agent's.
func (j *Journal) Input(ctx context.Context, key wire.CallKey, argsHash string) (json.RawMessage, error) {
	entries, err := j.Records(ctx, key)
	for _, entry := range entries {
		inputs := []json.RawMessage{entry.Record.Input}
		if q := entry.Record.Approval; q != nil {
			inputs = append(inputs, q.Input)
		}
		for _, input := range inputs {
			if canonical, err := rawjson.Canonical(input); err == nil && messages.Digest(canonical) == argsHash {
				return input, nil
			}
		}
	}
	return nil, err
}
