package messages

import (
	"encoding/json"
	"time"
)

// CallState is where a call is in its journal.
type CallState string

// The states of a call, in the order in which they may follow one another. A reader takes one that it does not know for
// a claim.
//
//	claimed -> renewed* -> ended
//	claimed -> released -> claimed ...          a failed attempt that is known not to have been applied
//	parked  -> granted  -> claimed ...          a person is asked before the claim
//	ended                                       from outside, or a call that never needed a claim
const (
	Claimed  CallState = "claimed"
	Renewed  CallState = "renewed"
	Released CallState = "released"
	Parked   CallState = "parked"
	Granted  CallState = "granted"
	Ended    CallState = "ended"
)

// CallRecord is one entry in the journal of a call, the subject call.<t>.<s>.<b>.<i>. Each is written
// with the sequence of the one before it as expectation, so of two writers one wins; each says all that
// is needed to decide what is next, so the newest alone is the state of the call. The sequence of the
// newest claim is the fencing token.
type CallRecord struct {
	V     int       `json:"v"`
	State CallState `json:"state"`
	// Nonce is new for every record a writer tries to store: after a lost acknowledgement it tells
	// the writer's own record from another's.
	Nonce string `json:"nonce"`
	// Attempt counts the claims so far, this one included.
	Attempt int `json:"attempt"`
	// Lapsed counts those before this one that ended with their worker, without a record. A release keeps the count.
	Lapsed     int    `json:"lapsed,omitempty"`
	Worker     string `json:"worker,omitempty"`
	ArgsHash   string `json:"args_hash,omitempty"` // hex SHA-256 of the frozen input in canonical form
	ToolDigest string `json:"tool_digest,omitempty"`
	// Fence is the sequence of the claim that this record continues; 0 in the claim itself.
	Fence uint64 `json:"fence,omitempty"`
	// LeaseMS counts from the moment the server stored the record. A worker that could not renew in
	// time has killed its tool by then.
	LeaseMS int64 `json:"lease_ms,omitempty"`
	// DeadlineMS is the longest the run may take, from its start.
	DeadlineMS int64   `json:"deadline_ms,omitempty"`
	OnCrash    OnCrash `json:"on_crash,omitempty"`
	// Input is the frozen input where it is not the job's.
	Input json.RawMessage `json:"input,omitempty"`
	// Permission and Started are of the attempt that claimed: what was decided about it, and when it began by its worker's wall
	// clock. Of an attempt that is lost nobody else can tell.
	Permission *Permission `json:"permission,omitempty"`
	Started    time.Time   `json:"started,omitzero"`
	// Hooks is what the hooks before the tool did. They are not run again for an input that is frozen.
	Hooks        *Hooks  `json:"hooks,omitempty"`
	RetryAfterMS int64   `json:"retry_after_ms,omitempty"` // released: from when it was stored to the next attempt
	Error        *Error  `json:"error,omitempty"`          // released: why
	Result       *Result `json:"result,omitempty"`         // ended
	// Approval is the question that a person was asked, with the decisions so far: in parked, granted, and every
	// record after them.
	Approval *Approval `json:"approval,omitempty"`
	// Span is the attempt that wrote the record, or the one that it continues, as a traceparent: what a later one links to.
	// Empty where it is not recorded.
	Span string `json:"span,omitempty"`
}

// Unsure reports whether an attempt so far may have been applied without anybody's knowing: one that was lost with its
// worker, or one of an idempotent tool that was given up while it ran.
func (r CallRecord) Unsure() bool {
	switch r.State {
	case Claimed, Renewed:
		return true
	case Released:
		return r.Lapsed > 0 || r.OnCrash == Idempotent && (r.Error == nil || r.Error.Code == CodeTimeout || r.Error.Code == CodeOutcomeUnknown)
	}
	return false
}

// PlanRecord is written to plan.<t>.<s>.<b> before the first exclusive call of a batch is dispatched, and
// again before each later one. The first one wins and is adopted by whoever loses: it fixes what each
// call is. Each one makes the reads that ended since the last durable before a write builds on them.
type PlanRecord struct {
	V      int    `json:"v"`
	Nonce  string `json:"nonce"`
	Digest string `json:"digest"` // of the Batch as received
	// Stage is the stage that may be dispatched once this record is stored.
	Stage int           `json:"stage"`
	Calls []PlannedCall `json:"calls,omitempty"` // in the first record only
	// CallsRef is where Calls are when they are too large for a message.
	CallsRef *Ref `json:"calls_ref,omitempty"`
	// Results of calls that ended since the record before, and have no journal of their own.
	Results []Result `json:"results,omitempty"`
	// ActiveMS is how much of its active time the batch had used.
	ActiveMS int64 `json:"active_ms,omitempty"`
}

// PlannedCall is what the plan fixed about one call.
type PlannedCall struct {
	Index           int    `json:"index"`
	Tool            string `json:"tool"`
	ToolDigest      string `json:"tool_digest,omitempty"`
	Kind            Kind   `json:"kind,omitempty"`
	Pool            string `json:"pool,omitempty"`
	ConcurrencySafe bool   `json:"concurrency_safe"`
	Stage           int    `json:"stage"`
	// Refused is the result of a call that can never run: an unknown tool, malformed arguments.
	Refused *Result `json:"refused,omitempty"`
}

// HandBack is written to hand.<t>.<s>.<b>.<i>, the first one wins: the frozen input of the call is
// stricter than its plan, so it runs alone once its stage has ended.
type HandBack struct {
	V        int    `json:"v"`
	ArgsHash string `json:"args_hash"`
	Worker   string `json:"worker"`
	Reason   string `json:"reason"`
}

// ControlRecord is a stored [Control], on ctl.<t>.<s>. It reaches the batches whose sequence in the log is
// at most UpTo: those that were there when it was asked for. An abort by batch id also reaches a later batch,
// see [ControlRecord.Aborts]. A steering message waits for the first reply that can take it along.
type ControlRecord struct {
	Control
	UpTo uint64 `json:"up_to"`
	// Taken says that the reply of a batch takes the steering messages along that were stored before this record
	// and not taken yet.
	Taken string `json:"taken,omitempty"` // the batch's token
}

// clockSkew is how much the clocks of two servers of a cluster may differ.
const clockSkew = 5 * time.Second

// Aborts reports whether the record, stored at the time at, aborts a batch: its token, its sequence in the log
// and the time at which it was stored. An abort of the session is for the batches that were there. An abort by id
// also holds for a batch that is stored up to ttl after it: the two may overtake each other on their way.
// Both times are the server's. A server that restarted can give a later batch a sequence that was given before,
// so a later batch is told by its time too.
func (r ControlRecord) Aborts(at time.Time, batch string, seq uint64, stored time.Time, ttl time.Duration) bool {
	id, all := r.Batch()
	if all || id == "" {
		return all && r.UpTo >= seq && !stored.After(at.Add(clockSkew))
	}
	return Token(id) == batch && (r.UpTo >= seq || !stored.After(at.Add(ttl)))
}

// Buried is a message that could not be processed at all, kept on the dead subject with the reason.
type Buried struct {
	V       int                 `json:"v"`
	Subject string              `json:"subject"`
	Reason  string              `json:"reason"`
	Header  map[string][]string `json:"header,omitempty"`
	Body    []byte              `json:"body"` // base64; the start of it when all is too large for a message
	Size    int                 `json:"size"` // bytes of the whole body
	Stored  time.Time           `json:"stored,omitzero"`
}

// Presence is what a worker says of itself while it is there, under its name in the workers bucket. It is
// forgotten soon after the worker stops saying it.
type Presence struct {
	V       int      `json:"v"`
	Worker  string   `json:"worker"`
	Version string   `json:"version,omitempty"`
	Pools   []string `json:"pools"`
	Tools   []string `json:"tools"`
	// Toolsets is what it serves, by pool: the digest of each tool, by name. Absent from workers of older versions.
	Toolsets map[string]map[string]string `json:"toolsets,omitempty"`
	Denied   []string                     `json:"denied,omitempty"` // those of the tools that its policy denies altogether
	Policy   string                       `json:"policy,omitempty"` // the version of the policy that it decides by
	Slots    int                          `json:"slots"`            // calls of one pool at once
	Busy     int                          `json:"busy"`             // calls in hand when this was said
	Started  time.Time                    `json:"started"`
	Seen     time.Time                    `json:"seen"` // when this was said, by the worker's clock
}
