package soak

import (
	"time"

	"github.com/toolfleet/toolfleet/internal/e2e/soak/ledger"
	"github.com/toolfleet/toolfleet/messages"
)

// History is everything that is known about a run from outside the fleet.
type History struct {
	// Batches holds the batches. Those of one session are in the order of their
	// acknowledgements.
	Batches []*Batch
	Ledger  []ledger.Entry
	Faults  []Fault
	// Replies holds the time at which each reply arrived at its agent.
	Replies []time.Time
	// Left holds what remained after every batch had its reply: batches in the log, and dead
	// letters. It should be empty.
	Left []string
	// Decisions holds the signed decisions about each call, in the order of signing.
	Decisions map[string][]Decision
	// Lines counts the audit lines about a call, by batch and index.
	Lines map[string]map[int]int
	// Lease is how long a claim lasts without a renewal, plus the grace.
	Lease time.Duration
}

// Batch is a batch of an agent, with the reply that the agent got.
type Batch struct {
	ID, Session string
	Calls       []Call
	Digest      string // of the submitted body
	Sent, Acked time.Time
	Abort       time.Time // when the agent asked to abort the batch; zero: never

	Stored  time.Time // when the server stored the reply
	Replied time.Time // when the agent received the reply; zero: never
	Reply   messages.Reply
	Refused string // class of the refusal; "": not refused
	// Copies holds the digests of all bodies that were seen as the reply of this batch.
	Copies map[string]bool
	// Claims holds the claims of each call with an unknown outcome, by index.
	Claims map[int][]Claim
}

// Call is one tool call of a batch.
type Call struct {
	ID, Tool string
	Input    Input
}

// Input is the input of every tool of the run.
type Input struct {
	MS   int  `json:"ms"`
	Fail bool `json:"fail,omitempty"`
	// Flaky makes a run fail in its first attempt, with an error that is worth a retry.
	Flaky bool `json:"flaky,omitempty"`
}

// Claim is a worker's mark in the journal that it started a call.
type Claim struct {
	Worker string
	At     time.Time
}

// Decision is a person's decision about a call that needs an approval.
type Decision struct {
	By      string
	At      time.Time // just before the decision was sent
	Verdict messages.Verdict
	MS      int // the argument MS that the person decided about
	// State is the state of the question after this decision. It is "" if the decision was
	// refused or got no answer.
	State messages.DecisionState
}

// Act is what happened to a process.
type Act string

// The run itself causes all acts except the last two.
const (
	Kill  Act = "kill"  // SIGKILL
	Term  Act = "term"  // SIGTERM
	Pause Act = "pause" // SIGSTOP, and SIGCONT at the end
	Died  Act = "died"  // the process ended by itself
	Stall Act = "stall" // the machine stalled for so long that leases may have lapsed
)

// Fault is something that happened to a process of the fleet.
type Fault struct {
	Kind    Kind   // the kind of fault that the act belongs to
	Member  string // "server", or the name of a coordinator or worker
	Process string // the process of the member that was hit
	Act     Act
	At      time.Time
	Until   time.Time // when the process continued, or its successor started
	// Born is when a process with the act Died was started, and Status is its exit status.
	Born   time.Time
	Status string
}

// Tool is what the checker knows about a tool.
type Tool struct {
	Kind    messages.Kind
	OnCrash messages.OnCrash
	Ledger  bool // its runs write to the ledger
	Asks    bool // each call needs a person's approval
}

// Tools holds the tools that the workers of a run serve.
var Tools = map[string]Tool{
	"echo": {Kind: messages.KindRead},
	"nap":  {Kind: messages.KindRead},
	"mark": {Kind: messages.KindWrite, OnCrash: messages.OnCrashOnce},
	"set":  {Kind: messages.KindWrite, OnCrash: messages.OnCrashIdempotent},
	"look": {Kind: messages.KindRead, Ledger: true},
	"put":  {Kind: messages.KindWrite, OnCrash: messages.OnCrashIdempotent, Ledger: true},
	"book": {Kind: messages.KindWrite, OnCrash: messages.OnCrashOnce, Ledger: true},
	// Tools that move money need an approval.
	"refund":   {Kind: messages.KindWrite, OnCrash: messages.OnCrashOnce, Ledger: true, Asks: true},
	"transfer": {Kind: messages.KindWrite, OnCrash: messages.OnCrashIdempotent, Ledger: true, Asks: true},
}
