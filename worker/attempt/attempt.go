// Package attempt runs one attempt at a call as a state machine: events in, effects out.
//
//	delivery -> look into the journal -> run (claim on the way, if it may change the world)
//	         -> store the result -> notify the coordinator -> settle
//
// The caller of the machine is called the shell. It is package lane, or the simulation. The
// shell gives the machine its events and carries out the effects that the machine returns. The
// phases are the steps of the worker's pipeline, from the check of the input to the run of the
// tool. The shell runs them on a goroutine.
//
// The machine is pure: every step gets the time, and random values come with the [Call]. The
// machine has at most one open request to the journal, and each request gets one answer. In
// addition, one renewal of the lease (lease.go) may be open.
//
//	Waiting       for the first delivery
//	Bouncing      the tool is not served here; the job keeps its slot for a moment
//	Looking       the journal is read before anything runs
//	Beginning     there is something to do, and its span is being opened
//	Running       the phases run, without a claim
//	Claiming      the claim is being written; the phases wait for it
//	Holding       the phases run under a claim
//	Stopping      the run is cancelled, and the phases have not ended yet
//	LookingAgain  the claim was refused; the journal is read to find out why
//	Offloading    a large result is being moved to the object store
//	Storing       the result is being written
//	Releasing     the claim is being given up, so that another attempt can follow
//	Parking       a question to people is being written
//	HandingBack   the journal is told that the call must run alone
//	Closing       nothing is left to do here; after it no further delivery comes
//	Over          the delivery is settled
//
// The table says what each event does in each state. An arrow leads to a new state.
// ->Storing stands for ->Offloading if the result is large.
//
//	Delivered     Waiting: ->Looking, ->Beginning, ->Bouncing, or ->Closing when it came too late.
//	              Later: the newest delivery is the one that is settled
//	ResultRead    Looking: ->Closing when the call has ended; else ->Beginning, or reads the record
//	RecordRead    Looking: ->Closing when the call has ended or another worker has it, else
//	              ->Beginning. LookingAgain: ->Closing
//	Began         Beginning: ->Running, ->Stopping when it was cancelled meanwhile, or ->Storing
//	              when the job has lost too many workers
//	Wanted        Running: ->Claiming, or granted at once without a claim. Stopping: granted to a
//	              call that runs without a claim. Any other: refused
//	Told          Running, Claiming, Holding, Stopping: published
//	Ended         Running, Holding, Stopping: ->Storing with a result, ->Releasing or ->Closing when
//	              another attempt should follow, ->Parking, ->HandingBack, ->LookingAgain
//	Stored        Claiming: ->Holding, after a renewal when it took long; ->Stopping when it was
//	              cancelled meanwhile. Offloading: ->Storing. Storing, Releasing, Parking,
//	              HandingBack: ->Closing
//	Overtaken     Claiming: refused, ->Running. Storing, Releasing: tried again if the newest record
//	              is this attempt's own renewal, else ->Closing. Parking: ->Closing
//	Failed        Claiming, Offloading, Storing, Releasing, Parking: tried again after a pause, or
//	              in a smaller form. Looking, LookingAgain, HandingBack: ->Closing, unsettled
//	Tick          the pause is over: tried again. Bouncing: ->Closing. Looking, LookingAgain,
//	              Running, Claiming, Holding: a sign of life. Claiming to Parking: see lease.go. After
//	              the drain, when LastWords is over: the open request is aborted, and then ->Closing,
//	              unsettled
//	Stopped       Looking, Beginning: the phases start with a cancelled context. Claiming: the
//	              write is aborted, and the answer decides. Running, Holding: ->Stopping
//	Draining      as Stopped, and bounds every later wait by LastWords. Bouncing: ->Closing
//	Closed        Closing: ->Over, with the settlement
//
// Every other pair of event and state has no effect. In such a pair the event comes too late
// (for example the answer to a renewal after the end), or it cannot come if the shell carries
// out the effects.
package attempt

import (
	"errors"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/call"
)

// Config holds the limits of a worker's attempts. Every field must be set.
type Config struct {
	Worker      string        // the worker's name in records and events
	AckWait     time.Duration // how long the broker waits for a sign of life
	Lease       time.Duration // how long a claim is valid without renewal
	Grace       time.Duration // how long before the end of the lease the tool is cancelled
	ApprovalTTL time.Duration // how long people have to answer a question
	LastWords   time.Duration // how long the worker tries to store the end of a call after the drain
	Poison      int           // the call fails after so many workers were lost over its job
	MaxPayload  int           // largest message, in bytes
	MaxInline   int           // largest outcome that is stored in a record, in bytes
}

// Call describes the call of an attempt.
type Call struct {
	Job wire.Job
	Key wire.CallKey
	// Claims says that the tool may change the world. Such a call is claimed before it runs.
	Claims bool
	// Attempts limits how many times the call runs in all. The call runs again if a run fails
	// and another run may succeed.
	Attempts int
	// Backoff returns the pause after an attempt. It must be pure.
	Backoff func(attempt int) time.Duration
	Nonce   string  // marks the records of this attempt; unique
	Jitter  float64 // spreads pauses at random; at least 0 and below 1
}

// Machine is the state machine of one attempt. Only one goroutine at a time may call its
// methods.
type Machine struct {
	cfg     Config
	call    Call
	state   State
	now     time.Time // the time of the newest step
	effects []Effect  // the effects of the current step, so far

	began   time.Time     // when the worker took the job
	server  time.Time     // the server's time at began
	count   int           // how many times the job had been delivered at began
	waited  time.Duration // how long the job had been stored at began
	runs    int           // number of this run, for a call that runs without a claim
	notify  string        // the coordinator that published the newest delivery
	seq     uint64        // sequence of the newest delivery
	queue   string        // the queue of the newest delivery
	span    string        // traceparent of the attempt's span; "": none
	counter int           // number of events published for watchers

	// last is the sequence of this attempt's newest record. Before the claim is stored, last
	// is the sequence of the record that the claim must follow, or 0 if the claim must be the
	// first record.
	last   uint64
	record wire.CallRecord // the record with the sequence last
	lease  lease
	asked  time.Time  // when the claim was first sent; set from Claiming on
	grant  call.Grant // what the phases get once the claim is stored; set from Claiming on

	cause   error     // why the run was cancelled; nil: it is not cancelled
	drained time.Time // when the worker's drain ended; zero: it has not ended
	signAt  time.Time // when the next sign of life is due; zero: no sign is due

	// due is when a [Tick] makes the next step in this state. Zero: the state waits for an
	// event of another kind.
	due   time.Time
	pause time.Duration // the pause before the newest try of a write; 0 at the first try
	err   error         // the error of the newest failed write
	words time.Time     // when tries end after the drain; zero: no limit
	// writing is the record that is being written, or will be written again at due. It is
	// empty during other requests to the journal.
	writing wire.CallRecord
	// result is the result to store. In Releasing it is the failure after which another
	// attempt follows.
	result  *messages.Result
	back    wire.HandBack // set in HandingBack
	refused bool          // a refused claim was counted already

	end        End        // what became of the attempt
	settlement settlement // set from Closing on
}

// New returns the machine of an attempt that has not begun.
func New(cfg Config, c Call) *Machine { return &Machine{cfg: cfg, call: c} }

// State returns the state of the attempt.
func (m *Machine) State() State { return m.state }

// Claims reports whether the call must be claimed before it runs. The call must be claimed if
// the tool may change the world. It must also be claimed if its journal already has a record
// for another reason, such as a question to people.
func (m *Machine) Claims() bool { return m.call.Claims || m.call.Job.TakeOver > 0 }

// Wake returns when the machine wants a [Tick]; zero: never.
func (m *Machine) Wake() time.Time {
	wake := m.lease.wake()
	words := m.words
	if !words.After(m.now) { // the open request has been aborted already
		words = time.Time{}
	}
	for _, at := range []time.Time{m.due, m.signAt, words} {
		if !at.IsZero() && (wake.IsZero() || at.Before(wake)) {
			wake = at
		}
	}
	return wake
}

// Step applies one event and returns the effects in order. now is the time of the event.
func (m *Machine) Step(now time.Time, ev Event) []Effect {
	m.now = now
	switch ev := ev.(type) {
	case Delivered:
		m.delivered(ev)
	case ResultRead:
		m.resultRead(ev)
	case RecordRead:
		m.recordRead(ev.Newest)
	case Began:
		m.begin(ev.Span)
	case Wanted:
		m.wanted(ev.Frozen)
	case Told:
		m.told(ev.Event)
	case Ended:
		m.ended(ev.Result, ev.Err)
	case Stored:
		m.stored(ev)
	case Overtaken:
		m.overtaken(ev)
	case Failed:
		m.failed(ev)
	case Tick:
		m.tick()
	case Stopped:
		m.stopped(ev)
	case Draining:
		m.draining()
	case Closed:
		m.closed()
	}
	effects := m.effects
	m.effects = nil
	return effects
}

// become changes the state. No other function does so.
func (m *Machine) become(s State) {
	m.state, m.due = s, time.Time{}
	switch {
	case !s.asks():
		m.words = time.Time{}
	case m.words.IsZero() && !m.drained.IsZero():
		m.words = m.now.Add(m.cfg.LastWords)
	}
	if !s.phases() || s == Stopping {
		m.signAt = time.Time{}
	}
	if s >= Closing {
		m.lease = lease{}
	}
}

func (m *Machine) do(e Effect) { m.effects = append(m.effects, e) }

func (m *Machine) log(level Level, text string, args ...any) { m.do(Log{level, text, args}) }

// delivered begins the attempt at the first delivery and remembers later deliveries. The
// broker delivers a job again if no sign of life reaches it, even if the worker is alive.
func (m *Machine) delivered(ev Delivered) {
	if m.state == Over {
		return
	}
	m.notify, m.seq, m.queue = ev.Notify, ev.Seq, ev.Queue
	if m.state != Waiting {
		return
	}
	job := &m.call.Job
	m.began, m.server, m.count, m.runs = m.now, ev.Now, ev.Count, job.Attempt+ev.Count
	waited := max(ev.Now.Sub(ev.Queued), 0)
	m.waited = waited
	if job.DeadlineMS > 0 { // waiting in the queue has used up time of the batch
		job.DeadlineMS = max(job.DeadlineMS-waited.Milliseconds(), 1)
	}
	switch {
	case !ev.Served:
		m.log(Debug, "let go: the tool is not served here under this definition")
		m.become(Bouncing)
		m.due = m.now.Add(bounceHold)
	case ev.Now.After(job.NotAfter):
		m.close(settlement{how: Term, reason: "the batch outlived its time"}, nil)
	// An earlier worker may have ended the call, so read the journal first.
	case job.TakeOver > 0 || job.Dispatch > 0 || ev.Count > 1 || waited > time.Second:
		m.look(Looking)
	default:
		m.open()
	}
}

// open begins the attempt. The caller has made sure that nothing in the journal forbids it.
func (m *Machine) open() {
	m.become(Beginning)
	m.do(Begin{m.prior()})
}

// begin starts the phases. If too many workers were lost over the job, begin ends the call
// instead.
func (m *Machine) begin(span string) {
	if m.state != Beginning {
		return
	}
	m.span = span
	// The limit is for lost workers, not for failed attempts. If a call runs without a claim,
	// a failed attempt looks like a lost worker. The limit for such a call is therefore at
	// least its number of attempts.
	poison := m.cfg.Poison
	if !m.Claims() {
		poison = max(poison, m.call.Attempts)
	}
	if lost := m.lostDeliveries() + max(m.call.Job.Attempt-(m.call.Attempts-1), 0); lost >= poison {
		m.finish(m.poisoned(lost))
		return
	}
	m.do(Run{m.call.Job, m.prior(), m.cause})
	if m.cause != nil {
		m.become(Stopping)
		return
	}
	m.become(Running)
	m.signAt = m.now.Add(min(firstSign, m.cfg.AckWait/3))
}

// lostDeliveries returns an upper bound of the number of workers that were lost while they had
// the job. The count of deliveries can be too high: if the NATS server is killed, it may lose
// its newest jobs and give their sequences to other jobs. It then counts the deliveries of
// both jobs. Each lost worker costs an AckWait, so the age of the job limits the number too.
func (m *Machine) lostDeliveries() int {
	return min(m.count-1, int((m.waited+m.cfg.AckWait/2)/m.cfg.AckWait))
}

// stopped cancels the run of a call whose result nobody wants any more.
func (m *Machine) stopped(ev Stopped) {
	if m.state == Looking || m.state == Beginning || m.state.phases() {
		m.cancel(&ev.Stop)
	}
}

// draining cancels the run because the worker shuts down. It limits every later wait to
// LastWords.
func (m *Machine) draining() {
	if m.state == Bouncing {
		m.bounce()
		return
	}
	if m.state == Waiting || m.state >= Closing || !m.drained.IsZero() {
		return
	}
	m.drained = m.now
	if m.state.asks() {
		m.words = m.now.Add(m.cfg.LastWords)
	}
	if m.state == Looking || m.state == Beginning || m.state.phases() {
		m.cancel(ErrDraining)
	}
}

// cancel cancels the run. If there are several causes, the first counts.
func (m *Machine) cancel(cause error) {
	if m.cause != nil {
		return
	}
	m.cause = cause
	if m.state.phases() {
		m.do(Cancel{cause})
	}
	switch {
	case m.state == Running, m.state == Holding:
		m.become(Stopping)
	case m.state == Claiming && m.due.IsZero(): // the answer to the claim decides what follows
		m.do(Abort{})
	case m.state == Claiming:
		m.refuse(fmt.Errorf("claim: %w", errors.Join(m.err, cause)))
	}
}

// tick does everything that is due.
func (m *Machine) tick() {
	m.tickLease()
	if reached(m.now, m.signAt) {
		m.do(Extend{})
		if m.state.phases() {
			m.alive()
		}
		m.signAt = m.now.Add(m.cfg.AckWait / 3)
	}
	switch waits := !m.due.IsZero(); {
	case reached(m.now, m.words) && waits:
		m.giveUp()
	case reached(m.now, m.words):
		m.do(Abort{})
	case !reached(m.now, m.due):
	case m.state == Bouncing:
		m.bounce()
	default:
		m.due = time.Time{}
		m.again()
	}
}

// reached reports whether a time has come. A zero time never comes.
func reached(now, at time.Time) bool { return !at.IsZero() && !now.Before(at) }

// close ends the attempt. The machine settles the newest delivery after [Closed], when no
// further delivery can come.
func (m *Machine) close(s settlement, err error) {
	e := &m.end
	e.Attempt, e.Err = m.attempts(), err
	if m.holds() {
		e.Fence = m.record.Fence
	}
	switch {
	case errors.Is(m.cause, ErrLeaseLost):
		e.Failure = LeaseLost
	case e.Failure == "" && err != nil && !errors.Is(err, ErrDraining):
		e.Failure = string(messages.CodeInternal)
	}
	m.settlement = s
	m.become(Closing)
	m.do(Close{m.end})
}

// closed settles the newest delivery.
func (m *Machine) closed() {
	if m.state != Closing {
		return
	}
	m.become(Over)
	s := m.settlement
	m.do(Settle{s.how, s.reason, s.after})
	if s.notice == nil {
		return
	}
	if let := s.notice.LetGo; let != nil {
		let.Queue = m.queue
		if s.how == Nak {
			let.Job = m.seq
		}
	}
	m.tell(*s.notice)
}
