package attempt

import (
	"errors"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/call"
)

// Event is something that happened, as input of [Machine.Step].
type Event interface{ event() }

type (
	// Delivered says that the job was delivered, for the first time or again.
	Delivered struct {
		Count  int    // how many times the job was delivered, this time included
		Seq    uint64 // sequence of the job in its stream
		Queue  string // the token of the queue that the job came from
		Notify string // the coordinator that published the job
		// Served says that this worker has the tool in the version of the job.
		Served bool
		Queued time.Time // when the server stored the job, by the server's clock
		Now    time.Time // the server's time
	}
	// ResultRead answers [ReadResult]. Result is nil if none is stored.
	ResultRead struct{ Result *messages.Result }
	// RecordRead answers [ReadRecord].
	RecordRead struct{ Newest Entry }
	// Began answers [Begin]. Span is the traceparent of the new span; "": there is none.
	Began struct{ Span string }
	// Wanted says that the phases have the final input and want to start the tool. [Grant] or
	// [Refuse] answers it.
	Wanted struct{ Frozen call.Frozen }
	// Told is an event of the phases for watchers. The machine fills in its ids.
	Told struct{ Event messages.Event }
	// Ended says that the phases have ended, with a result or an error.
	Ended struct {
		Result messages.Result
		Err    error
	}
	// Stored answers [Write] (with the nonce of the record and its sequence), [WriteResult] (with
	// the result that counts), [Offload] (with a result that refers to its outcome) and
	// [WriteHandBack].
	Stored struct {
		Nonce  string
		Seq    uint64
		Result *messages.Result
	}
	// Overtaken answers a [Write]: another record was stored first.
	Overtaken struct {
		Nonce  string
		Newest Entry
	}
	// Failed answers any request to the journal that has failed. A write that failed may still have
	// been stored.
	Failed struct {
		Nonce string // of the record; "": the request was no [Write]
		Why   Failure
		Err   error
	}
	// Tick tells the time, at or after [Machine.Wake].
	Tick struct{}
	// Stopped says that the call is no longer wanted.
	Stopped struct{ Stop wire.Stop }
	// Draining says that the worker's drain is over, so the run has to end.
	Draining struct{}
	// Closed answers [Close].
	Closed struct{}
)

func (Delivered) event()  {}
func (ResultRead) event() {}
func (RecordRead) event() {}
func (Began) event()      {}
func (Wanted) event()     {}
func (Told) event()       {}
func (Ended) event()      {}
func (Stored) event()     {}
func (Overtaken) event()  {}
func (Failed) event()     {}
func (Tick) event()       {}
func (Stopped) event()    {}
func (Draining) event()   {}
func (Closed) event()     {}

// Entry is a stored record of the call. Seq is 0 if there is none.
type Entry struct {
	Seq    uint64
	Record wire.CallRecord
}

// Failure says why a request to the journal failed.
type Failure uint8

// The failures.
const (
	Unknown  Failure = iota // no answer, or an answer that decides nothing: another try may help
	TooLarge                // what was to be stored does not fit into a message
	Full                    // the store of large results is full
	Terminal                // every further try would fail the same way
)

// The errors that end a run. The phases return them unchanged.
var (
	// ErrLeaseLost is the cause that cancels a run whose lease could not be renewed.
	ErrLeaseLost = errors.New("the lease on this call could not be renewed")
	// ErrDraining is the cause that cancels a run which did not end within the worker's drain time.
	ErrDraining = errors.New("the worker is shutting down")
	// ErrNotMine refuses a claim on a call that another worker has claimed, or that has ended.
	ErrNotMine = errors.New("the call is claimed by another worker or has ended")
	// ErrTooLarge refuses a claim that does not fit into a message, or leaves no headroom there.
	ErrTooLarge = errors.New("the claim is too large")
	// ErrOtherInput refuses to take over a call if its frozen input differs from that of the lost
	// attempt: with another idempotency key the effect could happen twice. It is only a guard,
	// because the input is read from the lost attempt's record.
	ErrOtherInput = errors.New("the input is not that of the attempt before")
	errNotNow     = errors.New("no claim can be made now")
)

// Effect is something that the shell has to do. The comments name the event that answers it.
type Effect interface{ effect() }

type (
	// ReadResult reads the stored result of a call that does not claim: [ResultRead] or [Failed].
	ReadResult struct{}
	// ReadRecord reads the newest record of the call: [RecordRead] or [Failed].
	ReadRecord struct{}
	// Begin opens the span of the attempt: [Began]. Prior is the record from which the job
	// continues; nil: there is none.
	Begin struct{ Prior *wire.CallRecord }
	// Run starts the phases: [Wanted] and [Told] on the way, and [Ended]. With a Cause the run is
	// cancelled from the start.
	Run struct {
		Job   wire.Job
		Prior *wire.CallRecord
		Cause error
	}
	// Grant answers [Wanted]: the tool may start.
	Grant struct{ Grant call.Grant }
	// Refuse answers [Wanted]: the tool may not start.
	Refuse struct{ Err error }
	// Cancel cancels the run with the cause.
	Cancel struct{ Cause error }
	// Abort makes the open requests to the journal end soon. Each of them still gets its answer.
	Abort struct{}
	// Write stores the record if the call's newest record is the one at sequence Behind: [Stored],
	// [Overtaken] or [Failed]. The answer comes no later than a moment after Until (zero: no
	// bound).
	Write struct {
		Record wire.CallRecord
		Behind uint64
		Until  time.Time
	}
	// WriteResult stores the result, unless there is one: [Stored] or [Failed].
	WriteResult struct{ Result messages.Result }
	// Offload moves the outcome to the object store: [Stored] or [Failed].
	Offload struct{ Result messages.Result }
	// WriteHandBack stores the hand-back, unless there is one: [Stored] or [Failed].
	WriteHandBack struct{ Back wire.HandBack }
	// Extend tells the broker that the delivery is being worked on.
	Extend struct{}
	// Notify sends the notice to a coordinator.
	Notify struct {
		To     string
		Notice wire.Notice
	}
	// Emit publishes the event to watchers.
	Emit struct{ Event messages.Event }
	// Report says that a call has ended here, for metrics.
	Report struct{ Result messages.Result }
	// Count adds one to a count of the worker.
	Count struct{ What Counted }
	// Log logs a line. Args are keys and values.
	Log struct {
		Level Level
		Text  string
		Args  []any
	}
	// Close removes the attempt from the worker's list, ends its span and the open requests to the
	// journal: [Closed], after every [Delivered] that came before.
	Close struct{ End End }
	// Settle settles the newest delivery. It comes once.
	Settle struct {
		How    Settlement
		Reason string        // of a Term
		After  time.Duration // of a Nak
	}
)

func (ReadResult) effect()    {}
func (ReadRecord) effect()    {}
func (Begin) effect()         {}
func (Run) effect()           {}
func (Grant) effect()         {}
func (Refuse) effect()        {}
func (Cancel) effect()        {}
func (Abort) effect()         {}
func (Write) effect()         {}
func (WriteResult) effect()   {}
func (Offload) effect()       {}
func (WriteHandBack) effect() {}
func (Extend) effect()        {}
func (Notify) effect()        {}
func (Emit) effect()          {}
func (Report) effect()        {}
func (Count) effect()         {}
func (Log) effect()           {}
func (Close) effect()         {}
func (Settle) effect()        {}

// Level is the level of a log line, in the numbers of log/slog.
type Level int

// The levels.
const (
	Debug Level = -4
	Info  Level = 0
	Warn  Level = 4
	Error Level = 8
)

// Counted names something that is counted in an attempt.
type Counted uint8

// The counted events.
const (
	Claimed Counted = iota // a claim is stored
	// ClaimRefused: another worker has the call, or the call has ended; at most once per attempt.
	ClaimRefused
	LeaseMissed // a claim could not be renewed in time
	Progressed  // a tool reported progress
)

// Settlement is how a delivery is settled.
type Settlement uint8

// The settlements.
const (
	Unsettled Settlement = iota // perhaps nothing is stored: the broker delivers the job again
	Ack
	Term
	Nak
)

// settlement says how to settle the newest delivery, and which notice to send then.
type settlement struct {
	how    Settlement
	reason string
	after  time.Duration
	notice *wire.Notice
}

// End says what became of an attempt, for its span.
type End struct {
	Attempt int
	Fence   uint64 // of its claim; 0: it has none
	Became  string // status of the result, or one of the constants below; "": nothing is stored
	Failure string // how the attempt failed, not its tool; "": it did not
	// Approval is the id of the question that was stored; "": none was.
	Approval string
	Err      error // why the call was not brought to its end here; nil: it was
}

// What became of an attempt without a result, and the failure of an attempt that lost its lease.
const (
	Parked     = "parked"
	Released   = "released"
	HandedBack = "handed_back"
	LeaseLost  = "lease_lost"
)
