package messages

import (
	"cmp"
	"encoding/json"
	"time"
)

// AuditType is what an [AuditRecord] tells of.
type AuditType string

// What is written down for people. Every call of every batch has one line of the type call; the others tell of what happened
// on its way.
const (
	AuditCall         AuditType = "call"              // a call has ended, or was never run: one for each call of a batch
	AuditBatchRefused AuditType = "batch_refused"     // a batch was refused as a whole: none of its calls was run
	AuditAllowed      AuditType = "allowed"           // a call of the tier medium is about to run
	AuditAsked        AuditType = "approval_asked"    // a question was put to people
	AuditDecided      AuditType = "approval_decided"  // a decision was taken
	AuditRefused      AuditType = "decision_refused"  // a decision was not taken: forged, late, replayed, one's own...
	AuditExpired      AuditType = "approval_expired"  // nobody decided in time
	AuditVoid         AuditType = "approval_void"     // a granted call was not run: it did not hold when it was checked again
	AuditGranted      AuditType = "approval_executed" // a granted call is about to run
)

// AuditRecord is one line of the record for people. It holds no arguments and no results, but those fields of arguments that
// the operator has listed.
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
	// ToolDigest names the definition of the tool: its version.
	ToolDigest string `json:"tool_digest,omitempty"`
	// ArgsHash and Original are of the arguments as they ran, and of those before an edit: by default the first 16 hex digits
	// of an HMAC with a key of the tenant's, so that they can be compared and not guessed. See internal/audit.
	ArgsHash   string      `json:"args_hash,omitempty"`
	Original   string      `json:"original,omitempty"`
	Permission *Permission `json:"permission,omitempty"`
	Approval   string      `json:"approval,omitempty"`
	Decision   *Decision   `json:"decision,omitempty"` // without the arguments of an edit
	Refusal    *Refusal    `json:"refusal,omitempty"`
	Writer     string      `json:"writer,omitempty"` // the coordinator or worker that wrote it
	TraceID    string      `json:"trace_id,omitempty"`

	// The rest is told of calls that have ended, and some of it of refused batches.

	// Digest is of the batch as it was received, made like ArgsHash: a plain one would let anybody find the arguments by trying.
	Digest   string   `json:"digest,omitempty"`
	Provider Provider `json:"provider,omitempty"`
	Round    int      `json:"round,omitempty"`
	Kind     Kind     `json:"kind,omitempty"`
	Status   Status   `json:"status,omitempty"`
	Code     Code     `json:"code,omitempty"` // of the error
	Attempt  int      `json:"attempt,omitempty"`
	Worker   string   `json:"worker,omitempty"` // that brought it to its end
	// Accepted is when the batch was stored, Started when the last attempt began; Ended is the record's Time.
	Accepted   time.Time `json:"accepted,omitzero"`
	Started    time.Time `json:"started,omitzero"`
	QueueMS    float64   `json:"queue_ms,omitempty"`
	DurationMS float64   `json:"duration_ms,omitempty"`
	PhasesMS   PhasesMS  `json:"phases_ms,omitzero"`
	// ResultHash is of what the model was given, ToolHash of what the tool gave, where a hook replaced it.
	ResultHash string `json:"result_hash,omitempty"`
	ToolHash   string `json:"tool_hash,omitempty"`
	// Arguments are the fields that the operator has listed, as they ran.
	Arguments map[string]json.RawMessage `json:"arguments,omitempty"`
}

// AuditLines is several lines in one message: those of the calls of a batch, which are stored together before the batch
// leaves the log. Where they do not fit, it is a part of them.
type AuditLines struct {
	V int `json:"v"`
	// Token is the batch's id as subjects have it, and Seq its place in the log, which tells it apart from a later one with
	// the same id.
	Token string `json:"token"`
	Seq   uint64 `json:"seq"`
	// About is what the lines have in common: tenant, session, batch, digest, provider, round, accepted, trace and writer stand
	// here alone, however many calls there are.
	About AuditRecord `json:"about"`
	// Earlier is the indices of the lines that the parts before this one have, so that the newest part tells what is stored.
	Earlier []int `json:"earlier,omitempty"`
	// Last says that no part follows: all lines of the batch are stored.
	Last  bool          `json:"last,omitempty"`
	Lines []AuditRecord `json:"lines"`
}

// Whole is the lines with what they have in common.
func (a AuditLines) Whole() []AuditRecord {
	lines := make([]AuditRecord, len(a.Lines))
	for i, l := range a.Lines {
		l.Tenant, l.Session, l.Batch = cmp.Or(l.Tenant, a.About.Tenant), cmp.Or(l.Session, a.About.Session), cmp.Or(l.Batch, a.About.Batch)
		l.Digest, l.Provider, l.Round = cmp.Or(l.Digest, a.About.Digest), cmp.Or(l.Provider, a.About.Provider), cmp.Or(l.Round, a.About.Round)
		l.TraceID, l.Writer = cmp.Or(l.TraceID, a.About.TraceID), cmp.Or(l.Writer, a.About.Writer)
		if l.Accepted.IsZero() {
			l.Accepted = a.About.Accepted
		}
		lines[i] = l
	}
	return lines
}

// Trail is what only the record for people is told of a result: it travels with the result as far as the coordinator.
type Trail struct {
	ArgsHash   string   `json:"args_hash,omitempty"`   // hex SHA-256 of the frozen input in canonical form
	ResultHash string   `json:"result_hash,omitempty"` // hex SHA-256 of what the model is given
	ToolHash   string   `json:"tool_hash,omitempty"`   // hex SHA-256 of what the tool gave, where a hook replaced it
	PhasesMS   PhasesMS `json:"phases_ms,omitzero"`
	// Span is the attempt in its trace, as a traceparent; empty where it is not recorded.
	Span string `json:"span,omitempty"`
}

// PhasesMS is how long the phases of a call took, in milliseconds; 0 for one that it did not enter.
type PhasesMS struct {
	Validate    float64 `json:"validate,omitzero"`
	Semantic    float64 `json:"semantic,omitzero"`
	PreHooks    float64 `json:"pre-hooks,omitzero"`
	Permissions float64 `json:"permissions,omitzero"`
	Execute     float64 `json:"execute,omitzero"`
	PostHooks   float64 `json:"post-hooks,omitzero"`
}
