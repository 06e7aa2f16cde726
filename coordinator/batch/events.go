package batch

import (
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Event is something that happened to the batch.
type Event interface{ event() }

type (
	// Begin starts the batch, after the machine got all records of the journal. Resumed: there were
	// records, so watchers have seen the start. Late: there may have been an earlier driver, so a
	// worker may run a call and send its notices to another coordinator. Again: jobs of the batch
	// may have been published before, even without a record. Jobs: jobs of the batch exist, waiting
	// or with workers.
	Begin struct{ Resumed, Late, Again, Jobs bool }
	// Late comes after Begin. It says that another coordinator drives the batch too, or has driven
	// it.
	Late struct{}
	// Planned is a plan record of the batch, from this coordinator or another.
	Planned struct {
		Record wire.PlanRecord
		Seq    uint64
	}
	// Recorded is the newest record in a call's journal. Expires is when the question of a parked
	// call expires, by the clock of the steps; the record itself has the server's time.
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
	// HandedBack says that the input of the call, as changed by hooks, needs stricter treatment
	// than planned: the call must run alone.
	HandedBack struct{ Index int }
	// LetGo is a worker's hint that it gave up the call's job, and that the job should be published
	// again after the pause. Attempt is how many attempts of a call that does not claim have
	// failed. Lost: a worker that had the job is gone, and said nothing.
	LetGo struct {
		Index   int
		After   time.Duration
		Attempt int
		Lost    bool
	}
	// Running is a worker's hint that it runs the call, or prepares to.
	Running struct{ Index int }
	// Unserved says that the job of the call waits because none of the pool's workers has its tool
	// in the planned version.
	Unserved struct {
		Index int
		Is    bool
		// Gone is why no other version of the tool can be used, for the model; "": one can, or that
		// is not known. With Gone set, the call does not wait for workers with its version.
		Gone string
	}
	// Aborted says who aborted the batch and why. No call starts after it.
	Aborted struct{ wire.Stop }
	// Steered skips calls because of a steering message: all calls that are not dispatched yet if
	// Now is set, otherwise the calls of later stages.
	Steered struct {
		wire.Stop
		Now bool
	}
	// Turn says what this batch may start beside the earlier batches of its session. It replaces
	// the previous Turn.
	Turn struct {
		May May
		// Room is how many calls of the batch may be out at once, by the limit of the session.
		Room int
		// Passed says that later batches wait for this one: once its plan is stored, they may start
		// calls beside it.
		Passed bool
	}
	// Looked says that the answer to a Look is complete. It comes after the events of that answer.
	Looked struct{}
	// Tick tells the machine the time, at or after [Machine.Wake].
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
func (Unserved) event()   {}
func (Aborted) event()    {}
func (Steered) event()    {}
func (Turn) event()       {}
func (Looked) event()     {}
func (Tick) event()       {}

// May says which calls of a batch may start.
type May uint8

// If there is no earlier batch, every call may start.
const (
	Everything May = iota
	SafeCalls      // only calls that may run beside others, because an earlier batch is not over
	Nothing        // no call, because an earlier batch cannot be passed
)

func (m May) String() string { return [...]string{"everything", "safe calls", "nothing"}[m] }

// Effect is something that the driver carries out.
type Effect interface{ effect() }

type (
	// Announce publishes a start event for every call, before anything is dispatched.
	Announce struct{}
	// StorePlan stores a plan record after the one at sequence Expect. The driver answers with
	// [Planned] for the record that is newest then. No exclusive call is dispatched before that.
	StorePlan struct {
		Record wire.PlanRecord
		Expect uint64
	}
	// Dispatch publishes the call's job. Again counts how many times it was published before, plus
	// one if another driver may have published it. A worker that gets a job with Again 0 need not
	// check whether the call has ended.
	Dispatch struct {
		Index, Again int
		Exclusive    bool
		Deadline     time.Duration // of the run; 0: the timeout of the tool
		TakeOver     uint64        // sequence of the record after which the claim is written; 0: none
		Attempt      int           // how many attempts of a call that does not claim have failed
	}
	// Look reads the journal of the open calls. The driver answers with what it found, and then
	// with [Looked].
	Look struct{}
	// End stores the result of a call that no worker runs, after the journal record at Expect. The
	// driver answers with what is stored then.
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
	// Finish makes the reply from the results, which are in call order. It is the last effect.
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
