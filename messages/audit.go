package messages

import (
	"encoding/json"
	"time"
)

// AuditType says what an [AuditRecord] is about.
type AuditType string

// The types of lines in the audit log. Every call of every batch has one line of the type
// call; the other types show what happened before the call ended.
const (
	// AuditCall: a call has ended, or was never run: one for each call of a batch.
	AuditCall AuditType = "call"
	// AuditBatchRefused: a batch was refused as a whole: none of its calls was run.
	AuditBatchRefused AuditType = "batch_refused"
	// AuditAllowed: a call of the tier medium is about to run.
	AuditAllowed AuditType = "allowed"
	// AuditAsked: a question was put to people.
	AuditAsked AuditType = "approval_asked"
	// AuditDecided: a decision was taken.
	AuditDecided AuditType = "approval_decided"
	// AuditRefused: a decision was refused: it was forged, late or replayed, or by the requester.
	AuditRefused AuditType = "decision_refused"
	// AuditExpired: no decision came in time.
	AuditExpired AuditType = "approval_expired"
	// AuditVoid: a granted call did not run, because a check before the run refused it.
	AuditVoid AuditType = "approval_void"
	// AuditGranted: a granted call is about to run.
	AuditGranted AuditType = "approval_executed"
)

// AuditRecord is one line of the audit log. It holds no arguments and no results, except those
// fields of the arguments that the operator has listed.
type AuditRecord struct {
	V       int       `json:"v"`
	Type    AuditType `json:"type"`
	Time    time.Time `json:"time"` // the writer's wall clock
	Tenant  TenantID  `json:"tenant,omitempty"`
	Session SessionID `json:"session,omitempty"`
	Batch   BatchID   `json:"batch,omitempty"`
	Index   int       `json:"index"` // of the call; -1: about the batch
	CallID  CallID    `json:"call_id,omitempty"`
	Tool    string    `json:"tool,omitempty"`
	// ToolDigest names the definition of the tool, and so its version.
	ToolDigest string `json:"tool_digest,omitempty"`
	// ArgsHash is the hash of the arguments that ran, Original that of the arguments before a
	// person's edit. By default each is the first 16 hex digits of an HMAC with a key of the
	// tenant. So hashes can be compared, and the arguments cannot be guessed. See internal/audit.
	ArgsHash   string      `json:"args_hash,omitempty"`
	Original   string      `json:"original,omitempty"`
	Permission *Permission `json:"permission,omitempty"`
	Approval   string      `json:"approval,omitempty"`
	Decision   *Decision   `json:"decision,omitempty"` // without the arguments of an edit
	Refusal    *Refusal    `json:"refusal,omitempty"`
	Writer     string      `json:"writer,omitempty"` // the coordinator or worker that wrote the line
	// Doubt says why the line may be false. A reader sets it; a stored line has none.
	Doubt   string `json:"doubt,omitempty"`
	TraceID string `json:"trace_id,omitempty"`

	// The fields below are set for calls that have ended, and some of them for refused batches.

	// Digest is the hash of the batch as received, made like ArgsHash. A plain hash would let
	// a reader find the arguments by trying values.
	Digest   string   `json:"digest,omitempty"`
	Provider Provider `json:"provider,omitempty"`
	Round    int      `json:"round,omitempty"`
	// Principal says who asked for the batch; nil: the user is not known. Labels are those of
	// the batch.
	Principal *Principal        `json:"principal,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Kind      Kind              `json:"kind,omitempty"`
	Status    Status            `json:"status,omitempty"`
	Code      Code              `json:"code,omitempty"` // of the error
	// Retryable: the error said that the same call may succeed later.
	Retryable bool   `json:"retryable,omitempty"`
	Attempt   int    `json:"attempt,omitempty"`
	Worker    string `json:"worker,omitempty"` // the worker that ended the call
	// Accepted is when the batch was stored, Started when the last attempt began. The record's Time
	// is when the call ended.
	Accepted   time.Time `json:"accepted,omitzero"`
	Started    time.Time `json:"started,omitzero"`
	QueueMS    float64   `json:"queue_ms,omitempty"`
	DurationMS float64   `json:"duration_ms,omitempty"`
	PhasesMS   PhasesMS  `json:"phases_ms,omitzero"`
	// ResultHash is the hash of the result that the model got. ToolHash is the hash of the tool's
	// own result, if a hook replaced it.
	ResultHash string `json:"result_hash,omitempty"`
	ToolHash   string `json:"tool_hash,omitempty"`
	// Arguments holds the fields that the operator has listed, as they ran.
	Arguments map[string]json.RawMessage `json:"arguments,omitempty"`
}

// Trail holds the parts of a result that only the audit log shows. The coordinator takes it
// out of the result when it answers the batch.
type Trail struct {
	// ArgsHash is the hex SHA-256 of the input that the tool was run with, in canonical form.
	ArgsHash   string `json:"args_hash,omitempty"`
	ResultHash string `json:"result_hash,omitempty"` // hex SHA-256 of what the model is given
	// ToolHash is the hex SHA-256 of the tool's own result, if a hook replaced it.
	ToolHash string   `json:"tool_hash,omitempty"`
	PhasesMS PhasesMS `json:"phases_ms,omitzero"`
	// Span identifies the attempt in its trace, as a traceparent; empty when it is not recorded.
	Span string `json:"span,omitempty"`
}

// PhasesMS holds how long the phases of a call took, in milliseconds; 0: the call did not enter the
// phase.
type PhasesMS struct {
	Validate    float64 `json:"validate,omitzero"`
	Semantic    float64 `json:"semantic,omitzero"`
	PreHooks    float64 `json:"pre-hooks,omitzero"`
	Permissions float64 `json:"permissions,omitzero"`
	Execute     float64 `json:"execute,omitzero"`
	PostHooks   float64 `json:"post-hooks,omitzero"`
}
