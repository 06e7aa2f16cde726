package batch

import (
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Event is something that the machine is told.
type Event interface{ event() }

type (
	// Begin starts the batch, once all records that the journal holds have been told. Resumed: there
	// were some, so whoever watches has seen the start already. Late: this is not certainly the first
	// driver, so a worker may be running a call and telling another coordinator. Again: jobs of it may have
	// been published before, even where nothing else says so.
	Begin struct{ Resumed, Late, Again bool }
	// Late tells, after Begin, that another coordinator drives or drove the batch too.
	Late struct{}
	// Planned tells of a record on the batch's plan subject, ours or another's.
	Planned struct {
		Record wire.PlanRecord
		Seq    uint64
	}
	// Recorded tells of the newest record in a call's journal. Expires is when the question of a parked one does, by
	// the clock of the steps: the record itself says it by the server's.
	Recorded struct {
		Index   int
		Record  wire.CallRecord
		Seq     uint64
		Expires time.Time
	}
	// Ended tells of the stored result of a call.
	Ended struct {
		Index  int
		Result messages.Result
	}
	// HandedBack tells that the call's frozen input is stricter than its plan: it must run alone.
	HandedBack struct{ Index int }
	// LetGo is a worker's word that it gave the call's job up and that it should be published again after a
	// while. Attempt counts the failed attempts of a call that does not claim. A hint.
	LetGo struct {
		Index   int
		After   time.Duration
		Attempt int
	}
	// Running is a worker's word that it has the call in hand. A hint.
	Running struct{ Index int }
	// Aborted tells that nobody wants the batch any more, who said so and why. What has not started never will.
	Aborted struct{ wire.Stop }
	// Steered tells that somebody wants to be heard before more of the batch runs: before any call that is not
	// dispatched yet when Now is set, else before the next stage.
	Steered struct {
		wire.Stop
		Now bool
	}
	// Looked ends what a Look found.
	Looked struct{}
	// Tick tells the time, at or after [Machine.Wake].
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

// Effect is something that the machine wants done.
type Effect interface{ effect() }

type (
	// Announce wants a start event for every call, before anything is dispatched.
	Announce struct{}
	// StorePlan wants the record stored behind the one at sequence Expect, and [Planned] told of what is
	// then the newest there. Nothing exclusive is dispatched before.
	StorePlan struct {
		Record wire.PlanRecord
		Expect uint64
	}
	// Dispatch wants the call's job published. Again counts the times it was published before, and once more
	// where another driver may have published it. A worker that gets a job with Again 0 need not look whether
	// its call has ended.
	Dispatch struct {
		Index, Again int
		Exclusive    bool
		Deadline     time.Duration // of the run; 0: the tool's own
		TakeOver     uint64        // the record to claim behind: a lapsed claim or a release; 0: none
		Attempt      int           // failed attempts of a call that does not claim
	}
	// Look wants the journal of the open calls read and told, then [Looked].
	Look struct{}
	// End wants the result stored for a call that nobody runs, behind the journal record at Expect, and
	// what is then stored told.
	End struct {
		Index  int
		Result messages.Result
		Expect uint64
	}
	// Stop wants whoever runs the call told to stop it.
	Stop struct {
		Index int
		Why   wire.Stop
	}
	// Tell wants the end of a call published to whoever watches.
	Tell struct{ Result messages.Result }
	// Finish wants the reply made of the results, in call order. It comes last, and once.
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
