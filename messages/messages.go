// Package messages holds the messages between an agent and the fleet, as Go types: what a program
// publishes and what it reads. docs and schemas/*.json describe the same messages for other
// languages.
//
//	Batch     agent -> fleet     the model's message, verbatim, in a small envelope
//	Reply     fleet -> agent     the results in the provider's own shape, exactly once
//	Event     fleet -> watchers  progress of a batch; it may be lost
//	Control   agent -> fleet     an abort, or a steering message
//	Approval  fleet -> people    a question whether a call may run; Decision is the signed answer
//
// Result is the outcome of one call. Token makes an id safe to be part of a subject. The messages
// inside the fleet are in internal/wire.
//
// The package holds values only. It does no I/O and has no clock.
package messages

import (
	"strings"
	"time"
)

// Version is the "v" of every message. A reader ignores fields and statuses that it does not know,
// so the number changes only if an old reader would misread a new message.
const Version = 1

// Ids are what the agent and the provider gave: any bytes. The fleet returns them unchanged.
// Only their [Token] becomes part of a subject, a key or a file name.
type (
	TenantID  string
	SessionID string
	BatchID   string
	CallID    string
)

// Provider names the dialect of a message.
type Provider string

// The dialects. Each has a codec in coordinator/provider.
const (
	// Anthropic is the Messages API of Claude.
	Anthropic Provider = "anthropic"
	// OpenAIChat is Chat Completions, which many other services speak too.
	OpenAIChat Provider = "openai-chat"
	// OpenAIResponses is the Responses API.
	OpenAIResponses Provider = "openai-responses"
	// Bedrock is the Converse API of Amazon Bedrock.
	Bedrock Provider = "bedrock"
	// Gemini is generateContent of the Gemini API.
	Gemini Provider = "gemini"
	// Canonical is toolfleet's own plain form.
	Canonical Provider = "canonical"
)

// Providers lists every dialect in the order in which help and errors name them.
var Providers = []Provider{Anthropic, OpenAIChat, OpenAIResponses, Bedrock, Gemini, Canonical}

// Kind says what a tool does to the world. It decides what may run at the same time, the default
// timeout, and what is allowed after a crash.
type Kind string

// The kinds. They say which calls run at the same time, unless the tool's definition sets
// another rule.
const (
	// KindRead only looks and changes nothing. Its calls may run beside others, and may run
	// again.
	KindRead Kind = "read"
	// KindWrite changes something. Its calls run alone in their session. [OnCrash] says
	// whether they may run again after a crash.
	KindWrite Kind = "write"
	// KindCompute needs nothing but its arguments. Its calls run under the same rules as
	// reads.
	KindCompute Kind = "compute"
)

// OnCrash says what may be done with a write whose worker was lost while it ran.
type OnCrash string

// What is done with a write whose worker was lost.
const (
	// OnCrashIdempotent runs the write again with the same idempotency key.
	OnCrashIdempotent OnCrash = "idempotent"
	// OnCrashCheckable asks the tool's probe, and runs the write again only if it was not
	// applied.
	OnCrashCheckable OnCrash = "checkable"
	// OnCrashOnce never runs the write again, and reports that its outcome is unknown.
	OnCrashOnce OnCrash = "once"
)

// Status says how a call ended. No further statuses are added: finer distinctions are in the
// error's [Code].
type Status string

// The statuses of a result.
const (
	// StatusOK: the tool ran and gave an output.
	StatusOK Status = "ok"
	// StatusValidationError: the arguments break the tool's schema.
	StatusValidationError Status = "validation_error"
	// StatusSemanticError: a rule or check of the tool refused the arguments.
	StatusSemanticError Status = "semantic_error"
	// StatusHookError: a hook that has to allow the call could not run.
	StatusHookError Status = "hook_error"
	// StatusDenied: a rule, a hook or a person denied the call.
	StatusDenied Status = "denied"
	// StatusError: the tool failed, or its worker was lost.
	StatusError Status = "error"
	// StatusTimeout: the tool did not end in time.
	StatusTimeout Status = "timeout"
	// StatusAborted: the agent or an operator stopped the call.
	StatusAborted Status = "aborted"
	// StatusSkipped: the call was not run because of an earlier one or of a steering message.
	StatusSkipped Status = "skipped"
	// StatusExpired: the batch was too old, no worker took the call in time, or no person answered
	// in time.
	StatusExpired Status = "expired"
	// StatusUnknownTool: no worker has announced such a tool.
	StatusUnknownTool Status = "unknown_tool"
	// StatusOutcomeUnknown: a write may or may not have been applied.
	StatusOutcomeUnknown Status = "outcome_unknown"
)

// Code is the reason of an error, for programs and for the model. toolfleet gives the codes below.
// Tools may give others, in snake_case.
type Code string

// The codes that toolfleet itself gives.
const (
	// CodeInvalidArguments: the arguments are no JSON object, or break the tool's schema.
	CodeInvalidArguments Code = "invalid_arguments"
	// CodeUnknownTool: no worker has ever announced a tool of this name.
	CodeUnknownTool Code = "unknown_tool"
	// CodePolicyDenied: a deny rule matched.
	CodePolicyDenied Code = "policy_denied"
	// CodeApprovalRequired: the call needs more approvers than the fleet has.
	CodeApprovalRequired Code = "approval_required"
	// CodeDeniedByUser: a person was asked and said no.
	CodeDeniedByUser Code = "denied_by_user"
	// CodeApprovalExpired: a person was asked, and no answer came in time.
	CodeApprovalExpired Code = "approval_expired"
	// CodeHookDenied: a pre-hook refused the call.
	CodeHookDenied Code = "hook_denied"
	// CodeHookFailed: a gate hook could not run, so the call was refused.
	CodeHookFailed Code = "hook_failed"
	// CodeToolError: the tool itself said that it failed; the message is the tool's.
	CodeToolError Code = "tool_error"
	// CodeTimeout: the tool did not end in time.
	CodeTimeout Code = "timeout"
	// CodeQueueTimeout: no worker took the call in time.
	CodeQueueTimeout Code = "queue_timeout"
	// CodeToolVersionGone: no worker has the tool in the version that the call was planned with.
	CodeToolVersionGone Code = "tool_version_gone"
	// CodeWorkerLost: the workers that ran the call were lost. A write with this code was
	// certainly not applied.
	CodeWorkerLost Code = "worker_lost"
	// CodeOutcomeUnknown: a write may or may not have been applied. Check before you repeat it.
	CodeOutcomeUnknown Code = "outcome_unknown"
	// CodeAborted: the agent or an operator stopped the call.
	CodeAborted Code = "aborted"
	// CodeSkipped: an earlier call of the batch made running it unsafe, or a steering message
	// skipped it.
	CodeSkipped Code = "skipped"
	// CodeExpired: the batch was too old.
	CodeExpired Code = "expired"
	// CodeTooLarge: an input or output is over a limit.
	CodeTooLarge Code = "too_large"
	// CodeResultLost: the call has ended, and its result cannot be read any more.
	CodeResultLost Code = "result_lost"
	// CodeInternal: a fault of toolfleet itself.
	CodeInternal Code = "internal"
)

// Ours reports whether toolfleet itself gives the code. Tools give all other codes.
func (c Code) Ours() bool {
	switch c {
	case CodeInvalidArguments, CodeUnknownTool, CodePolicyDenied, CodeApprovalRequired, CodeDeniedByUser, CodeApprovalExpired, CodeHookDenied,
		CodeHookFailed, CodeToolError, CodeTimeout, CodeQueueTimeout, CodeToolVersionGone, CodeWorkerLost, CodeOutcomeUnknown, CodeAborted, CodeSkipped, CodeExpired,
		CodeTooLarge, CodeResultLost, CodeInternal:
		return true
	}
	return false
}

// ErrorType returns the word for a failure in logs and traces. It is the error's code, or the
// status if the tool made up the code.
func ErrorType(status Status, err *Error) string {
	if err != nil && err.Code.Ours() {
		return string(err.Code)
	}
	return string(status)
}

// Error is why a call failed, in words the model can act on.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"` // what went wrong, for the model
	// Retryable says that the same call may succeed later.
	Retryable bool `json:"retryable"`
	Details   any  `json:"details,omitempty"` // any JSON value that the tool adds
}

// Error returns code and message.
func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// ToolCall is one request by the model, decoded from the provider's message. Exactly one of Input
// and InputError is set.
type ToolCall struct {
	Index int `json:"index"`
	// ID is the provider's, echoed byte for byte; "" only where the provider allows calls without
	// an id (Gemini).
	ID CallID `json:"id"`
	// Name is the tool's name as the provider wrote it, without Namespace. It is "" when the name
	// is empty or missing: such a call is answered with [NoName] and never run.
	Name string `json:"name"`
	// Namespace is Anthropic's toolset_name or OpenAI's namespace. Names are unique only within it.
	Namespace string `json:"namespace,omitempty"`
	// Input is the parsed arguments: always a JSON object, digits kept as they came.
	Input []byte `json:"-"`
	// InputError says why the arguments could not be read. The call is answered with it and never
	// run.
	InputError string `json:"input_error,omitempty"`
	// Custom marks a free-text ("custom") call of the OpenAI dialects; its input is {"input":
	// text}.
	Custom bool `json:"custom,omitempty"`
	// Caller is the provider's record of the caller (programmatic calling), echoed where the
	// dialect requires it.
	Caller []byte `json:"-"`
}

// NoName is the answer that the model reads for a call that names no tool.
const NoName = "The call names no tool."

// Tool returns the name by which workers know the tool: the bare name, or namespace__name. It is ""
// for a call without a name, even with a namespace. Records repeat the name, so a name longer than
// [MaxID] is cut to that length; no tool has such a name.
func (c ToolCall) Tool() string {
	name := c.Name
	if c.Namespace != "" && name != "" {
		name = c.Namespace + "__" + name
	}
	return strings.ToValidUTF8(name[:min(len(name), MaxID)], "\uFFFD")
}

// Result is the outcome of one call. The worker that ran the call makes it, or the coordinator that
// ended the call. After that only WasConcurrent and Ref change.
type Result struct {
	V      int    `json:"v"`
	Index  int    `json:"index"`          // of the call in its batch, from 0
	CallID CallID `json:"call_id"`        // the provider's id of the call
	Tool   string `json:"tool"`           // the name that the model called
	Kind   Kind   `json:"kind,omitempty"` // empty for an unknown tool
	Status Status `json:"status"`
	Outcome
	DurationMS float64 `json:"duration_ms"` // all phases, by the worker's monotonic clock
	QueueMS    float64 `json:"queue_ms"`    // from dispatch to the worker's start
	// Attempt is how many times the call was claimed or, if it runs without a claim, run; 0: never.
	Attempt int `json:"attempt"`
	// WasConcurrent says that the run overlapped that of another call of the batch.
	WasConcurrent bool      `json:"was_concurrent"`
	Started       time.Time `json:"started,omitzero"`    // the worker's wall clock
	Worker        string    `json:"worker,omitempty"`    // the worker that ran the call; empty: none did
	Truncated     *Cut      `json:"truncated,omitempty"` // set when the output was cut
	// Ref names the outcome, if it is too large for its place: see [Ref]. It is nil in a reply; Get
	// of package client with FullResults fetches the outcome.
	Ref *Ref `json:"ref,omitempty"`
	// Permission is the decision of the phase "permissions"; nil for a call that did not get there.
	Permission *Permission `json:"permission,omitempty"`
	Hooks      *Hooks      `json:"hooks,omitempty"` // what the call's hooks did; nil when none ran
	// SandboxLacks are the properties that the sandbox of the run does not have in full: files,
	// processes, network, limits. `toolfleet doctor` says what is missing of each.
	SandboxLacks []string `json:"sandbox_lacks,omitempty"`
	// Trail is set in records and notices only, never in replies and events.
	Trail *Trail `json:"trail,omitempty"`
}

// Cut says how much of an output was left out.
type Cut struct {
	Chars int `json:"chars"` // characters omitted
	Lines int `json:"lines"` // lines omitted
	// Ref names the whole output to the tool result_read, in the same session only; "": the whole
	// could not be stored.
	Ref string `json:"ref,omitempty"`
}

// Ref names JSON that is too large for its place. In records and replies, that JSON is in the
// object store. For an event, the JSON is in the object store only if it is also too large for
// a record.
type Ref struct {
	Digest string `json:"digest"` // lower-case hex SHA-256
	Size   int64  `json:"size"`   // bytes
}

// Refusal says why a whole batch was not run, or why another request was refused. It is an error,
// and the "error" of a refused Reply.
type Refusal struct {
	Class   Class  `json:"class"`
	Message string `json:"message"` // what is wrong, for people
	// RetryAfterMS is how long to wait before the next try, in milliseconds; 0: not known.
	RetryAfterMS int64 `json:"retry_after_ms,omitempty"`
}

// Error returns class and message.
func (r *Refusal) Error() string { return string(r.Class) + ": " + r.Message }

// Class is the kind of a refusal.
type Class string

// The classes of refusals: of batches first, then of decisions.
const (
	// ClassMalformedMessage: the message does not have the named provider's shape.
	ClassMalformedMessage Class = "malformed_message"
	// ClassMissingID: a call has no id.
	ClassMissingID Class = "missing_id"
	// ClassDuplicateID: two calls have the same id, so it would not be clear which result is whose.
	ClassDuplicateID Class = "duplicate_id"
	// ClassMissingName: a call has no tool name, and the answer must repeat it (Gemini).
	ClassMissingName Class = "missing_name"
	// ClassUnsupportedCall: a call wants another kind of answer than the result of a tool (OpenAI's
	// computer_call), so the fleet cannot answer it.
	ClassUnsupportedCall Class = "unsupported_call"
	// ClassUnsupportedProvider: there is no codec for the provider.
	ClassUnsupportedProvider Class = "unsupported_provider"
	// ClassTooLarge: the request is over a limit; the message names size and limit.
	ClassTooLarge Class = "too_large"
	// ClassBatchConflict: the id was used before with another body.
	ClassBatchConflict Class = "batch_conflict"
	// ClassSubjectMismatch: ids in the body do not match the subject.
	ClassSubjectMismatch Class = "subject_mismatch"
	// ClassBusy: too much work is waiting; try again later.
	ClassBusy Class = "busy"
	// ClassInternal: a fault of toolfleet itself.
	ClassInternal Class = "internal"
	// ClassNotPending: no question with this id is open: it was decided, or its call has ended.
	ClassNotPending Class = "not_pending"
	// ClassApprovalExpired: the decision came too late.
	ClassApprovalExpired Class = "approval_expired"
	// ClassApprovalMismatch: the decision is about another call, arguments, tool or policy.
	ClassApprovalMismatch Class = "approval_mismatch"
	// ClassBadSignature: the signature is not valid, or its key is no approver's.
	ClassBadSignature Class = "bad_signature"
	// ClassOutOfScope: the policy does not let the approver decide about this tenant or tool.
	ClassOutOfScope Class = "out_of_scope"
	// ClassKeyExpired: the approver's key has expired.
	ClassKeyExpired Class = "key_expired"
	// ClassSelfApproval: the approver is the requester.
	ClassSelfApproval Class = "self_approval"
	// ClassSameApprover: one person decided twice, but two people have to approve.
	ClassSameApprover Class = "same_approver"
	// ClassTicketMissing: the decision has to name a ticket.
	ClassTicketMissing Class = "ticket_missing"
	// ClassInvalidDecision: the decision cannot be read, or its edit does not fit the tool.
	ClassInvalidDecision Class = "invalid_decision"
)
