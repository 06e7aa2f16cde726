package soak

import (
	"time"

	"github.com/toolfleet/toolfleet/internal/e2e/soak/ledger"
	"github.com/toolfleet/toolfleet/messages"
)

// History is all that is known of a run from outside of the fleet.
type History struct {
	// Batches, those of one session in the order in which they were acknowledged.
	Batches []*Batch
	Ledger  []ledger.Entry
	Faults  []Fault
	// Replies is when each reply arrived at its agent.
	Replies []time.Time
	// Left is what remained after every batch had its reply: batches in the log, and dead letters.
	// It should be empty.
	Left []string
	// Decisions holds the signed decisions about each call, in the order of signing.
	Decisions map[string][]Decision
	// Lines counts the lines of the audit log about a call, by batch and index.
	Lines map[string]map[int]int
	// Lease is how long a claim holds, with the grace behind it.
	Lease time.Duration
}

// Batch is a batch of an agent, and the reply that it got.
type Batch struct {
	ID, Session string
	Calls       []Call
	Digest      string // of the body as it was sent
	Sent, Acked time.Time
	Abort       time.Time // when its abort was asked for; zero: never

	Stored  time.Time // of the reply, by the server
	Replied time.Time // when the agent had it; zero: never
	Reply   messages.Reply
	Refused string // the class, when the batch as a whole was refused
	// Copies holds the different bodies of its reply, by digest, from every place that shows them.
	Copies map[string]bool
	// Claims holds the claims of its calls with an unknown outcome, by index.
	Claims map[int][]Claim
}

// Call is one call that was asked for.
type Call struct {
	ID, Tool string
	Input    Input
}

// Input is what every tool of the run takes.
type Input struct {
	MS   int  `json:"ms"`
	Fail bool `json:"fail,omitempty"`
	// Flaky runs fail in their first attempt, in a way that is worth another.
	Flaky bool `json:"flaky,omitempty"`
}

// Claim is a worker's mark in the journal that it started a call.
type Claim struct {
	Worker string
	At     time.Time
}

// Decision is a person's decision about a call that asks.
type Decision struct {
	By      string
	At      time.Time // before it was sent
	Verdict messages.Verdict
	MS      int // of the arguments that it is about
	// State is the state of the question that the sender got as the answer; "" when the decision
	// was refused, or there was no answer.
	State messages.DecisionState
}

// Act is what was done to a process.
type Act string

// The acts. The run does not cause the last two.
const (
	Kill  Act = "kill"  // SIGKILL
	Term  Act = "term"  // SIGTERM
	Pause Act = "pause" // SIGSTOP, and SIGCONT at the end
	Died  Act = "died"  // it ended by itself
	Stall Act = "stall" // the whole machine stalled for so long that leases may have expired
)

// Fault is something that was done to a process of the fleet.
type Fault struct {
	Kind    Kind   // the fault that the act belongs to
	Member  string // "server", or the place of a coordinator or worker
	Process string // the process that was hit: a member has one after another
	Act     Act
	At      time.Time
	Until   time.Time // when the process continued, or the next one was started
	// Born and Status are the start and the end of a process that died.
	Born   time.Time
	Status string
}

// Tool is what the checker knows of a tool.
type Tool struct {
	Kind    messages.Kind
	OnCrash messages.OnCrash
	Ledger  bool // its runs write to the ledger
	Asks    bool // a person has to allow each call
}

// Tools is what the workers of a run serve.
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
