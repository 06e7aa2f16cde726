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
	// Left is what was still in the log, or was set aside, when every batch had its reply.
	Left []string
	// Decisions is what people have signed about a call, in the order in which they did.
	Decisions map[string][]Decision
	// Lines counts the lines of the audit log about a call, by batch and index.
	Lines map[string]map[int]int
	// Lease is how long a claim holds, with the grace behind it.
	Lease time.Duration
}

// Batch is what an agent asked for, and what it was told.
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
	// Copies is the different bodies that were seen as its reply, by digest, wherever they were seen.
	Copies map[string]bool
	// Claims is who claimed its calls with an unknown outcome, by index.
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

// Decision is a person's word about a call that asks.
type Decision struct {
	By      string
	At      time.Time // before it was handed in
	Verdict messages.Verdict
	MS      int // of the arguments that it is about
	// State is what became of the question by it, as its sender was told; "" when it was refused, or nobody knows.
	State messages.DecisionState
}

// Act is what was done to a process.
type Act string

// The acts. The last two are nobody's doing.
const (
	Kill  Act = "kill"  // SIGKILL
	Term  Act = "term"  // SIGTERM
	Pause Act = "pause" // SIGSTOP, and SIGCONT at the end
	Died  Act = "died"  // it ended by itself
	Stall Act = "stall" // the whole machine stood still for so long that leases may have lapsed
)

// Fault is something that was done to a process of the fleet.
type Fault struct {
	Kind    Kind   // as part of what
	Member  string // "server", or the place of a coordinator or worker
	Process string // the one that it was done to: a place has one after another
	Act     Act
	At      time.Time
	Until   time.Time // when the process went on, or the next one was started
	// Born and Status are when a process that died was started, and how it ended.
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
	// What moves money asks.
	"refund":   {Kind: messages.KindWrite, OnCrash: messages.OnCrashOnce, Ledger: true, Asks: true},
	"transfer": {Kind: messages.KindWrite, OnCrash: messages.OnCrashIdempotent, Ledger: true, Asks: true},
}
