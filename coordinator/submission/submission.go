// Package submission reads what agents submit, and makes what agents may see of a batch.
//
// If a batch cannot be run, the package makes a [messages.Refusal] with the ids of the batch,
// as far as they are known. A worker's result has more than an agent may see: hooks and people
// can change arguments, and the agent must not see the changes. Use ForAgents, Brief, Slim or
// Refused for everything that goes to agents.
//
// Package provider reads the dialects of the providers, and package plan orders the calls.
package submission

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"

	"github.com/toolfleet/toolfleet/coordinator/provider"
	"github.com/toolfleet/toolfleet/coordinator/provider/export"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// Submission is a batch that can be run. If a batch cannot be read, its Submission is the zero
// value.
type Submission struct {
	Batch messages.Batch
	Codec provider.Codec
	Calls []messages.ToolCall
}

// Decode reads an accepted batch of at most limit bytes. If the batch cannot be run, the
// error is a *messages.Refusal, and in.Batch has the batch's ids as far as they are known.
func Decode(log *slog.Logger, a journal.Accepted, limit int) (in Submission, err error) {
	defer func() { // a panic in a codec must not end the coordinator
		if p := recover(); p != nil {
			log.Error("panic while a batch was decoded; it is refused", "panic", p, "stack", string(debug.Stack()))
			err = &messages.Refusal{Class: messages.ClassInternal, Message: "The message could not be decoded."}
		}
		if err != nil {
			in.Batch = Identified(in.Batch, a.Key)
		}
	}()
	in.Batch, err = messages.DecodeBatch(a.Body)
	if key := named(in.Batch, a.Key); key != a.Key {
		return in, &messages.Refusal{Class: messages.ClassSubjectMismatch, Message: fmt.Sprintf(
			"The ids in the body belong to %s.%s, the subject says %s.%s.", key.Session, key.Batch, a.Key.Session, a.Key.Batch)}
	}
	if err != nil {
		return in, err
	}
	if len(a.Body) > limit {
		return in, tooLarge("The batch has %d bytes; the limit is %d.", len(a.Body), limit)
	}
	if in.Codec, err = provider.For(in.Batch.Provider); err != nil {
		return in, err
	}
	if in.Calls, err = in.Codec.Decode(in.Batch.Message); err != nil {
		return in, err
	}
	if len(in.Calls) > messages.MaxCalls {
		return in, tooLarge("The message has %d calls; the limit is %d.", len(in.Calls), messages.MaxCalls)
	}
	for _, call := range in.Calls {
		if size := len(call.ID); size > messages.MaxID {
			return in, tooLarge("Call %d has an id of %d bytes; the limit is %d.", call.Index, size, messages.MaxID)
		}
	}
	return in, nil
}

func tooLarge(format string, args ...any) *messages.Refusal {
	return &messages.Refusal{Class: messages.ClassTooLarge, Message: fmt.Sprintf(format, args...)}
}

// named returns the key with the ids in a body. An id that the body lacks, or that cannot be
// read, is taken from the subject.
func named(b messages.Batch, subject wire.BatchKey) wire.BatchKey {
	if b.Session != "" {
		subject.Session = messages.Token(b.Session)
	}
	if b.ID != "" {
		subject.Batch = messages.Token(b.ID)
	}
	return subject
}

// Identified returns a batch with the ids that a refusal shows. If an id cannot be read from
// the body, it is taken from the subject, unless the token there is a hash. Ids longer than
// messages.MaxID are left out. If the body does not belong to the subject, only the body's own
// ids are kept.
func Identified(b messages.Batch, subject wire.BatchKey) messages.Batch {
	if named(b, subject) == subject {
		b.Session = cmp.Or(b.Session, messages.SessionID(messages.PlainToken(subject.Session)))
		b.ID = cmp.Or(b.ID, messages.BatchID(messages.PlainToken(subject.Batch)))
	}
	if len(b.Session) > messages.MaxID {
		b.Session = ""
	}
	if len(b.ID) > messages.MaxID {
		b.ID = ""
	}
	return b
}

// AsRefusal returns the refusal in an error of Decode. For any other error it returns a
// refusal of class internal, because the fleet is to blame.
func AsRefusal(err error) *messages.Refusal {
	var refusal *messages.Refusal
	if errors.As(err, &refusal) {
		return refusal
	}
	return &messages.Refusal{Class: messages.ClassInternal, Message: err.Error()}
}

// Refused returns the reply to a refused batch, of which no call has run.
func Refused(b messages.Batch, digest string, refusal *messages.Refusal) messages.Reply {
	return messages.Reply{
		V: messages.Version, Batch: b.ID, Session: b.Session, Provider: b.Provider, Status: messages.ReplyRefused,
		Digest: digest, Reinjection: []byte("null"), Results: []messages.Result{}, Error: refusal,
	}.WithAppend()
}

// GivenOut returns a stored reply with the member append added at its end. The other bytes
// stay unchanged. If the reply already has the member, or only refers to the object store,
// GivenOut returns it unchanged.
func GivenOut(stored []byte) ([]byte, error) {
	var reply struct {
		Append, Ref           json.RawMessage
		Reinjection, Steering json.RawMessage
	}
	if err := rawjson.Unmarshal(stored, &reply); err != nil || reply.Append != nil || reply.Ref != nil {
		return stored, err
	}
	list, err := rawjson.Marshal(messages.Reply{Reinjection: reply.Reinjection, Steering: reply.Steering}.WithAppend().Append)
	open, isObject := bytes.CutSuffix(bytes.TrimSpace(stored), []byte("}"))
	if err != nil || !isObject || reply.Reinjection == nil {
		return stored, err
	}
	return slices.Concat(open, []byte(`,"append":`), list, []byte("}")), nil
}

// Routed returns the calls with the tool names of the catalog. Some providers do not accept
// every tool name, so the model may know a tool by another name. The codec keeps the model's
// name for the reply.
func (in Submission) Routed(tools schemas.Catalog) []messages.ToolCall {
	// toolOf maps a provider's name for a tool to the tool's own name, where the two differ.
	// It is made when it is needed first.
	var toolOf map[string]string
	out := slices.Clone(in.Calls)
	for i, call := range out {
		if _, known := tools.Lookup(call.Tool()); known {
			continue
		}
		if toolOf == nil {
			toolOf = map[string]string{}
			for _, t := range tools.Tools() {
				if exported := export.Name(in.Batch.Provider, t.Name); exported != t.Name {
					toolOf[exported] = t.Name
				}
			}
		}
		if name, ok := toolOf[call.Tool()]; ok {
			out[i].Name, out[i].Namespace = name, ""
		}
	}
	return out
}

// ForAgents returns a question in the form that an agent may see. If a hook or a person has
// changed the arguments, the line that shows them is left out.
func (in Submission) ForAgents(q messages.Approval) messages.Pending {
	pending := q.Pending()
	switch {
	case in.asSent(q):
	case len(in.Calls) == 0: // the arguments that the agent sent are no longer known
		pending.Line = q.Tool
	default:
		pending.Line = q.Tool + " (with other arguments than were sent)"
	}
	return pending
}

// asSent reports whether a question is about exactly the arguments that the agent sent.
func (in Submission) asSent(q messages.Approval) bool {
	if q.Index < 0 || q.Index >= len(in.Calls) || q.Original != nil {
		return false
	}
	sent, err := rawjson.Canonical(in.Calls[q.Index].Input)
	return err == nil && messages.Digest(sent) == q.ArgsHash
}

// Brief returns a result as an end event shows it: with its output if that is small, and
// without its trail.
func Brief(r messages.Result) messages.Result {
	r = r.Brief()
	r.Trail = nil
	return r
}

// Slim returns a result without its output and its trail. The output is in the reinjection,
// and the trail is only for the audit log.
func Slim(r messages.Result) messages.Result {
	r.Output, r.Content, r.Trail = nil, nil, nil
	return r
}

// SlimAll is Slim for several results.
func SlimAll(results []messages.Result) []messages.Result {
	out := make([]messages.Result, len(results))
	for i, r := range results {
		out[i] = Slim(r)
	}
	return out
}

// Encode writes the outcomes of the calls in the provider's form. If the codec panics,
// Encode returns an error.
func (in Submission) Encode(outcomes []messages.Outcome) (reinjection json.RawMessage, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return in.Codec.Encode(in.Calls, outcomes)
}
