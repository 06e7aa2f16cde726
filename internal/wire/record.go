package wire

import (
	"encoding/json"
	"time"

	"github.com/toolfleet/toolfleet/messages"
)

// CallState is the state of a call in its journal.
type CallState string

// The states of a call, in the order in which they may follow one another. A reader treats an
// unknown state as a claim.
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

// CallRecord is one entry in the journal of a call, on the subject call.<t>.<s>.<b>.<i>. Only
// one record can follow another: the server refuses a record if its writer has not seen the
// newest one. The newest record has everything that is needed to decide the next step. The
// sequence of the newest claim is the fencing token.
type CallRecord struct {
	V     int       `json:"v"`
	State CallState `json:"state"`
	// Nonce is new for every record that a writer tries to store. If the acknowledgement is
	// lost, the writer recognizes its own record by the nonce.
	Nonce string `json:"nonce"`
	// Attempt is the number of claims up to now, this claim included.
	Attempt int `json:"attempt"`
	// Lapsed is the number of earlier claims whose worker was lost before it wrote another
	// record. A release keeps the number.
	Lapsed int `json:"lapsed,omitempty"`
	// MayHaveRun says that an earlier attempt may have been applied although no record says
	// so.
	MayHaveRun bool   `json:"may_have_run,omitempty"`
	Worker     string `json:"worker,omitempty"`
	// ArgsHash is the hex SHA-256 of the tool's input in canonical form.
	ArgsHash   string `json:"args_hash,omitempty"`
	ToolDigest string `json:"tool_digest,omitempty"`
	// Fence is the sequence of the claim that this record continues. It is 0 in the claim
	// itself.
	Fence uint64 `json:"fence,omitempty"`
	// LeaseMS is how long the claim is valid, counted from when the server stored the record.
	// If the worker cannot renew the claim, it kills its tool before the end of this time.
	LeaseMS int64 `json:"lease_ms,omitempty"`
	// DeadlineMS is how long the run may take, from its start.
	DeadlineMS int64            `json:"deadline_ms,omitempty"`
	OnCrash    messages.OnCrash `json:"on_crash,omitempty"`
	// Input is the input of the tool after the changes of hooks and people. It is set if it
	// differs from the job's.
	Input json.RawMessage `json:"input,omitempty"`
	// Permission is the decision about the attempt that claimed. Started is when that attempt
	// began, by its worker's clock. If the worker is lost, only this record has them.
	Permission *messages.Permission `json:"permission,omitempty"`
	Started    time.Time            `json:"started,omitzero"`
	// Hooks is what the hooks before the tool did. The hooks do not run again when another
	// worker continues the call.
	Hooks *messages.Hooks `json:"hooks,omitempty"`
	// RetryAfterMS is set in a release. It is the wait before the next attempt, counted from
	// when the release was stored.
	RetryAfterMS int64            `json:"retry_after_ms,omitempty"`
	Error        *messages.Error  `json:"error,omitempty"`  // in a release: why the attempt failed
	Result       *messages.Result `json:"result,omitempty"` // result of the call; only in the record that ends it
	// Approval is the question to people, with the decisions up to now. It is set in parked,
	// in granted, and in all later records.
	Approval *messages.Approval `json:"approval,omitempty"`
	// Span is the traceparent of the attempt that wrote the record or that the record
	// continues. A later attempt links to it. It is empty if the attempt is not traced.
	Span string `json:"span,omitempty"`
}

// Unsure reports whether an earlier attempt may have been applied although no record says so.
// Either its worker was lost, or the attempt was given up while it ran, because the tool is
// idempotent.
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
// dispatched, and again before each later one. The first record decides what each call is. A
// coordinator that comes second takes over the plan in it. Each record also has the results of
// the reads that have ended since the previous record. These results are then durable, so a
// write can build on them.
type PlanRecord struct {
	V      int    `json:"v"`
	Nonce  string `json:"nonce"`
	Digest string `json:"digest"` // of the batch's body
	// Stage is the stage that may be dispatched when this record is stored.
	Stage int           `json:"stage"`
	Calls []PlannedCall `json:"calls,omitempty"` // only in the first record
	// CallsRef points to the Calls if they are too large for a message.
	CallsRef *messages.Ref `json:"calls_ref,omitempty"`
	// Results has the results of calls that ran without a claim and have ended since the
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
	// InputHash is the hex SHA-256 of the call's input, in the form of the job. Only calls of
	// tools that may change the world have it. Plans of the previous build do not have it.
	InputHash       string `json:"input_hash,omitempty"`
	Pool            string `json:"pool,omitempty"`
	ConcurrencySafe bool   `json:"concurrency_safe"`
	// Fixed says that the call may run beside others with every input that hooks could make.
	// It is never handed back, and later batches of the session need not wait for it.
	Fixed bool `json:"fixed,omitempty"`
	Stage int  `json:"stage"`
	// Refused is the result of a call that can never run, for example of an unknown tool.
	Refused *messages.Result `json:"refused,omitempty"`
}

// HandBack is written to hand.<t>.<s>.<b>.<i>. The first one of a call counts. It says that
// the call was planned to run beside others, but must run alone because of its final input.
// The call then runs alone at the end of its stage.
type HandBack struct {
	V        int    `json:"v"`
	ArgsHash string `json:"args_hash"`
	Worker   string `json:"worker"`
	Reason   string `json:"reason"`
}

// ControlRecord is a stored [messages.Control], on ctl.<t>.<s>. It applies to the batches that
// were in the log when it was requested: those with a sequence up to UpTo. An abort of one
// batch also applies to a batch that comes later: see [ControlRecord.Aborts]. A steering
// message goes into one reply: the first stored reply that takes it.
type ControlRecord struct {
	messages.Control
	UpTo uint64 `json:"up_to"`
	// Taken says that a reply takes the steering messages before this record, as far as no
	// earlier reply has taken them. Its value is the token of the batch of that reply.
	Taken string `json:"taken,omitempty"`
}

// clockSkew is the largest difference between the clocks of two servers of a cluster.
const clockSkew = 5 * time.Second

// Covers reports whether a batch was in the log when the record was requested. at is when the
// record was stored. seq is the sequence of the batch. stored is when the log stored the
// batch. The time is needed too, because a server that has restarted may give the same
// sequence to a later batch.
func (r ControlRecord) Covers(at time.Time, seq uint64, stored time.Time) bool {
	return r.UpTo >= seq && !stored.After(at.Add(clockSkew))
}

// Aborts reports whether the record aborts a batch. at is when the record was stored. batch is
// the token of the batch, seq its sequence, and stored the time when the log stored it. Both
// times are by the server's clock. An abort of the session applies to the batches that were in
// the log at that time. An abort of one batch also applies if the batch is stored up to ttl
// later, because the abort may arrive before the batch.
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
	// Body is base64 in JSON. It is cut if it is too large for a message.
	Body   []byte    `json:"body"`
	Size   int       `json:"size"` // bytes of the whole body
	Stored time.Time `json:"stored,omitzero"`
}

// Presence is what a worker announces about itself, under its name in the workers bucket. It
// is deleted soon after the worker stops announcing.
type Presence struct {
	// Tenant is the token of the only tenant that the worker may serve, or "" for all. It is
	// not in the announcement but in its key, which the NATS server checks: see
	// [ReadPresence].
	Tenant  string   `json:"-"`
	V       int      `json:"v"`
	Worker  string   `json:"worker"`
	Version string   `json:"version,omitempty"`
	Pools   []string `json:"pools"`
	Tools   []string `json:"tools"`
	// Toolsets has the tools that the worker serves: the digest of each, by pool and name. If
	// a tool is served in several versions, Toolsets has the newest, and Queues has all.
	// Workers of older versions do not send it.
	Toolsets map[string]map[string]string `json:"toolsets,omitempty"`
	// Queues says from which queue the worker takes jobs, for each pool. Workers of older
	// versions do not send it, and take jobs from the queue of the pool.
	Queues map[string]Queue `json:"queues,omitempty"`
	// Servers has the MCP servers and programs that bring tools.
	Servers []ToolServer `json:"servers,omitempty"`
	// Hooks has the hooks whose last start or run failed.
	Hooks []FailingHook `json:"hooks,omitempty"`
	// Draining says that the worker takes no new jobs and ends soon.
	Draining bool `json:"draining,omitempty"`
	// Denied lists those of Tools that the worker's policy denies in every case.
	Denied []string `json:"denied,omitempty"`
	// Gaps says what a sandbox cannot prevent, by tool or server.
	Gaps map[string][]string `json:"gaps,omitempty"`
	// Policy is the version of the worker's policy.
	Policy  string    `json:"policy,omitempty"`
	Slots   int       `json:"slots"` // limit on running calls of one pool
	Busy    int       `json:"busy"`  // calls that the worker has at present
	Started time.Time `json:"started"`
	// Seen is when the worker made this announcement, by its clock.
	Seen time.Time `json:"seen"`
}

// FailingHook is a hook whose last start or run failed.
type FailingHook struct {
	Name  string `json:"name"`
	Class string `json:"class"` // gate or observe
	Why   string `json:"why"`   // never quotes a call or the hook
}

// ToolServer is a program or service that brings tools to a worker.
type ToolServer struct {
	Name  string `json:"name"`
	Tools int    `json:"tools"` // how many of its tools are served
	// Down says why the server does not run; "": no problem is known.
	Down string `json:"down,omitempty"`
	// Printed is the end of the output of a program that could not be started. Advice says
	// what to do about it.
	Printed string   `json:"printed,omitempty"`
	Advice  string   `json:"advice,omitempty"`
	Refused []string `json:"refused,omitempty"` // tools that the server lists and the worker does not serve, with the reason
}
