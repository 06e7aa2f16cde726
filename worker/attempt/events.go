package attempt

import (
	"errors"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/call"
)

// Event is something that has happened: the input of [Machine.Step].
type Event interface{ event() }

type (
	// Delivered says that the job was delivered, for the first time or again.
	Delivered struct {
		Count  int    // how many times the job was delivered, including this time
		Seq    uint64 // sequence of the job in its stream
		Queue  string // the token of the queue that the job came from
		Notify string // the coordinator that published the job
		// Served says that this worker has the tool in the version that the job names.
		Served bool
		Queued time.Time // when the server stored the job, by the server's clock
		Now    time.Time // the server's time
	}
	// ResultRead answers [ReadResult]. Result is nil if no result is stored.
	ResultRead struct{ Result *messages.Result }
	// RecordRead answers [ReadRecord].
	RecordRead struct{ Newest Entry }
	// Began answers [Begin]. Span is the traceparent of the new span, or "" without
	// tracing.
	Began struct{ Span string }
	// Wanted says that the phases have the final input and want to start the tool. [Grant] or
	// [Refuse] answers it.
	Wanted struct{ Frozen call.Frozen }
	// Told passes on an event of the phases that watchers should see. The machine adds the
	// ids.
	Told struct{ Event messages.Event }
	// Ended says that the phases have ended, with a result or an error.
	Ended struct {
		Result messages.Result
		Err    error
	}
	// Stored answers four requests: [Write], with the nonce and the sequence of the record;
	// [WriteResult], with the result that counts; [Offload], with a result that refers to
	// its outcome; and [WriteHandBack].
	Stored struct {
		Nonce  string
		Seq    uint64
		Result *messages.Result
	}
	// Overtaken answers a [Write] if another record was stored first.
	Overtaken struct {
		Nonce  string
		Newest Entry
	}
	// Failed answers a request to the journal that failed. A write that failed may still have
	// been stored.
	Failed struct {
		Nonce string // nonce of the record; "" if the request was not a [Write]
		Why   Failure
		Err   error
	}
	// Tick says that the time of [Machine.Wake] has come. It may come late.
	Tick struct{}
	// Stopped says that nobody wants the result of the call any more.
	Stopped struct{ Stop wire.Stop }
	// Draining says that the worker's drain is over: the run has to end.
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

// Entry is a stored record of the call. Seq is 0 if the call has no record.
type Entry struct {
	Seq    uint64
	Record wire.CallRecord
}

// Failure says why a request to the journal failed.
type Failure uint8

// The failures.
const (
	Unknown  Failure = iota // no answer, or one that decides nothing: another try may help
	TooLarge                // the data does not fit into a message
	Full                    // the store of large results is full
	Terminal                // every further try would fail the same way
)

// These errors end a run. The phases return them unchanged.
var (
	// ErrLeaseLost is the cause that cancels a run whose lease could not be renewed.
	ErrLeaseLost = errors.New("the lease on this call could not be renewed")
	// ErrDraining is the cause that cancels a run that did not end within the worker's
	// drain.
	ErrDraining = errors.New("the worker is shutting down")
	// ErrNotMine refuses a claim on a call that another worker has claimed, or that has ended.
	ErrNotMine = errors.New("the call is claimed by another worker or has ended")
	// ErrTooLarge refuses a claim that does not fit into a message with its headroom.
	ErrTooLarge = errors.New("the claim is too large")
	// ErrOtherInput refuses to take over a call whose frozen input differs from that of the
	// lost attempt. Another input means another idempotency key, so the effect could happen
	// twice. The worker takes the input from the lost attempt's record, so this error shows
	// a bug.
	ErrOtherInput = errors.New("the input is not that of the attempt before")
	errNotNow     = errors.New("no claim can be made now")
)

// Effect is something that the shell has to do. If the comment on an effect ends with a colon
// and names of events, one of these events answers the effect.
type Effect interface{ effect() }

type (
	// ReadResult reads the stored result of a call that runs without a claim: [ResultRead] or
	// [Failed].
	ReadResult struct{}
	// ReadRecord reads the newest record of the call: [RecordRead] or [Failed].
	ReadRecord struct{}
	// Begin opens the span of the attempt: [Began]. Prior is the record from which the job
	// continues, or nil.
	Begin struct{ Prior *wire.CallRecord }
	// Run starts the phases. They cause [Told] and [Wanted] while they run, and [Ended] at
	// the end. With a Cause the run is cancelled from the start.
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
	// Abort makes the open requests to the journal end soon. Each of them still gets an
	// answer.
	Abort struct{}
	// Write stores the record, if the newest record of the call is still that at sequence
	// Behind: [Stored], [Overtaken] or [Failed]. The answer comes shortly after Until at
	// the latest (zero: no limit).
	Write struct {
		Record wire.CallRecord
		Behind uint64
		Until  time.Time
	}
	// WriteResult stores the result, unless one is stored already: [Stored] or [Failed].
	WriteResult struct{ Result messages.Result }
	// Offload moves the outcome to the object store: [Stored] or [Failed].
	Offload struct{ Result messages.Result }
	// WriteHandBack stores the hand-back, unless one is stored already: [Stored] or
	// [Failed].
	WriteHandBack struct{ Back wire.HandBack }
	// Extend is the sign of life to the broker: the worker still has the job.
	Extend struct{}
	// Notify sends the notice to a coordinator.
	Notify struct {
		To     string
		Notice wire.Notice
	}
	// Emit publishes the event to watchers.
	Emit struct{ Event messages.Event }
	// Report counts the call as ended here, for metrics.
	Report struct{ Result messages.Result }
	// Count adds one to a counter of the worker.
	Count struct{ What Counted }
	// Log logs a line. Args are keys and values.
	Log struct {
		Level Level
		Text  string
		Args  []any
	}
	// Close removes the attempt from the worker's list, and ends its span and its open
	// requests to the journal: [Closed]. No [Delivered] comes after Closed.
	Close struct{ End End }
	// Settle settles the newest delivery. It is the only Settle of the attempt.
	Settle struct {
		How    Settlement
		Reason string        // the reason of a Term
		After  time.Duration // the pause of a Nak
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
	// ClaimRefused: another worker has the call, or the call has ended. Counted at most
	// once per attempt.
	ClaimRefused
	LeaseMissed // a claim could not be renewed in time
	Progressed  // a tool reported progress
)

// Settlement is how a delivery is settled.
type Settlement uint8

// The settlements.
const (
	Unsettled Settlement = iota // perhaps nothing is stored: the broker must deliver again
	Ack
	Term
	Nak
)

// settlement says how to settle the newest delivery, and which notice to send with that.
type settlement struct {
	how    Settlement
	reason string
	after  time.Duration
	notice *wire.Notice
}

// End says what became of an attempt, for its span.
type End struct {
	Attempt int
	Fence   uint64 // the fence of its claim; 0: it has no claim
	Became  string // status of the result, or one of the constants below; "": nothing is stored
	Failure string // how the attempt itself failed, as opposed to its tool; "": it did not
	// Approval is the id of the question that was stored, or "".
	Approval string
	Err      error // why this worker did not bring the call to its end; nil: it did
}

// Values of End.Became for attempts without a result, and of End.Failure for a lost lease.
const (
	Parked     = "parked"
	Released   = "released"
	HandedBack = "handed_back"
	LeaseLost  = "lease_lost"
)
