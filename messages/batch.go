package messages

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"

	"github.com/toolfleet/toolfleet/internal/rawjson"
)

// MaxID is the greatest length of an id, in bytes. Ids are bounded because every record about
// a call repeats them. Records cut a tool's name to the same length.
const MaxID = 8 << 10

// MaxCalls is how many calls one batch may hold.
const MaxCalls = 512

// Batch is what an agent publishes: its model's assistant message, unchanged, and the session it
// belongs to.
type Batch struct {
	// V is the version of the message format: [Version]. Package client sets it, and JSON may leave
	// it out.
	V int `json:"v"`
	// ID is the idempotency key, for as long as replies are kept. The same id with the same body
	// gets the stored reply and runs nothing. The same id with another body is refused.
	ID BatchID `json:"id"`
	// Session is the conversation. Its writes run one at a time, in the order in which their
	// batches were stored. Reads of a later batch may run while an earlier batch still runs, if
	// they need not wait for its writes.
	Session SessionID `json:"session"`
	// Provider names the dialect of Message, which is the model's message as it came.
	Provider Provider        `json:"provider"`
	Message  json.RawMessage `json:"message"`
	// TimeoutMS limits the time in which calls of the batch may run, in milliseconds. Time in which
	// it only waits, for people or for earlier batches, does not count. 0: no limit.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
	// Catalogue is the digest of the catalogue that the model was given. The calls use the versions
	// of tools in it. "": they use the current versions.
	Catalogue string `json:"catalogue,omitempty"`
	// Round counts the batches of one request of the user, for metrics, traces and the audit log;
	// 0: the agent does not count.
	Round int `json:"round,omitempty"`
	// Labels are the agent's own words about the batch, at most [MaxLabels]. Rules, hooks, tools,
	// questions, start events and the audit log show them. Nobody checks that they are true.
	Labels map[string]string `json:"labels,omitempty"`
}

// Encode returns the batch as it is published.
func (b Batch) Encode() ([]byte, error) {
	body, err := rawjson.Marshal(b)
	if err == nil || rawjson.CheckSyntax(b.Message) != nil {
		return body, err
	}
	// encoding/json does not write a message that is nested deeper than 10,000 levels. Such a
	// message is put in as it is.
	message := b.Message
	b.Message = nil
	members, err := rawjson.Members(rawjson.MustMarshal(b))
	members["message"] = message
	return rawjson.JoinMembers(members), err
}

// maxProvider is the greatest length of a provider's name, in bytes: replies and errors
// repeat it.
const maxProvider = 64

// DecodeBatch reads a batch. The error is a *Refusal that says what is wrong and where. The
// batch then has the members that could be read, so that the refusal can name the batch.
// DecodeBatch checks only that the message is JSON. The provider's codec reads the message
// later, and knows which mistakes concern only one call.
func DecodeBatch(body []byte) (Batch, error) {
	var b Batch
	members, err := envelope(body)
	for _, f := range []struct {
		name string
		into any
	}{
		{"v", &b.V}, {"id", &b.ID}, {"session", &b.Session}, {"provider", &b.Provider},
		{"timeout_ms", &b.TimeoutMS}, {"round", &b.Round}, {"labels", &b.Labels},
		{"catalogue", &b.Catalogue},
	} {
		if raw, ok := members[f.name]; ok {
			err = cmp.Or(err, readMember(f.name, raw, f.into))
		}
	}
	b.Message = members["message"]
	if err == nil {
		err = checkLabels(b.Labels)
	}
	provider := len(b.Provider)
	if provider > maxProvider {
		b.Provider = ""
	}
	switch {
	case err != nil:
		return b, malformedBatch("%v", err)
	case provider > maxProvider:
		return b, malformedBatch("provider has %d bytes; the limit is %d", provider, maxProvider)
	case b.V != Version && members["v"] != nil:
		return b, malformedBatch("v is %d; this coordinator speaks %d", b.V, Version)
	case b.ID == "":
		return b, malformedBatch("id is missing or empty%s", stranger(body))
	case b.Session == "":
		return b, malformedBatch("session is missing or empty%s", stranger(body))
	case len(b.Message) == 0:
		return b, malformedBatch("message is missing%s", stranger(body))
	case len(b.ID) > MaxID || len(b.Session) > MaxID:
		return b, &Refusal{Class: ClassTooLarge, Message: fmt.Sprintf("batch: id has %d bytes and session %d; the limit is %d", len(b.ID), len(b.Session), MaxID)}
	case b.TimeoutMS < 0:
		return b, malformedBatch("timeout_ms is negative")
	case b.Catalogue != "" && !IsDigest(b.Catalogue):
		return b, malformedBatch("catalogue %.80q is no digest: want the 64 hex digits that came with the definitions of the tools", b.Catalogue)
	}
	b.V = Version
	return b, nil
}

// batchMembers are the members of a batch.
var batchMembers = []string{"v", "id", "session", "provider", "message", "timeout_ms", "catalogue", "round", "labels"}

// stranger names the first member of the body that batches do not have. The error about a
// missing member shows that name, because it may be the missing member, misspelt.
func stranger(body []byte) string {
	name, at := rawjson.Stranger(body, batchMembers...)
	if at == 0 {
		return ""
	}
	return fmt.Sprintf("; %.80q at byte %d is no member of a batch", name, at)
}

// MissingMember returns the error about a body that lacks a member of a batch.
func MissingMember(name string, body []byte) *Refusal {
	return malformedBatch("%s is missing%s", name, stranger(body))
}

func malformedBatch(format string, args ...any) *Refusal {
	return &Refusal{Class: ClassMalformedMessage, Message: "batch: " + fmt.Sprintf(format, args...)}
}

// envelope returns the members of a batch. If the body is not JSON, it returns the members before
// the mistake.
func envelope(body []byte) (members map[string]json.RawMessage, err error) {
	if err := rawjson.CheckSyntax(body); err != nil {
		return firstMembers(body), err
	}
	return rawjson.Members(body)
}

// firstMembers returns the members of an object up to the place where its text stops being JSON. It
// leaves out a key that appears twice.
func firstMembers(body []byte) map[string]json.RawMessage {
	members, seen := map[string]json.RawMessage{}, map[string]bool{}
	decoder := json.NewDecoder(bytes.NewReader(body))
	if open, _ := decoder.Token(); open != json.Delim('{') {
		return nil
	}
	for decoder.More() {
		key, _ := decoder.Token()
		name, ok := key.(string)
		var value json.RawMessage
		if !ok || decoder.Decode(&value) != nil {
			break
		}
		if members[name] = value; seen[name] {
			delete(members, name)
		}
		seen[name] = true
	}
	return members
}

// readMember reads one member of a batch into the field into. A wrong value leaves the field
// unchanged.
func readMember(name string, raw json.RawMessage, into any) error {
	if err := rawjson.Check(raw); err != nil {
		return fmt.Errorf("%q: %w", name, err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("%q is %s", name, rawjson.TypeOf(raw))
	}
	return nil
}

// ReplyStatus says how a batch ended.
type ReplyStatus string

// How a batch ends.
const (
	// ReplyCompleted: every call has a result.
	ReplyCompleted ReplyStatus = "completed"
	// ReplyAborted: every call has a result, some of them aborted.
	ReplyAborted ReplyStatus = "aborted"
	// ReplyRefused: nothing ran, and the reply's Error says why.
	ReplyRefused ReplyStatus = "refused"
)

// Reply answers a batch, exactly once. The coordinator stores the reply, and then publishes
// the same bytes.
type Reply struct {
	V        int         `json:"v"`
	Batch    BatchID     `json:"batch"`
	Session  SessionID   `json:"session"`
	Provider Provider    `json:"provider"`
	Status   ReplyStatus `json:"status"`
	// Digest is the digest of the Batch as received. It says to which body under this id the reply
	// belongs.
	Digest string `json:"digest"`
	// Reinjection is what the agent appends to the conversation; null when there is nothing to
	// append.
	Reinjection json.RawMessage `json:"reinjection"`
	// Append is Reinjection as a list, one element for each message or item, and Steering at
	// its end. An agent appends it to the conversation, whatever its provider. Replies that
	// older builds have stored lack it on the reply subject; [Reply.Extend] works with every
	// reply.
	Append []json.RawMessage `json:"append"`
	// Results are in call order. They leave out the outputs, which Reinjection holds.
	Results []Result `json:"results"`
	// Error says why the batch was refused. Steering is a list of steering messages, for the
	// agent to append after Reinjection, as [Reply.Extend] does.
	Error    *Refusal        `json:"error,omitempty"`
	Steering json.RawMessage `json:"steering,omitempty"`
	// HookSummary says what the hooks of all calls did; nil when none ran.
	HookSummary *StopSummary `json:"stop,omitempty"`
	// Ref names the whole reply in the object store, if it is too large for a message. It is nil in
	// what Run, Await and Get of package client return: they fetch the whole.
	Ref *Ref `json:"ref,omitempty"`
}

// Done reports whether the model's turn is over: it made no calls, and there is no steering
// message. Then there is nothing to append.
func (r Reply) Done() bool { return len(r.Results) == 0 && len(list(r.Steering)) == 0 }

// WithAppend returns the reply with Append made from Reinjection and Steering.
func (r Reply) WithAppend() Reply {
	r.Append = r.Extend([]json.RawMessage{})
	return r
}

// Extend returns the conversation with the reply appended: the elements of the reinjection, and
// then the steering messages. Append the model's own message before it.
func (r Reply) Extend(history []json.RawMessage) []json.RawMessage {
	return append(append(history, list(r.Reinjection)...), list(r.Steering)...)
}

// Single returns the result of the only call of a canonical batch, with its output.
func (r Reply) Single() (Result, error) {
	var shown struct {
		Results []struct {
			Output  json.RawMessage `json:"output"`
			Content []Block         `json:"content"`
			IsError bool            `json:"is_error"`
		} `json:"results"`
	}
	if err := json.Unmarshal(r.Reinjection, &shown); err != nil || len(shown.Results) != 1 || len(r.Results) != 1 {
		return Result{}, fmt.Errorf("the reply of a call has %d results: %w", len(r.Results), err)
	}
	result, outcome := r.Results[0], shown.Results[0]
	result.Output, result.Content, result.IsError = outcome.Output, outcome.Content, outcome.IsError
	return result, nil
}

// list returns the elements of a JSON list. null gives none, and any other value is the only
// element.
func list(raw json.RawMessage) (elements []json.RawMessage) {
	if len(raw) == 0 || json.Unmarshal(raw, &elements) == nil {
		return elements
	}
	return []json.RawMessage{raw}
}

// Control is a request to abort or steer a running session or batch.
type Control struct {
	V     int             `json:"v"`
	Abort json.RawMessage `json:"abort,omitempty"` // a batch id, or true for the session
	Steer json.RawMessage `json:"steer,omitempty"` // a message for the next reply
	// When says which calls of the open batches a steering message skips. Default after_batch.
	When SteerWhen `json:"when,omitempty"`
	// Reason and By appear in the results of the calls that are aborted or skipped.
	Reason string `json:"reason,omitempty"`
	By     string `json:"by,omitempty"`
}

// SteerWhen says how soon a steering message takes effect. A call that has started ends with its
// real result.
type SteerWhen string

// The calls that a steering message skips.
const (
	// SteerAfterBatch skips no call.
	SteerAfterBatch SteerWhen = "after_batch"
	// SteerBetweenGroups skips the stages that have not begun; calls of the running stages still
	// run. A stage is the calls of a batch that may run together; its old name was group.
	SteerBetweenGroups SteerWhen = "between_groups"
	// SteerImmediate skips every call that no worker has got yet.
	SteerImmediate SteerWhen = "immediate"
)

// AbortTarget returns the id of the batch that an abort names. all reports that the abort is for
// the whole session. Both are zero for a control that is no abort.
func (c Control) AbortTarget() (id BatchID, all bool) {
	if json.Unmarshal(c.Abort, &id) == nil && id != "" {
		return id, false
	}
	return "", string(c.Abort) == "true"
}

// ControlAnswer answers a Control: stored durably with the sequence Seq, or refused with Error.
type ControlAnswer struct {
	OK    bool     `json:"ok"`
	Seq   uint64   `json:"seq,omitempty"`
	Error *Refusal `json:"error,omitempty"`
}

// The status of a batch without a reply. A batch with a reply has that reply's [ReplyStatus].
const (
	BatchRunning = "running" // it is queued or running
	BatchUnknown = "unknown" // it was never accepted, or its reply is no longer kept
)

// State answers a get request for a batch without a reply.
type State struct {
	Status string `json:"status"` // [BatchRunning] or [BatchUnknown]
	// Results are those of the calls that have ended, in call order and with their outputs. Only a
	// request for full results gets them.
	Results []Result `json:"results,omitempty"`
}
