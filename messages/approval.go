package messages

import (
	"encoding/json"
	"time"
)

// Tier says how much is at stake in a call, and so what it takes to run it.
type Tier string

// The tiers and their gates. Low: nothing. Medium: a line in the audit log before it runs. High: one person
// agrees. Critical: two people agree, and one of them names a ticket.
const (
	Low      Tier = "low"
	Medium   Tier = "medium"
	High     Tier = "high"
	Critical Tier = "critical"
)

// Tiers is every tier, the least first.
var Tiers = []Tier{Low, Medium, High, Critical}

// Permission is what was decided about a call in phase four, and by what.
type Permission struct {
	// Effect is allow, ask (a person was asked) or deny.
	Effect string `json:"effect"`
	// Source is what decided: rule, tier, hook, default or person.
	Source string `json:"source"`
	Rule   string `json:"rule,omitempty"`  // the name of the rule or hook
	Layer  string `json:"layer,omitempty"` // the file that holds the rule
	Tier   Tier   `json:"tier,omitempty"`
	Policy string `json:"policy,omitempty"` // the version of the policy
	// Approval names the question that was asked, By those who agreed, Ticket what they referred to.
	Approval string   `json:"approval,omitempty"`
	By       []string `json:"by,omitempty"`
	Ticket   string   `json:"ticket,omitempty"`
	// Edited: a person changed the arguments.
	Edited bool `json:"edited,omitempty"`
}

// Approval is a question to people: may this very call run? It stands in the journal of the call while that is
// parked, and stays in every record after it. A decision is good for this question only: other arguments, another
// definition of the tool or another policy are another question, with another id.
type Approval struct {
	V          int             `json:"v"`
	ID         string          `json:"id"` // hex; a digest of everything that a decision is bound to
	Tenant     TenantID        `json:"tenant"`
	Session    SessionID       `json:"session"`
	Batch      BatchID         `json:"batch"`
	Index      int             `json:"index"`
	CallID     CallID          `json:"call_id"`
	Tool       string          `json:"tool"`
	Kind       Kind            `json:"kind"`
	ToolDigest string          `json:"tool_digest"`
	Input      json.RawMessage `json:"input"`     // what would run: the frozen arguments, or those of the last edit
	ArgsHash   string          `json:"args_hash"` // of Input: hex SHA-256 of its canonical form
	// Original is what was asked at first, once somebody has edited it.
	Original *Arguments `json:"original,omitempty"`
	// Line is the call on one line for people, made of the tool's name and Input and nothing else.
	Line      string `json:"line"`
	Requester string `json:"requester"` // the principal whose agent asks: the tenant token
	// Rule is the rule, tier or hook that wants a person; Reason is its own words, if it has any.
	Rule   string `json:"rule"`
	Reason string `json:"reason,omitempty"`
	Tier   Tier   `json:"tier"`
	// Approvers is how many people have to agree: 1 or 2. Ticket: one of them has to name a ticket.
	Approvers int    `json:"approvers"`
	Ticket    bool   `json:"ticket,omitempty"`
	Policy    string `json:"policy"` // the version of the policy that asks
	// Asked and Expires are by the server's clock. From Expires on no decision is taken.
	Asked     time.Time  `json:"asked"`
	Expires   time.Time  `json:"expires"`
	Decisions []Decision `json:"decisions,omitempty"` // taken so far, in order
}

// Arguments is an input and its hash.
type Arguments struct {
	Input    json.RawMessage `json:"input"`
	ArgsHash string          `json:"args_hash"`
}

// Verdict is what a person says to a question.
type Verdict string

// The verdicts. An edit approves other arguments than those that were asked about.
const (
	Approve Verdict = "approve"
	Deny    Verdict = "deny"
	Edit    Verdict = "edit"
)

// Decision is a person's signed answer to one question. What it is bound to is repeated in it, so the signature
// covers it: an answer to one call is none to another.
type Decision struct {
	V        int       `json:"v"`
	Approval string    `json:"approval"` // the question's id
	Tenant   TenantID  `json:"tenant"`
	Session  SessionID `json:"session"`
	Batch    BatchID   `json:"batch"`
	Index    int       `json:"index"`
	CallID   CallID    `json:"call_id"`
	Tool     string    `json:"tool"`
	// ArgsHash is of the arguments that the person was shown.
	ArgsHash   string          `json:"args_hash"`
	ToolDigest string          `json:"tool_digest"`
	Policy     string          `json:"policy"`
	Expires    time.Time       `json:"expires"` // the question's
	Verdict    Verdict         `json:"verdict"`
	Input      json.RawMessage `json:"input,omitempty"` // edit: the whole new arguments
	// Reason is told to the model when the call is denied.
	Reason string    `json:"reason,omitempty"`
	Ticket string    `json:"ticket,omitempty"`
	By     string    `json:"by"`    // the approver's name
	Key    string    `json:"key"`   // the public key of the signature
	Nonce  string    `json:"nonce"` // new for every decision
	At     time.Time `json:"at"`    // the approver's wall clock
	Sig    string    `json:"sig"`   // base64url of the Ed25519 signature over [Decision.Signed]
}

// Signed is the bytes that the signature of a decision covers: the text "toolfleet decision v1", a
// line feed, and the decision without sig as canonical JSON. docs/approvals.md defines them byte for
// byte. Members that Decision does not have are not among them, so that a signature over one of them
// is refused: a reader that does not know a member cannot do what its signer meant by it.
func (d Decision) Signed() ([]byte, error) {
	raw, err := Marshal(d)
	if err != nil {
		return nil, err
	}
	members, err := Object(raw)
	if err != nil {
		return nil, err
	}
	delete(members, "sig")
	canonical, err := CanonicalJSON(MustMarshal(members))
	if err != nil {
		return nil, err
	}
	return append([]byte("toolfleet decision v1\n"), canonical...), nil
}

// DecisionState is what became of a question by a decision.
type DecisionState string

// Granted: the call runs. Waiting: another person has to agree too. Denied: it never runs.
const (
	DecisionGranted DecisionState = "granted"
	DecisionWaiting DecisionState = "waiting"
	DecisionDenied  DecisionState = "denied"
)

// DecisionAnswer answers a decision: taken, durably, or refused.
type DecisionAnswer struct {
	OK    bool          `json:"ok"`
	State DecisionState `json:"state,omitempty"`
	Error *Refusal      `json:"error,omitempty"`
}

// Pending is a question in the list of those that are open: all but the arguments.
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
	Rule      string    `json:"rule"`
	Tier      Tier      `json:"tier"`
	Approvers int       `json:"approvers"`
	Agreed    []string  `json:"agreed,omitempty"` // who has agreed so far
	Ticket    bool      `json:"ticket,omitempty"`
	Asked     time.Time `json:"asked"`
	Expires   time.Time `json:"expires"`
	// State is empty while the question is open. In the news of one that is not any more: granted, denied,
	// expired, or gone (the call ended otherwise).
	State string `json:"state,omitempty"`
}

// Pending is the question as it stands in the list.
func (a Approval) Pending() Pending {
	p := Pending{
		V: Version, ID: a.ID, Tenant: a.Tenant, Session: a.Session, Batch: a.Batch, Index: a.Index, CallID: a.CallID, Tool: a.Tool,
		Line: a.Line, Requester: a.Requester, Rule: a.Rule, Tier: a.Tier, Approvers: a.Approvers, Ticket: a.Ticket, Asked: a.Asked, Expires: a.Expires,
	}
	for _, d := range a.Decisions {
		p.Agreed = append(p.Agreed, d.By)
	}
	return p
}

// PendingList answers a request for the open questions of a tenant, the oldest first.
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

// Approver is somebody whose decisions count, as the policy names them.
type Approver struct {
	Name string `json:"name" yaml:"name"` // 1 to 64 of [A-Za-z0-9_.@-]
	Key  string `json:"key" yaml:"key"`   // public nkey of a user: U...
	// ActsAs lists the principals whose agents are theirs: of those calls they are the requester.
	ActsAs []string `json:"acts_as,omitempty" yaml:"acts_as,omitempty"`
}
