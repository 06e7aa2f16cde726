package batch

import (
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Event is something that happened to the batch.
type Event interface{ event() }

type (
	// Begin starts the batch, once the machine has all records that the journal holds. Resumed:
	// there were some, so watchers have seen the start already. Late: this may not be the first
	// driver, so a worker may be running a call and sending its notices to another coordinator.
	// Again: jobs of the batch may have been published before, even where no record says so.
	Begin struct{ Resumed, Late, Again bool }
	// Late, after Begin, says that another coordinator drives or drove the batch too.
	Late struct{}
	// Planned is a record on the batch's plan subject, ours or another coordinator's.
	Planned struct {
		Record wire.PlanRecord
		Seq    uint64
	}
	// Recorded is the newest record in a call's journal. Expires is when the question of a parked
	// call does, by the clock of the steps; the record itself has the server's time.
	Recorded struct {
		Index   int
		Record  wire.CallRecord
		Seq     uint64
		Expires time.Time
	}
	// Ended is the stored result of a call.
	Ended struct {
		Index  int
		Result messages.Result
	}
	// HandedBack says that the call's frozen input is stricter than its plan: it must run alone.
	HandedBack struct{ Index int }
	// LetGo is a worker's hint that it gave up the call's job, which should be published again
	// after the pause. Attempt counts the failed attempts of a call that does not claim.
	LetGo struct {
		Index   int
		After   time.Duration
		Attempt int
	}
	// Running is a worker's hint that it runs the call, or prepares to.
	Running struct{ Index int }
	// Aborted says that the batch is no longer wanted, by whom and why. No call starts after it.
	Aborted struct{ wire.Stop }
	// Steered skips calls because of a steering message: with Now every call that is not dispatched
	// yet, else the later stages.
	Steered struct {
		wire.Stop
		Now bool
	}
	// Looked ends the events of one Look.
	Looked struct{}
	// Tick has the machine look at the time, at or after [Machine.Wake].
	Tick struct{}
)

func (Begin) event()      {}
func (Late) event()       {}
func (Planned) event()    {}
func (Recorded) event()   {}
func (Ended) event()      {}
func (HandedBack) event() {}
func (LetGo) event()      {}
func (Running) event()    {}
func (Aborted) event()    {}
func (Steered) event()    {}
func (Looked) event()     {}
func (Tick) event()       {}

// Effect is something that the driver is to do.
type Effect interface{ effect() }

type (
	// Announce publishes a start event for every call, before anything is dispatched.
	Announce struct{}
	// StorePlan stores the record behind the one at sequence Expect. The driver answers with
	// [Planned] for the newest record that is then there. Nothing exclusive is dispatched before
	// that.
	StorePlan struct {
		Record wire.PlanRecord
		Expect uint64
	}
	// Dispatch publishes the call's job. Again counts how often it was published before, and one
	// more where another driver may have published it. A worker that gets a job with Again 0 need
	// not check whether its call has ended.
	Dispatch struct {
		Index, Again int
		Exclusive    bool
		Deadline     time.Duration // of the run; 0: the tool's own
		TakeOver     uint64        // the record to claim behind: a lapsed claim or a release; 0: none
		Attempt      int           // failed attempts of a call that does not claim
	}
	// Look reads the journal of the open calls. The driver answers with what it found, then
	// [Looked].
	Look struct{}
	// End stores the result of a call that nobody runs, behind the journal record at Expect. The
	// driver answers with what is then stored.
	End struct {
		Index  int
		Result messages.Result
		Expect uint64
	}
	// Stop asks the worker that runs the call to stop it.
	Stop struct {
		Index int
		Why   wire.Stop
	}
	// Tell publishes the end of a call to watchers.
	Tell struct{ Result messages.Result }
	// Finish makes the reply of the results, in call order. It comes last, and once.
	Finish struct{ Results []messages.Result }
)

func (Announce) effect()  {}
func (StorePlan) effect() {}
func (Dispatch) effect()  {}
func (Look) effect()      {}
func (End) effect()       {}
func (Stop) effect()      {}
func (Tell) effect()      {}
func (Finish) effect()    {}
