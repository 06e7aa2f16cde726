// Package messages is the shared vocabulary: the words of the system as Go types, and the wire as it
// travels over NATS. Agents, coordinators and workers meet here and nowhere else.
//
//	Batch  agent -> coordinator     the model's message, verbatim, in a small envelope
//	Job    coordinator -> worker    one tool call on its way to be run
//	Result worker -> coordinator    what became of it
//	Reply  coordinator -> agent     the results in the provider's own shape
//	Event  both -> whoever watches  progress, never the truth
//
// CallRecord and PlanRecord are the journal: what is durable about a call and about a batch. Names
// makes the subjects; Token makes an id safe to be part of one.
//
// The package holds values only. It does no I/O, knows no clock, and imports nothing of ours.
package messages

import (
	"strings"
	"time"
)

// Version is the "v" of every message. A reader ignores fields and statuses it does not know, so the
// number changes only when an old reader would misread a new message.
const Version = 1

// Ids as the agent and the provider gave them: any bytes, echoed exactly. Only their [Token] is ever
// part of a subject, a key or a file name.
type (
	TenantID  string
	SessionID string
	BatchID   string
	CallID    string
)

// Provider names whose dialect a message speaks.
type Provider string

// The dialects of PROVIDERS: one codec each.
const (
	Anthropic       Provider = "anthropic"
	OpenAIChat      Provider = "openai-chat"
	OpenAIResponses Provider = "openai-responses"
	Bedrock         Provider = "bedrock"
	Gemini          Provider = "gemini"
	Canonical       Provider = "canonical"
)

// Providers lists every dialect in the order in which help and errors name them.
var Providers = []Provider{Anthropic, OpenAIChat, OpenAIResponses, Bedrock, Gemini, Canonical}

// Kind says what a tool does to the world. It decides the lane, the default timeout and what a crash allows.
type Kind string

// A read or a compute may run beside others; a write runs alone in its session.
const (
	Read    Kind = "read"
	Write   Kind = "write"
	Compute Kind = "compute"
)

// OnCrash says what may be done with a write whose worker was lost in the middle of it.
type OnCrash string

// Idempotent: run it again with the same key. Checkable: ask the probe, then decide. Once: never run it
// again, and say that the outcome is unknown.
const (
	Idempotent OnCrash = "idempotent"
	Checkable  OnCrash = "checkable"
	Once       OnCrash = "once"
)

// Status says how a call ended. The list is closed: everything finer is the error's [Code].
type Status string

// The statuses of a result.
const (
	StatusOK              Status = "ok"
	StatusValidationError Status = "validation_error"
	StatusSemanticError   Status = "semantic_error"
	StatusHookError       Status = "hook_error"
	StatusDenied          Status = "denied"
	StatusError           Status = "error"
	StatusTimeout         Status = "timeout"
	StatusAborted         Status = "aborted"
	StatusSkipped         Status = "skipped"
	StatusExpired         Status = "expired"
	StatusUnknownTool     Status = "unknown_tool"
	StatusOutcomeUnknown  Status = "outcome_unknown"
)

// Code is the machine-readable reason of an error, for the model and for programs. Tools may bring
// codes of their own (snake_case); these are ours.
type Code string

// The codes that toolfleet itself gives.
const (
	CodeInvalidArguments Code = "invalid_arguments" // the arguments are no JSON object, or break the tool's schema
	CodeUnknownTool      Code = "unknown_tool"      // no worker has ever announced a tool of this name
	CodePolicyDenied     Code = "policy_denied"     // a deny rule matched
	CodeApprovalRequired Code = "approval_required" // a rule asks for a person, and nobody can be asked
	CodeDeniedByUser     Code = "denied_by_user"    // a person was asked and said no
	CodeApprovalExpired  Code = "approval_expired"  // a person was asked and nobody answered in time
	CodeHookDenied       Code = "hook_denied"       // a pre-hook refused the call
	CodeHookFailed       Code = "hook_failed"       // a gate hook could not run, so the call was refused
	CodeToolError        Code = "tool_error"        // the tool itself said that it failed; the message is the tool's
	CodeTimeout          Code = "timeout"           // the tool did not end within its time
	CodeQueueTimeout     Code = "queue_timeout"     // no worker took the call in time
	CodeWorkerLost       Code = "worker_lost"       // the worker is gone and the call is not known to have been applied
	CodeOutcomeUnknown   Code = "outcome_unknown"   // a write may or may not have happened
	CodeAborted          Code = "aborted"           // the agent or an operator stopped it
	CodeSkipped          Code = "skipped"           // an earlier call of the batch made running it unsafe
	CodeExpired          Code = "expired"           // the batch outlived its time
	CodeTooLarge         Code = "too_large"         // input or output over a limit
	CodeResultLost       Code = "result_lost"       // answered in place of a result that nobody has
	CodeInternal         Code = "internal"          // our own fault
)

// Ours reports whether toolfleet itself gives the code. Any other is a word of a tool's.
func (c Code) Ours() bool {
	switch c {
	case CodeInvalidArguments, CodeUnknownTool, CodePolicyDenied, CodeApprovalRequired, CodeDeniedByUser, CodeApprovalExpired, CodeHookDenied,
		CodeHookFailed, CodeToolError, CodeTimeout, CodeQueueTimeout, CodeWorkerLost, CodeOutcomeUnknown, CodeAborted, CodeSkipped, CodeExpired,
		CodeTooLarge, CodeResultLost, CodeInternal:
		return true
	}
	return false
}

// ErrorType is a failure in one word of ours, for logs and traces: the code of its error, or its status where that code is a
// tool's.
func ErrorType(status Status, err *Error) string {
	if err != nil && err.Code.Ours() {
		return string(err.Code)
	}
	return string(status)
}

// Error is why a call failed, in words the model can act on.
type Error struct {
	Code      Code   `json:"code"`
	Message   string `json:"message"`
	Retryable bool   `json:"retryable"`
	Details   any    `json:"details,omitempty"`
}

func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// ToolCall is one request by the model, decoded from the provider's message. Exactly one of Input and
// InputError is set.
type ToolCall struct {
	Index int    `json:"index"`
	ID    CallID `json:"id"` // the provider's, echoed byte for byte; "" only where the provider allows none (Gemini)
	// Name is the tool's name as the provider wrote it, without Namespace. A call whose name is empty or
	// missing has "": it is answered with [NoName] and never run.
	Name string `json:"name"`
	// Namespace is Anthropic's toolset_name or OpenAI's namespace: names are unique only inside it.
	Namespace string `json:"namespace,omitempty"`
	// Input is the parsed arguments: always a JSON object, digits kept as they came.
	Input []byte `json:"-"`
	// InputError says why the arguments could not be read. The call is answered with it and never run.
	InputError string `json:"input_error,omitempty"`
	// Custom marks a free-text ("custom") call of the OpenAI dialects; its input is {"input": text}.
	Custom bool `json:"custom,omitempty"`
	// Caller is the provider's record of who calls (programmatic calling), echoed where the dialect wants it.
	Caller []byte `json:"-"`
}

// NoName is what the model reads of a call that names no tool.
const NoName = "The call names no tool."

// Tool is the name under which the registry knows the call: the bare name, or namespace__name. It is ""
// for a call without a name, whatever its namespace. Records about the call repeat it, so a name that is
// longer than [MaxID], which no tool has, is cut to that.
func (c ToolCall) Tool() string {
	name := c.Name
	if c.Namespace != "" && name != "" {
		name = c.Namespace + "__" + name
	}
	return strings.ToValidUTF8(name[:min(len(name), MaxID)], "\uFFFD")
}

// Result is what became of one call. It is made once, by the worker that ran the call or by the
// coordinator that ended it, and nobody downstream changes it but for WasConcurrent and Ref.
type Result struct {
	V      int    `json:"v"`
	Index  int    `json:"index"`
	CallID CallID `json:"call_id"`
	Tool   string `json:"tool"`
	Kind   Kind   `json:"kind,omitempty"` // empty for a tool that nobody knows
	Status Status `json:"status"`
	Outcome
	DurationMS float64 `json:"duration_ms"` // all phases, by the worker's monotonic clock
	QueueMS    float64 `json:"queue_ms"`    // from dispatch to the worker's start
	Attempt    int     `json:"attempt"`     // how many times the call was claimed or run; 0: never started
	// WasConcurrent: its run overlapped another call of the batch.
	WasConcurrent bool      `json:"was_concurrent"`
	Started       time.Time `json:"started,omitzero"` // the worker's wall clock
	Worker        string    `json:"worker,omitempty"`
	Truncated     *Cut      `json:"truncated,omitempty"` // set when the output was cut
	Ref           *Ref      `json:"ref,omitempty"`       // the outcome is in the object store
	// Permission is what was decided in phase four; nil for a call that did not come that far.
	Permission *Permission `json:"permission,omitempty"`
	Hooks      *Hooks      `json:"hooks,omitempty"` // what its hooks did; nil when it met none
	// Trail is in records and in notices only, never in replies and events.
	Trail *Trail `json:"trail,omitempty"`
}

// Cut says how much of an output was left out.
type Cut struct {
	Chars int `json:"chars"` // characters omitted
	Lines int `json:"lines"` // lines omitted
}

// Ref points into the object store.
type Ref struct {
	Digest string `json:"digest"` // lower-case hex SHA-256
	Size   int64  `json:"size"`   // bytes
}

// Refusal says why a whole batch was not run. It is an error, and the "error" of a refused Reply.
type Refusal struct {
	Class        Class  `json:"class"`
	Message      string `json:"message"`
	RetryAfterMS int64  `json:"retry_after_ms,omitempty"`
}

func (r *Refusal) Error() string { return string(r.Class) + ": " + r.Message }

// Class is the kind of a refusal.
type Class string

// The classes of PROVIDERS part 1 and DESIGN 2.3.
const (
	MalformedMessage    Class = "malformed_message"    // not the named provider's shape
	MissingID           Class = "missing_id"           // a call without an id
	DuplicateID         Class = "duplicate_id"         // two calls with one id: no legal pairing exists
	MissingName         Class = "missing_name"         // a call without a tool name, where the answer must repeat it (Gemini)
	UnsupportedCall     Class = "unsupported_call"     // a client-side call that needs another kind of answer
	UnsupportedProvider Class = "unsupported_provider" // a provider we have no codec for
	TooLarge            Class = "too_large"            // over a limit; the message names size and limit
	BatchConflict       Class = "batch_conflict"       // the id was used before with another body
	SubjectMismatch     Class = "subject_mismatch"     // ids in the body do not match the subject
	Busy                Class = "busy"                 // too much work waiting; try again later
	Internal            Class = "internal"             // our own fault
	NotPending          Class = "not_pending"          // no question of this id is open: it was decided, or its call has ended
	ApprovalExpired     Class = "approval_expired"     // the decision came too late
	ApprovalMismatch    Class = "approval_mismatch"    // the decision is about another call, other arguments, another tool or another policy
	BadSignature        Class = "bad_signature"        // the decision's signature does not hold, or is nobody's whose word counts
	SelfApproval        Class = "self_approval"        // the approver is the one who asks
	SameApprover        Class = "same_approver"        // the same person twice, where two have to agree
	TicketMissing       Class = "ticket_missing"       // a ticket has to be named
	InvalidDecision     Class = "invalid_decision"     // the decision cannot be read, or its edit is no input of the tool
)
