// Package journal is the durable truth about batches and calls: what was claimed, what ended how, what
// was planned, what was replied. Deliveries, leases of the broker and notices are hints; this is what
// decides.
//
//	call.<t>.<s>.<b>.<i>    the states of one call that claims     CALLS    compare-and-set on the newest
//	plan.<t>.<s>.<b>        what a batch's calls are, and the      CALLS    the same
//	                        reads that a write builds on
//	hand.<t>.<s>.<b>.<i>    a call that must run alone after all   CALLS    the first wins
//	ctl.<t>.<s>             aborts and steering of a session       CALLS    in the order they came
//	result.<t>.<s>.<b>.<i>  the result of a call that does not     RESULTS  the first wins
//	final.<t>.<s>.<b>       the reply                              REPLIES  the first wins
//
// Calls that wait for a person are listed in a bucket of their own (approvals.go), which is made again from these.
//
// Every write is a compare-and-set on its own subject and carries a nonce. When it is not acknowledged the
// newest record is read, and package outcome decides: own, and the write happened; another's, and that one
// counts. Callers see those two outcomes, and errors. [bus.IsTerminal] is true only of errors that no retry
// cures: a conflict whose newest record could not be read is not one of them.
//
// The log of what is accepted and not finished (the BATCHES stream) is read here too: the oldest batch of
// a session is its head, and only heads are driven.
package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal/outcome"
	"github.com/toolfleet/toolfleet/messages"
)

// Journal reads and writes the records over one connection. It has no state of its own.
type Journal struct {
	conn  *bus.Conn
	names messages.Names
}

// New is the journal behind a connection.
func New(conn *bus.Conn) *Journal { return &Journal{conn, conn.Names()} }

// CallEntry is a stored record of a call.
type CallEntry struct {
	Key    messages.CallKey
	Seq    uint64 // of a claim: the fencing token
	Stored time.Time
	Record messages.CallRecord
}

// PlanEntry is a stored plan record.
type PlanEntry struct {
	Seq    uint64
	Record messages.PlanRecord
}

// Unreadable is the state of a record that cannot be read. Nobody writes it.
const Unreadable messages.CallState = "unreadable"

// Lost says that another writer's record is the newest, and what it is.
type Lost struct{ Newest CallEntry }

func (l *Lost) Error() string {
	return fmt.Sprintf("call %s: another record is the newest: %s at %d", l.Newest.Key, l.Newest.Record.State, l.Newest.Seq)
}

// Write appends a record to a call's journal behind the one at sequence last (0: as the first). The
// error is a *Lost when another writer was faster.
func (j *Journal) Write(ctx context.Context, key messages.CallKey, rec messages.CallRecord, last uint64) (seq uint64, err error) {
	rec.V = messages.Version
	began := time.Now()
	seq, err = j.conn.CompareAndSet(ctx, j.names.OfCall(messages.VerbCall, key), nil, messages.MustMarshal(rec), last)
	answer := answerTo(err)
	if answer.Final() {
		return seq, err
	}
	reading, done := afterwards(ctx, time.Since(began))
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

// answerTo is the answer to a write that ended with err.
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

// undecided is the error of a write that may be stored or not, with what the write and the read after it
// said. A conflict is told as text only: an error chain that holds it would end the caller's retries.
func undecided(write, read error) error {
	if errors.Is(write, bus.ErrConflict) {
		write = errors.New(write.Error())
	}
	return errors.Join(write, read)
}

// afterwards is a context for finding out what became of a write, also when the time for the write is up: it takes no
// longer than the write took.
func afterwards(ctx context.Context, took time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), min(max(took, 500*time.Millisecond), 5*time.Second))
}

// Newest is the newest record of a call, from the stream's leader. One that cannot be read is an error.
func (j *Journal) Newest(ctx context.Context, key messages.CallKey) (CallEntry, bool, error) {
	entry, found, err := j.newest(ctx, key)
	if err == nil && entry.Record.State == Unreadable {
		return CallEntry{}, false, fmt.Errorf("record %d of call %s cannot be read", entry.Seq, key)
	}
	return entry, found, err
}

// newest is Newest, where a record that cannot be read is [Unreadable].
func (j *Journal) newest(ctx context.Context, key messages.CallKey) (CallEntry, bool, error) {
	msg, err := j.conn.Last(ctx, j.names.Stream(bus.Calls), j.names.OfCall(messages.VerbCall, key))
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
	if err := json.Unmarshal(msg.Data, &entry.Record); err != nil {
		return CallEntry{}, fmt.Errorf("record %d of call %s: %w", msg.Seq, key, err)
	}
	return entry, nil
}

// WriteResult stores the result of a call that does not claim, and returns the one that is stored: the
// given one, or another's that was first.
func (j *Journal) WriteResult(ctx context.Context, key messages.CallKey, result messages.Result) (messages.Result, error) {
	subject := j.names.OfCall(messages.VerbResult, key)
	_, err := j.conn.CompareAndSet(ctx, subject, nil, messages.MustMarshal(result), 0)
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

// firstWins reports whether a write as the first of its subject is decided by what a read found there.
// Whose it is makes no difference: the first one counts.
func firstWins(answer outcome.Answer, found bool, readErr error) bool {
	newest := outcome.Newest{Read: readErr == nil}
	if found {
		newest.Seq = 1
	}
	return found && outcome.Of(answer, 0, newest) == outcome.Overtaken
}

// Result is the stored result of a call that does not claim.
func (j *Journal) Result(ctx context.Context, key messages.CallKey) (messages.Result, bool, error) {
	msg, err := j.conn.Last(ctx, j.names.Stream(bus.Results), j.names.OfCall(messages.VerbResult, key))
	if errors.Is(err, bus.ErrNotFound) {
		return messages.Result{}, false, nil
	}
	var result messages.Result
	if err == nil {
		err = json.Unmarshal(msg.Data, &result)
	}
	if err != nil {
		return messages.Result{}, false, fmt.Errorf("read the result of call %s: %w", key, err)
	}
	return result, true, nil
}

// WritePlan appends a plan record behind the one at sequence last and returns every record that the
// batch then has after last: the given one, or those of a coordinator that was faster.
func (j *Journal) WritePlan(ctx context.Context, key messages.BatchKey, rec messages.PlanRecord, last uint64) ([]PlanEntry, error) {
	if err := j.shrinkPlan(ctx, &rec); err != nil {
		return nil, err
	}
	seq, err := j.conn.CompareAndSet(ctx, j.names.Of(messages.VerbPlan, key), nil, messages.MustMarshal(rec), last)
	answer := answerTo(err)
	if answer == outcome.Stored {
		return []PlanEntry{{seq, rec}}, nil
	}
	all, readErr := j.Plans(ctx, key)
	newer := slices.IndexFunc(all, func(entry PlanEntry) bool { return entry.Seq > last })
	newest := outcome.Newest{Read: readErr == nil}
	if newer >= 0 {
		newest.Seq = all[newer].Seq
	}
	if outcome.Of(answer, last, newest) == outcome.Overtaken { // also by an earlier try of ours: its record is in the list
		return all[newer:], nil
	}
	return nil, fmt.Errorf("store plan of batch %s: %w", key, undecided(err, readErr))
}

// Plans is every plan record of a batch, in order.
func (j *Journal) Plans(ctx context.Context, key messages.BatchKey) ([]PlanEntry, error) {
	msgs, err := j.conn.All(ctx, j.names.Stream(bus.Calls), j.names.Of(messages.VerbPlan, key))
	if err != nil {
		return nil, fmt.Errorf("read plan of batch %s: %w", key, err)
	}
	plans := make([]PlanEntry, len(msgs))
	for i, msg := range msgs {
		plans[i].Seq = msg.Seq
		if err := json.Unmarshal(msg.Data, &plans[i].Record); err != nil {
			return nil, fmt.Errorf("plan record %d of batch %s: %w: %w", msg.Seq, key, bus.ErrCorrupt, err)
		}
		if err := j.wholePlan(ctx, &plans[i].Record); err != nil {
			return nil, fmt.Errorf("plan record %d of batch %s: %w", msg.Seq, key, err)
		}
	}
	return plans, nil
}

// ResultEntry is the stored result of a call that does not claim.
type ResultEntry struct {
	Key    messages.CallKey
	Result messages.Result
}

// Known is what the journal holds about calls of a batch: the newest record of those that claim, the result of
// those that do not, and which were handed back. Unread says what is there and cannot be read; a record of which that
// is so is [Unreadable].
type Known struct {
	Records []CallEntry
	Results []ResultEntry
	Hands   []messages.CallKey
	Unread  []error
}

// Calls is what the journal holds now about all calls of a batch, or about those at the given indices.
func (j *Journal) Calls(ctx context.Context, key messages.BatchKey, indices ...int) (Known, error) {
	filters := func(verbs ...messages.Verb) []string {
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
	if len(indices) > 0 { // a poll, which looks again: what it misses now it finds then
		each = j.conn.Glance
	}
	var known Known
	calls, err := each(ctx, j.names.Stream(bus.Calls), filters(messages.VerbCall, messages.VerbHand)...)
	if err != nil {
		return known, fmt.Errorf("read the journal of batch %s: %w", key, err)
	}
	results, err := each(ctx, j.names.Stream(bus.Results), filters(messages.VerbResult)...)
	if err != nil {
		return known, fmt.Errorf("read the results of batch %s: %w", key, err)
	}
	for _, msg := range append(calls, results...) {
		if err := j.know(&known, msg); err != nil {
			known.Unread = append(known.Unread, err)
		}
	}
	return known, nil
}

// know adds one message to what is known.
func (j *Journal) know(known *Known, msg bus.Msg) error {
	verb, key, err := j.names.Call(msg.Subject)
	if err != nil {
		return err
	}
	switch verb {
	case messages.VerbHand:
		known.Hands = append(known.Hands, key)
	case messages.VerbResult:
		var result messages.Result
		if err := json.Unmarshal(msg.Data, &result); err != nil {
			return fmt.Errorf("result at %.200s: %w", msg.Subject, err)
		}
		known.Results = append(known.Results, ResultEntry{key, result})
	default:
		entry, err := j.callEntry(msg)
		if err != nil { // it is there all the same, and whoever ends the call does so behind it
			entry = unreadable(key, msg)
		}
		known.Records = append(known.Records, entry)
		return err
	}
	return nil
}

func unreadable(key messages.CallKey, msg bus.Msg) CallEntry {
	return CallEntry{Key: key, Seq: msg.Seq, Stored: msg.Time, Record: messages.CallRecord{State: Unreadable}}
}

// WriteHandBack notes that the frozen input of a call is stricter than its plan. The first note counts.
func (j *Journal) WriteHandBack(ctx context.Context, key messages.CallKey, back messages.HandBack) error {
	back.V = messages.Version
	_, err := j.conn.CompareAndSet(ctx, j.names.OfCall(messages.VerbHand, key), nil, messages.MustMarshal(back), 0)
	if err != nil && !errors.Is(err, bus.ErrConflict) {
		return fmt.Errorf("hand back call %s: %w", key, err)
	}
	return nil
}

// acceptedHeader of a stored reply is the place in the log of the batch that it answers, and when that was stored there. One
// that is submitted again later has another place, and in a log that was made anew another time.
const acceptedHeader = "Toolfleet-Accepted"

func (a Accepted) mark() string {
	return strconv.FormatUint(a.Seq, 10) + " " + a.Stored.UTC().Format(time.RFC3339Nano)
}

// answered is the place and the time of the batch that a stored reply answers.
func answered(reply bus.Msg) (seq uint64, stored time.Time) {
	place, at, _ := strings.Cut(reply.Header.Get(acceptedHeader), " ")
	seq, err := strconv.ParseUint(place, 10, 64)
	if err == nil {
		stored, err = time.Parse(time.RFC3339Nano, at)
	}
	if err != nil {
		return 0, time.Time{}
	}
	return seq, stored
}

// WriteReply stores the reply of a batch and returns what is stored: these bytes, or the ones that were
// first. The server publishes them on the reply subject by itself.
func (j *Journal) WriteReply(ctx context.Context, a Accepted, reply messages.Reply) ([]byte, error) {
	key, body := a.Key, messages.MustMarshal(reply)
	if len(body) > j.inline() {
		ref, err := j.conn.PutObject(ctx, body)
		if err != nil {
			return nil, fmt.Errorf("store the large reply of batch %s: %w", key, err)
		}
		reply.Reinjection, reply.Results, reply.Steering, reply.Ref = json.RawMessage("null"), []messages.Result{}, nil, &ref
		body = messages.MustMarshal(reply)
	}
	header := bus.Header{acceptedHeader: {a.mark()}}
	_, err := j.conn.CompareAndSet(ctx, j.names.Of(messages.VerbFinal, key), header, body, 0)
	answer := answerTo(err)
	if answer == outcome.Stored {
		return body, nil
	}
	stored, found, readErr := j.Reply(ctx, key)
	if firstWins(answer, found, readErr) {
		return stored, nil
	}
	return nil, fmt.Errorf("store the reply of batch %s: %w", key, undecided(err, readErr))
}

// Reply is the stored reply of a batch as it was published; a large one is a ref.
func (j *Journal) Reply(ctx context.Context, key messages.BatchKey) ([]byte, bool, error) {
	stored, found, err := j.replyTo(ctx, key)
	return stored.Data, found, err
}

// StoredReply is the stored reply to a batch in the log.
type StoredReply struct {
	Body   []byte
	Stored time.Time
	Own    bool // it is that batch's own; else it answered an earlier one with the same id
}

// ReplyTo is Reply for a batch in the log.
func (j *Journal) ReplyTo(ctx context.Context, a Accepted) (reply StoredReply, found bool, err error) {
	msg, found, err := j.replyTo(ctx, a.Key)
	return StoredReply{msg.Data, msg.Time, found && msg.Header.Get(acceptedHeader) == a.mark()}, found, err
}

func (j *Journal) replyTo(ctx context.Context, key messages.BatchKey) (bus.Msg, bool, error) {
	msg, err := j.conn.Last(ctx, j.names.Stream(bus.Replies), j.names.Of(messages.VerbFinal, key))
	if errors.Is(err, bus.ErrNotFound) {
		return bus.Msg{}, false, nil
	}
	if err != nil {
		return bus.Msg{}, false, fmt.Errorf("read the reply of batch %s: %w", key, err)
	}
	return msg, true, nil
}

// FullReply is the reply with a ref followed to the body.
func (j *Journal) FullReply(ctx context.Context, stored []byte) ([]byte, error) {
	var reply messages.Reply
	if err := json.Unmarshal(stored, &reply); err != nil || reply.Ref == nil {
		return stored, err
	}
	return j.conn.GetObject(ctx, *reply.Ref)
}

// Accepted is a batch in the log.
type Accepted struct {
	Key    messages.BatchKey
	Seq    uint64
	Stored time.Time
	Header bus.Header
	Body   []byte
}

// Head is the oldest unfinished batch of a session: the only one that may be driven.
func (j *Journal) Head(ctx context.Context, tenant, session string) (Accepted, bool, error) {
	return j.first(ctx, j.names.OfSession(messages.VerbBatch, tenant, session)+".*")
}

// Open is the batch itself while it is not finished.
func (j *Journal) Open(ctx context.Context, key messages.BatchKey) (Accepted, bool, error) {
	return j.first(ctx, j.names.Of(messages.VerbBatch, key))
}

func (j *Journal) first(ctx context.Context, filter string) (Accepted, bool, error) {
	msg, err := j.conn.First(ctx, j.names.Stream(bus.Batches), filter)
	if errors.Is(err, bus.ErrNotFound) {
		return Accepted{}, false, nil
	}
	if err != nil {
		return Accepted{}, false, fmt.Errorf("read the log for %s: %w", filter, err)
	}
	a, err := j.Accepted(msg)
	return a, err == nil, err
}

// Accepted reads a message of the log. The error means that its subject holds no address.
func (j *Journal) Accepted(msg bus.Msg) (Accepted, error) {
	_, key, err := j.names.Batch(msg.Subject)
	return Accepted{Key: key, Seq: msg.Seq, Stored: msg.Time, Header: msg.Header, Body: msg.Data}, err
}

// Remove takes a finished batch out of the log. After a restart the server can give the place of a batch that
// has left the log to a new one, so the place is looked at first.
func (j *Journal) Remove(ctx context.Context, a Accepted) error {
	there, err := j.conn.NewestAt(ctx, j.names.Stream(bus.Batches), a.Seq)
	if errors.Is(err, bus.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("take batch %s out of the log: %w", a.Key, err)
	}
	if there.Subject != j.names.Of(messages.VerbBatch, a.Key) || !there.Time.Equal(a.Stored) {
		return nil // it has left the log
	}
	if err := j.conn.Delete(ctx, j.names.Stream(bus.Batches), a.Seq); err != nil {
		return fmt.Errorf("take batch %s out of the log: %w", a.Key, err)
	}
	return nil
}

// Bury sets aside a message that nobody can process, with the reason. It is kept for people to look at, as
// much of it as fits into a message.
func (j *Journal) Bury(ctx context.Context, msg bus.Msg, reason string) error {
	buried := messages.Buried{
		V: messages.Version, Subject: msg.Subject, Reason: reason, Header: msg.Header, Body: msg.Data, Size: len(msg.Data), Stored: msg.Time,
	}
	body := messages.MustMarshal(buried)
	if len(body) > j.inline() {
		buried.Header, buried.Body = nil, msg.Data[:min(len(msg.Data), j.inline()/2)]
		body = messages.MustMarshal(buried)
	}
	if _, err := j.conn.Append(ctx, j.names.Dead(), nil, body); err != nil {
		return fmt.Errorf("set aside message of %.200s: %w", msg.Subject, err)
	}
	return nil
}

// Records is every record of a call, the oldest first.
func (j *Journal) Records(ctx context.Context, key messages.CallKey) ([]CallEntry, error) {
	msgs, err := j.conn.All(ctx, j.names.Stream(bus.Calls), j.names.OfCall(messages.VerbCall, key))
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

// Input is the arguments with a hash that the records of a call hold, where they are not those that were sent; nil when no
// record holds them.
func (j *Journal) Input(ctx context.Context, key messages.CallKey, argsHash string) (json.RawMessage, error) {
	entries, err := j.Records(ctx, key)
	for _, entry := range entries {
		inputs := []json.RawMessage{entry.Record.Input}
		if q := entry.Record.Approval; q != nil {
			inputs = append(inputs, q.Input)
		}
		for _, input := range inputs {
			if canonical, err := messages.CanonicalJSON(input); err == nil && messages.Digest(canonical) == argsHash {
				return input, nil
			}
		}
	}
	return nil, err
}
