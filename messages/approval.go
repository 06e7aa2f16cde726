package messages

import (
	"encoding/json"
	"time"

	"github.com/toolfleet/toolfleet/internal/rawjson"
)

// Tier says how much is at stake in a call. It decides what must happen before the call may run.
type Tier string

// The tiers and their gates.
const (
	// TierLow has no gate.
	TierLow Tier = "low"
	// TierMedium: a line is in the audit log before the call runs.
	TierMedium Tier = "medium"
	// TierHigh: one person agrees.
	TierHigh Tier = "high"
	// TierCritical: two people agree, and one of them names a ticket.
	TierCritical Tier = "critical"
)

// Tiers lists every tier, the lowest first.
var Tiers = []Tier{TierLow, TierMedium, TierHigh, TierCritical}

// The effects of a permission. Hooks and tools have the same three opinions.
const (
	EffectAllow = "allow"
	EffectAsk   = "ask" // a person was asked
	EffectDeny  = "deny"
)

// The sources of a permission: what made the decision.
const (
	SourceRule    = "rule"
	SourceTier    = "tier"
	SourceHook    = "hook"
	SourceTool    = "tool"    // the tool's own opinion
	SourceDefault = "default" // of the policy: no rule matched
	SourcePerson  = "person"
)

// Permission is the decision whether a call may run, with its source. The worker's phase
// "permissions" makes it, after the hooks before the tool and before the tool itself.
type Permission struct {
	Effect string `json:"effect"`          // [EffectAllow], [EffectAsk] or [EffectDeny]
	Source string `json:"source"`          // [SourceRule], ...
	Rule   string `json:"rule,omitempty"`  // the name of the rule or hook
	Layer  string `json:"layer,omitempty"` // the file that holds the rule
	Tier   Tier   `json:"tier,omitempty"`
	Policy string `json:"policy,omitempty"` // the version of the policy
	// Approval is the id of the question, By lists the people who approved, and Ticket is the
	// ticket that they named.
	Approval string   `json:"approval,omitempty"`
	By       []string `json:"by,omitempty"`
	Ticket   string   `json:"ticket,omitempty"`
	// Edited reports that a person changed the arguments.
	Edited bool `json:"edited,omitempty"`
}

// Approval is a question to people: may exactly this call run? It is in the call's journal while
// the call is parked, and in every record after that. A decision holds only for this question:
// other arguments, another definition of the tool or another policy give another question with
// another id.
type Approval struct {
	V int `json:"v"`
	// ID is a digest, in hex, of everything that a decision is bound to.
	ID         string    `json:"id"`
	Tenant     TenantID  `json:"tenant"`
	Session    SessionID `json:"session"`
	Batch      BatchID   `json:"batch"`
	Index      int       `json:"index"`
	CallID     CallID    `json:"call_id"`
	Tool       string    `json:"tool"`
	Kind       Kind      `json:"kind"`
	ToolDigest string    `json:"tool_digest"`
	// Input holds the arguments that would run: those after the hooks, or those of the last edit.
	Input    json.RawMessage `json:"input"`
	ArgsHash string          `json:"args_hash"` // of Input: hex SHA-256 of its canonical form
	// Original holds the arguments of the first question, if a person has edited them.
	Original *Arguments `json:"original,omitempty"`
	// Line shows the call to people on one line. It is made only from the tool's name and Input.
	Line      string `json:"line"`
	Requester string `json:"requester"` // the tenant whose agent asks, as its token
	// User is the user for whom the tenant's agent asks; "": not known. Labels are those of the
	// batch: the agent sets them, and nobody checks them.
	User   string            `json:"user,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
	// Rule names the rule, tier or hook that requires a person. Reason is its own text, if it has
	// any.
	Rule   string `json:"rule"`
	Reason string `json:"reason,omitempty"`
	Tier   Tier   `json:"tier"`
	// Approvers is how many people have to agree: 1 or 2. Ticket: one of them has to name a ticket.
	Approvers int    `json:"approvers"`
	Ticket    bool   `json:"ticket,omitempty"`
	Policy    string `json:"policy"` // the version of the policy that asks
	// Asked and Expires are times of the server's clock. From Expires on, decisions are refused.
	Asked     time.Time  `json:"asked"`
	Expires   time.Time  `json:"expires"`
	Decisions []Decision `json:"decisions,omitempty"` // taken so far, in order
}

// Arguments is an input with its hash.
type Arguments struct {
	Input    json.RawMessage `json:"input"`
	ArgsHash string          `json:"args_hash"`
}

// Verdict is a person's answer to a question.
type Verdict string

// The verdicts.
const (
	// VerdictApprove agrees that the call runs as the question has it.
	VerdictApprove Verdict = "approve"
	// VerdictDeny ends the call; the model reads the reason.
	VerdictDeny Verdict = "deny"
	// VerdictEdit agrees that the call runs with the arguments of the decision instead.
	VerdictEdit Verdict = "edit"
)

// Decision is a person's signed answer to one question. It repeats everything that it is bound to,
// so that the signature covers that too: an answer to one call never counts for another.
type Decision struct {
	V        int       `json:"v"`
	Approval string    `json:"approval"` // the question's id
	Tenant   TenantID  `json:"tenant"`
	Session  SessionID `json:"session"`
	Batch    BatchID   `json:"batch"`
	Index    int       `json:"index"`
	CallID   CallID    `json:"call_id"`
	Tool     string    `json:"tool"`
	// ArgsHash is the hash of the arguments that the person saw.
	ArgsHash   string          `json:"args_hash"`
	ToolDigest string          `json:"tool_digest"`
	Policy     string          `json:"policy"`
	Expires    time.Time       `json:"expires"` // when the question expires
	Verdict    Verdict         `json:"verdict"`
	Input      json.RawMessage `json:"input,omitempty"` // edit: the whole new arguments
	// Reason is shown to the model when the call is denied.
	Reason string    `json:"reason,omitempty"`
	Ticket string    `json:"ticket,omitempty"`
	By     string    `json:"by"`    // the approver's name
	Key    string    `json:"key"`   // the public key of the signature
	Nonce  string    `json:"nonce"` // new for every decision
	At     time.Time `json:"at"`    // the approver's wall clock
	Sig    string    `json:"sig"`   // base64url of the Ed25519 signature over [Decision.Signed]
}

// Signed returns the bytes that the signature of a decision covers: the text "toolfleet decision
// v1", a line feed, and the decision without sig as canonical JSON. docs/approvals.md defines them
// byte for byte. Members that Decision does not have are left out. So a signature that covers a
// member which this version does not know is refused: this version could not act on that member.
func (d Decision) Signed() ([]byte, error) {
	raw, err := rawjson.Marshal(d)
	if err != nil {
		return nil, err
	}
	members, err := rawjson.Object(raw)
	if err != nil {
		return nil, err
	}
	delete(members, "sig")
	canonical, err := rawjson.Canonical(rawjson.MustMarshal(members))
	if err != nil {
		return nil, err
	}
	return append([]byte("toolfleet decision v1\n"), canonical...), nil
}

// DecisionState is the state of a question after a decision.
type DecisionState string

// The states of a question after a decision about it.
const (
	// DecisionGranted: the call runs.
	DecisionGranted DecisionState = "granted"
	// DecisionWaiting: another person has to agree too.
	DecisionWaiting DecisionState = "waiting"
	// DecisionDenied: the call never runs.
	DecisionDenied DecisionState = "denied"
)

// DecisionAnswer answers a decision: it was stored durably, or it was refused with Error.
type DecisionAnswer struct {
	OK    bool          `json:"ok"`
	State DecisionState `json:"state,omitempty"`
	Error *Refusal      `json:"error,omitempty"`
}

// Pending is an open question as the list shows it: everything but the arguments.
type Pending struct {
	V         int       `json:"v"`
	ID        string    `json:"id"`
	Tenant    TenantID  `json:"tenant"`
	Session   SessionID `json:"session"`
	Batch     BatchID   `json:"batch"`
	Index     int       `json:"index"`
	CallID    CallID    `json:"call_id"`
	Tool      string    `json:"tool"`
	Line      string    `json:"line"`
	Requester string    `json:"requester"`
	User      string    `json:"user,omitempty"` // who asks, where that is known
	Rule      string    `json:"rule"`
	Tier      Tier      `json:"tier"`
	Approvers int       `json:"approvers"`
	Agreed    []string  `json:"agreed,omitempty"` // the people who have agreed so far
	// MayAnswer names the people who may still answer, by the policy of the coordinator that
	// sent this message.
	MayAnswer []string  `json:"may_answer,omitempty"`
	Ticket    bool      `json:"ticket,omitempty"`
	Asked     time.Time `json:"asked"`
	Expires   time.Time `json:"expires"`
	// State is "" while the question is open, else [PendingGranted], ...
	State string `json:"state,omitempty"`
}

// The states of a closed question.
const (
	PendingGranted = "granted"
	PendingDenied  = "denied"
	PendingExpired = "expired" // nobody answered in time
	PendingGone    = "gone"    // the call ended in another way
)

// Pending returns the question as the list shows it.
func (a Approval) Pending() Pending {
	p := Pending{
		V: Version, ID: a.ID, Tenant: a.Tenant, Session: a.Session, Batch: a.Batch, Index: a.Index, CallID: a.CallID, Tool: a.Tool,
		Line: a.Line, Requester: a.Requester, User: a.User, Rule: a.Rule, Tier: a.Tier, Approvers: a.Approvers, Ticket: a.Ticket, Asked: a.Asked, Expires: a.Expires,
	}
	for _, d := range a.Decisions {
		p.Agreed = append(p.Agreed, d.By)
	}
	return p
}

// PendingList answers a request for the open questions of a tenant. The oldest comes first.
type PendingList struct {
	V       int       `json:"v"`
	Pending []Pending `json:"pending"`
	Error   *Refusal  `json:"error,omitempty"`
}

// ApprovalAnswer answers a request for one open question.
type ApprovalAnswer struct {
	V        int       `json:"v"`
	Approval *Approval `json:"approval,omitempty"`
	Error    *Refusal  `json:"error,omitempty"`
}

// Approver is a person whose decisions count, as named in the policy.
type Approver struct {
	Name string `json:"name" yaml:"name"` // 1 to 64 of [A-Za-z0-9_.@-]
	Key  string `json:"key" yaml:"key"`   // public nkey of a user: U...
	// ActsAs lists tenants and users whose agents belong to this person. This person counts as the
	// requester of the calls of these agents, and may not decide about them.
	ActsAs []string `json:"acts_as,omitempty" yaml:"acts_as,omitempty"`
	// Scopes limit the calls that this person may decide about: a call must be in one of the
	// scopes. Without scopes, this person may decide about every call.
	Scopes []Scope `json:"scopes,omitempty" yaml:"scopes,omitempty"`
	// Expires is when the key becomes invalid. Zero: never.
	Expires time.Time `json:"expires,omitzero" yaml:"expires,omitempty"`
}

// Scope says which calls a group of approvers may decide about: those that match both lists.
type Scope struct {
	Group string `json:"group" yaml:"group"`
	// Tenants are the tenants whose calls are in the scope. None: all.
	Tenants []string `json:"tenants,omitempty" yaml:"tenants,omitempty"`
	// Tools are the tools whose calls are in the scope: names, or patterns of path.Match.
	// None: all.
	Tools []string `json:"tools,omitempty" yaml:"tools,omitempty"`
}
