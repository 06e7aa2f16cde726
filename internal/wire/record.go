package wire

import (
	"encoding/json"
	"time"

	"github.com/toolfleet/toolfleet/messages"
)

// CallState is the state of a call in its journal.
type CallState string

// The states of a call, in the order in which they may follow one another. A reader treats a state
// that it does not know as a claim.
//
//	claimed -> renewed* -> ended
//	claimed -> released -> claimed ...          a failed attempt that was certainly not applied
//	parked  -> granted  -> claimed ...          a person is asked before the claim
//	ended                                       by a coordinator, or a call that needed no claim
const (
	Claimed  CallState = "claimed"
	Renewed  CallState = "renewed"
	Released CallState = "released"
	Parked   CallState = "parked"
	Granted  CallState = "granted"
	Ended    CallState = "ended"
)

// CallRecord is one entry in the journal of a call, on the subject call.<t>.<s>.<b>.<i>.
// Two writers never follow the same record: the server refuses a record if its writer has
// not seen the newest one. The newest record has everything that is needed to decide the
// next step. The sequence of the newest claim is the fencing token.
type CallRecord struct {
	V     int       `json:"v"`
	State CallState `json:"state"`
	// Nonce is new for every record that a writer tries to store. By it the writer
	// recognizes its own record if the acknowledgement was lost.
	Nonce string `json:"nonce"`
	// Attempt counts the claims so far, including this one.
	Attempt int `json:"attempt"`
	// Lapsed counts the earlier claims whose worker was lost before it wrote another
	// record. A release keeps the count.
	Lapsed int `json:"lapsed,omitempty"`
	// MayHaveRun says that an earlier attempt may have been applied although no record says
	// that it was.
	MayHaveRun bool   `json:"may_have_run,omitempty"`
	Worker     string `json:"worker,omitempty"`
	// ArgsHash is the hex SHA-256 of the tool's input in canonical form.
	ArgsHash   string `json:"args_hash,omitempty"`
	ToolDigest string `json:"tool_digest,omitempty"`
	// Fence is the sequence of the claim that this record continues; 0 in the claim itself.
	Fence uint64 `json:"fence,omitempty"`
	// LeaseMS is how long the claim is valid, counted from when the server stored the
	// record. If the worker cannot renew the claim, it kills its tool before that time is
	// over.
	LeaseMS int64 `json:"lease_ms,omitempty"`
	// DeadlineMS is how long the run may take, from its start.
	DeadlineMS int64            `json:"deadline_ms,omitempty"`
	OnCrash    messages.OnCrash `json:"on_crash,omitempty"`
	// Input is the input of the tool after the changes of hooks and people, if it differs
	// from the job's.
	Input json.RawMessage `json:"input,omitempty"`
	// Permission is the decision about the attempt that claimed. Started is when that
	// attempt began, by its worker's clock. If the worker is lost, no other record has
	// these two.
	Permission *messages.Permission `json:"permission,omitempty"`
	Started    time.Time            `json:"started,omitzero"`
	// Hooks is what the hooks before the tool did. They do not run again when another worker
	// continues the call.
	Hooks *messages.Hooks `json:"hooks,omitempty"`
	// RetryAfterMS is set in a release. It is the wait before the next attempt, from when
	// the release was stored.
	RetryAfterMS int64            `json:"retry_after_ms,omitempty"`
	Error        *messages.Error  `json:"error,omitempty"`  // in a release: why the attempt failed
	Result       *messages.Result `json:"result,omitempty"` // ended
	// Approval is the question that people were asked, with the decisions so far. It is set
	// in parked, in granted, and in all later records.
	Approval *messages.Approval `json:"approval,omitempty"`
	// Span is the traceparent of the attempt that wrote the record, or of the one that the
	// record continues. A later attempt links to it. It is empty if the attempt is not
	// traced.
	Span string `json:"span,omitempty"`
}

// Unsure reports whether an earlier attempt may have been applied although no record says
// that it was. Either its worker was lost, or the attempt was given up while it ran,
// because the tool is idempotent.
func (r CallRecord) Unsure() bool {
	switch r.State {
	case Claimed, Renewed:
		return true
	case Released:
		return r.Lapsed > 0 || r.MayHaveRun || r.OnCrash == messages.OnCrashIdempotent && (r.Error == nil || r.Error.Code == messages.CodeTimeout || r.Error.Code == messages.CodeOutcomeUnknown)
	}
	return false
}

// PlanRecord is written to plan.<t>.<s>.<b> before the first exclusive call of a batch is
// dispatched, and again before each later one. The first record decides what each call is;
// a slower coordinator takes that plan over. Each record also has the results of the reads
// that have ended since the previous record. So these are durable, and a write can build on
// them.
type PlanRecord struct {
	V      int    `json:"v"`
	Nonce  string `json:"nonce"`
	Digest string `json:"digest"` // of the Batch as received
	// Stage is the stage that may be dispatched when this record is stored.
	Stage int           `json:"stage"`
	Calls []PlannedCall `json:"calls,omitempty"` // in the first record only
	// CallsRef points to the Calls when they are too large for a message.
	CallsRef *messages.Ref `json:"calls_ref,omitempty"`
	// Results holds the results of calls that do not claim and have ended since the
	// previous record.
	Results []messages.Result `json:"results,omitempty"`
	// ActiveMS is how much of its active time the batch has used.
	ActiveMS int64 `json:"active_ms,omitempty"`
}

// PlannedCall is what the plan says about one call.
type PlannedCall struct {
	Index      int           `json:"index"`
	Tool       string        `json:"tool"`
	ToolDigest string        `json:"tool_digest,omitempty"`
	Kind       messages.Kind `json:"kind,omitempty"`
	// InputHash is the hex SHA-256 of the call's input, as the job has it. Only calls of tools that
	// may change the world have one; plans of the build before have none.
	InputHash       string `json:"input_hash,omitempty"`
	Pool            string `json:"pool,omitempty"`
	ConcurrencySafe bool   `json:"concurrency_safe"`
	// Fixed says that the call may run beside others for every input that hooks could make.
	// It is never handed back, and later batches of the session need not wait for it.
	Fixed bool `json:"fixed,omitempty"`
	Stage int  `json:"stage"`
	// Refused is the result of a call that can never run: an unknown tool, malformed arguments.
	Refused *messages.Result `json:"refused,omitempty"`
}

// HandBack is written to hand.<t>.<s>.<b>.<i>. The first one counts. It says that the call
// was planned to run beside others, but its final input must run alone. So the call runs
// alone at the end of its stage.
type HandBack struct {
	V        int    `json:"v"`
	ArgsHash string `json:"args_hash"`
	Worker   string `json:"worker"`
	Reason   string `json:"reason"`
}

// ControlRecord is a stored [Control], on ctl.<t>.<s>. It applies to the batches that were
// in the log when it was requested: those with a sequence up to UpTo. An abort of one batch
// also applies to a batch that comes later: see [ControlRecord.Aborts]. A steering message
// goes into one reply: the first one to be stored that takes it.
type ControlRecord struct {
	messages.Control
	UpTo uint64 `json:"up_to"`
	// Taken marks the steering messages before this record that no reply had taken as
	// taken. Its value is the token of the batch whose reply has them.
	Taken string `json:"taken,omitempty"`
}

// clockSkew is the largest difference between the clocks of two servers of a cluster.
const clockSkew = 5 * time.Second

// Covers reports whether a batch was in the log when the record was requested. at is when
// the record was stored. seq and stored are the sequence of the batch and the time when the
// log stored it. Both are needed, because a restarted server may give the same sequence to
// a later batch.
func (r ControlRecord) Covers(at time.Time, seq uint64, stored time.Time) bool {
	return r.UpTo >= seq && !stored.After(at.Add(clockSkew))
}

// Aborts reports whether the record aborts a batch. at is when the record was stored. batch
// is the token of the batch, seq its sequence, and stored the time when the log stored it;
// both times are the server's. An abort of the session applies to the batches that were in
// the log then. An abort of one batch also applies to a batch that is stored up to ttl
// later, because the abort may overtake the batch on its way.
func (r ControlRecord) Aborts(at time.Time, batch string, seq uint64, stored time.Time, ttl time.Duration) bool {
	id, all := r.AbortTarget()
	if all || id == "" {
		return all && r.Covers(at, seq, stored)
	}
	return messages.Token(id) == batch && (r.UpTo >= seq || !stored.After(at.Add(ttl)))
}

// DeadLetter is a message that could not be processed at all, with the reason.
type DeadLetter struct {
	V       int                 `json:"v"`
	Subject string              `json:"subject"`
	Reason  string              `json:"reason"`
	Header  map[string][]string `json:"header,omitempty"`
	// Body is base64 on the wire. If it is too large for a message, it is cut.
	Body   []byte    `json:"body"`
	Size   int       `json:"size"` // bytes of the whole body
	Stored time.Time `json:"stored,omitzero"`
}

// Presence is what a worker announces about itself, under its name in the workers bucket. It ages
// out soon after the worker stops announcing.
type Presence struct {
	V       int      `json:"v"`
	Worker  string   `json:"worker"`
	Version string   `json:"version,omitempty"`
	Pools   []string `json:"pools"`
	Tools   []string `json:"tools"`
	// Toolsets holds the tools that the worker serves: by pool and name, the digest of
	// each. If a tool is served in several versions, it has the newest; Queues has all.
	// Workers of older versions do not send it.
	Toolsets map[string]map[string]string `json:"toolsets,omitempty"`
	// Queues says for each pool from which queue the worker takes jobs. Workers of older
	// versions do not send it, and take jobs from the queue of the pool.
	Queues map[string]Queue `json:"queues,omitempty"`
	// Servers holds the MCP servers and programs that bring tools.
	Servers []ToolServer `json:"servers,omitempty"`
	// Hooks holds the hooks whose last start or run failed.
	Hooks []FailingHook `json:"hooks,omitempty"`
	// Draining says that the worker takes no new jobs and ends soon.
	Draining bool `json:"draining,omitempty"`
	// Denied lists those of Tools that the worker's policy always denies.
	Denied []string `json:"denied,omitempty"`
	// Gaps says, by tool or server, what a sandbox cannot prevent.
	Gaps map[string][]string `json:"gaps,omitempty"`
	// Policy is the version of the worker's policy.
	Policy  string    `json:"policy,omitempty"`
	Slots   int       `json:"slots"` // limit on running calls of one pool
	Busy    int       `json:"busy"`  // calls that the worker has at present
	Started time.Time `json:"started"`
	// Seen is when the worker announced this, by its clock.
	Seen time.Time `json:"seen"`
}

// FailingHook is a hook whose last start or run failed.
type FailingHook struct {
	Name  string `json:"name"`
	Class string `json:"class"` // gate or observe
	Why   string `json:"why"`   // quotes neither a call nor the hook
}

// ToolServer is a program or service that brings tools to a worker.
type ToolServer struct {
	Name  string `json:"name"`
	Tools int    `json:"tools"` // how many are served
	// Down says why the server does not run; "": no problem is known.
	Down string `json:"down,omitempty"`
	// Printed is the end of what the program printed when it could not be started. Advice
	// says what to do about that.
	Printed string   `json:"printed,omitempty"`
	Advice  string   `json:"advice,omitempty"`
	Refused []string `json:"refused,omitempty"` // tools that the server lists and the worker does not serve, with the reason
}
