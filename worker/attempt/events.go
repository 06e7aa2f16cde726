package attempt

import (
	"errors"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/call"
)

// Event is something that the machine is told.
type Event interface{ event() }

type (
	// Delivered tells of a delivery of the job: the first one, or a further one.
	Delivered struct {
		Count  int    // how often the job was delivered, this time included
		Seq    uint64 // of the job in its stream
		Notify string // the coordinator that published it
		// Served says that the tool is served here under the job's definition.
		Served bool
		Queued time.Time // when the server stored the job, by its clock
		Now    time.Time // the server's time
	}
	// ResultRead answers [ReadResult]. Result is nil when none is stored.
	ResultRead struct{ Result *messages.Result }
	// RecordRead answers [ReadRecord].
	RecordRead struct{ Newest Entry }
	// Began answers [Begin] with the span that was opened, as a traceparent; "" without one.
	Began struct{ Span string }
	// Wanted says that the phases have a frozen input and want to start the tool. The answer is
	// [Grant] or [Refuse].
	Wanted struct{ Frozen call.Frozen }
	// Told is an event for watchers, from the phases. Its ids are missing.
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
	// Overtaken answers a [Write]: another record is the newest.
	Overtaken struct {
		Nonce  string
		Newest Entry
	}
	// Failed answers anything that is asked of the journal. A write may be stored all the same.
	Failed struct {
		Nonce string // of the record; "": it was no [Write]
		Why   Failure
		Err   error
	}
	// Tick tells the time, at or after [Machine.Wake].
	Tick struct{}
	// Stopped tells that the call is no longer wanted.
	Stopped struct{ Stop wire.Stop }
	// Draining tells that the worker's drain is over: the run has to end.
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

// Entry is a stored record of the call. Seq is 0 when there is none.
type Entry struct {
	Seq    uint64
	Record wire.CallRecord
}

// Failure is why the journal did not do what it was asked.
type Failure uint8

// The failures.
const (
	Unknown  Failure = iota // no answer, or nothing that decides: another try may help
	TooLarge                // it does not fit into a message
	Full                    // the store of large results is full
	Terminal                // every further try would fail the same way
)

// The errors that end a run. The phases pass them on.
var (
	// ErrLeaseLost is the cause that cancels a run which can no longer prove its claim.
	ErrLeaseLost = errors.New("the lease on this call could not be renewed")
	// ErrDraining is the cause that cancels a run which did not end within the worker's drain time.
	ErrDraining = errors.New("the worker is shutting down")
	// ErrNotMine refuses a claim on a call that another worker has claimed, or that has ended.
	ErrNotMine = errors.New("the call is claimed by another worker or has ended")
	// ErrTooLarge refuses a claim that does not fit into a message, or leaves no headroom there.
	ErrTooLarge = errors.New("the claim is too large")
	// ErrOtherInput refuses a takeover whose frozen input differs from that of the lost attempt.
	// Under another idempotency key the effect could happen twice. This is only a guard, because
	// the input comes from the lost attempt's record.
	ErrOtherInput = errors.New("the input is not that of the attempt before")
	errNotNow     = errors.New("no claim can be made now")
)

// Effect is something that the machine wants done.
type Effect interface{ effect() }

type (
	// ReadResult wants the stored result of a call that does not claim: [ResultRead] or [Failed].
	ReadResult struct{}
	// ReadRecord wants the newest record of the call: [RecordRead] or [Failed].
	ReadRecord struct{}
	// Begin wants the span of the attempt opened: [Began]. Prior is the record that the job takes
	// over from; nil: there is none.
	Begin struct{ Prior *wire.CallRecord }
	// Run wants the phases started: [Wanted] and [Told] on the way, and [Ended]. With a Cause the
	// run is cancelled from the start.
	Run struct {
		Job   wire.Job
		Prior *wire.CallRecord
		Cause error
	}
	// Grant answers [Wanted]: the tool may start.
	Grant struct{ Grant call.Grant }
	// Refuse answers [Wanted]: the tool may not start.
	Refuse struct{ Err error }
	// Cancel wants the run cancelled with the cause.
	Cancel struct{ Cause error }
	// Abort wants what is asked of the journal ended soon; each question still has its answer.
	Abort struct{}
	// Write wants the record stored behind the one at sequence Behind: [Stored], [Overtaken] or
	// [Failed], no later than a moment after Until (zero: no bound).
	Write struct {
		Record wire.CallRecord
		Behind uint64
		Until  time.Time
	}
	// WriteResult wants the result stored, unless there is one: [Stored] or [Failed].
	WriteResult struct{ Result messages.Result }
	// Offload wants the outcome moved to the object store: [Stored] or [Failed].
	Offload struct{ Result messages.Result }
	// WriteHandBack wants the hand-back stored, unless there is one: [Stored] or [Failed].
	WriteHandBack struct{ Back wire.HandBack }
	// Extend wants the broker told that the delivery is worked on.
	Extend struct{}
	// Notify wants the notice sent to a coordinator.
	Notify struct {
		To     string
		Notice wire.Notice
	}
	// Emit wants the event published to watchers.
	Emit struct{ Event messages.Event }
	// Report wants a call counted that ended here.
	Report struct{ Result messages.Result }
	// Count wants something counted.
	Count struct{ What Counted }
	// Log wants a line logged. Args are keys and values.
	Log struct {
		Level Level
		Text  string
		Args  []any
	}
	// Close wants the attempt taken out of hand, its span closed and what is asked of the journal
	// ended: [Closed], after every [Delivered] that came before.
	Close struct{ End End }
	// Settle wants the newest delivery settled. It comes once.
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

// Level is how important a log line is, in the numbers of log/slog.
type Level int

// The levels.
const (
	Debug Level = -4
	Info  Level = 0
	Warn  Level = 4
	Error Level = 8
)

// Counted is something that happens in an attempt and is counted.
type Counted uint8

// The counted events.
const (
	Claimed Counted = iota // a claim is stored
	// ClaimRefused: another worker has the call, or it has ended; at most once per attempt.
	ClaimRefused
	LeaseMissed // a claim could not be renewed in time
	Progressed  // a tool reported progress
)

// Settlement is how a delivery is settled.
type Settlement uint8

// The settlements.
const (
	Unsettled Settlement = iota // nothing is known to be stored: the broker delivers the job again
	Ack
	Term
	Nak
)

// settlement is how the newest delivery is settled, and the notice that follows.
type settlement struct {
	how    Settlement
	reason string
	after  time.Duration
	notice *wire.Notice
}

// End is what became of an attempt, for its span.
type End struct {
	Attempt int
	Fence   uint64 // of its claim; 0: it has none
	Became  string // the status of the result, or one of the words below; "": nothing is stored
	Failure string // how the attempt itself failed, not its tool; "": it did not
	// Approval identifies the question that was stored; "": none was.
	Approval string
	Err      error // why the call was not brought to an end here; nil: it was
}

// What became of an attempt that ended without a result, and the failure of one that lost its
// lease.
const (
	Parked     = "parked"
	Released   = "released"
	HandedBack = "handed_back"
	LeaseLost  = "lease_lost"
)
