package batch

import (
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Event is something that has happened to the batch.
type Event interface{ event() }

type (
	// Begin starts the batch, after the machine has got all records of the journal.
	//
	//   - Resumed: there were records, so watchers have seen the start of the batch.
	//   - Late: there may have been an earlier driver. Workers may send their notices to it.
	//   - Again: jobs of the batch may have been published before, even without a record.
	//   - Jobs: jobs of the batch exist, in a queue or with workers.
	Begin struct{ Resumed, Late, Again, Jobs bool }
	// Late comes after Begin. It says that another coordinator drives the batch too, or has
	// driven it.
	Late struct{}
	// Planned is a plan record of the batch, from this coordinator or another.
	Planned struct {
		Record wire.PlanRecord
		Seq    uint64
	}
	// Recorded is the newest record in a call's journal. If the call is parked, Expires is
	// when its question expires, on the clock of the steps. The record itself has that time on
	// the server's clock.
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
	// HandedBack says that a worker has handed the call back. The plan let the call run beside
	// others, but hooks have changed its input, and with the new input it must run alone.
	HandedBack struct{ Index int }
	// LetGo is a worker's hint that it gave up the call's job. The job should be published
	// again after the time After. Attempt is the number of failed attempts, for a call that
	// runs without a claim. Lost says that a worker had the job and is gone without a report.
	LetGo struct {
		Index   int
		After   time.Duration
		Attempt int
		Lost    bool
	}
	// Running is a worker's hint that it runs the call, or is about to.
	Running struct{ Index int }
	// Unserved says whether the call's job waits because no worker of the pool has its tool in
	// the planned version.
	Unserved struct {
		Index int
		Is    bool
		// Gone says, for the model, why no other version of the tool can be used. It is "" if
		// another version can be used, or if this is not known. If Gone is set, the call ends
		// and does not wait for workers with its version.
		Gone string
	}
	// Aborted says who aborted the batch and why. No call starts after this event.
	Aborted struct{ wire.Stop }
	// Steered skips calls because of a steering message. If Now is set, it skips all calls
	// that are not dispatched yet. Otherwise it skips the calls of later stages.
	Steered struct {
		wire.Stop
		Now bool
	}
	// Turn says what this batch may start beside the earlier batches of its session. It
	// replaces the previous Turn.
	Turn struct {
		May May
		// Room is how many calls of the batch may be in the window of the session at once.
		Room int
		// Passed says that later batches want to start calls beside this batch. They may do so
		// only once the plan of this batch is stored.
		Passed bool
	}
	// Looked comes after all events that answer a Look.
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

// May has these values. A batch with no earlier batch may start everything.
const (
	Everything May = iota
	SafeCalls      // only calls that may run beside others, because an earlier batch is not over
	Nothing        // no call, because an earlier batch does not let others start beside it
)

func (m May) String() string { return [...]string{"everything", "safe calls", "nothing"}[m] }

// Effect is something that the driver has to do.
type Effect interface{ effect() }

type (
	// Announce publishes a start event for every call, before anything is dispatched.
	Announce struct{}
	// StorePlan stores a plan record, if the newest plan record is still the one at sequence
	// Expect. The driver answers with [Planned] for the record that is then the newest. Until
	// that answer no exclusive call is dispatched. No write is dispatched before the first
	// plan is stored.
	StorePlan struct {
		Record wire.PlanRecord
		Expect uint64
	}
	// Dispatch publishes the call's job. Again is how many times the job was published before,
	// plus one if another driver may have published it. If Again is 0, the worker that gets
	// the job need not check whether the call has ended.
	Dispatch struct {
		Index, Again int
		Exclusive    bool
		Deadline     time.Duration // limit of the run; 0: the timeout of the tool
		TakeOver     uint64        // sequence of the record that the claim must follow; 0: none
		Attempt      int           // number of failed attempts, for a call that runs without a claim
	}
	// Look reads the journal about the open calls. The driver answers with an event for each
	// thing that it found, and then with [Looked].
	Look struct{}
	// End stores the result of a call that no worker runs, if the call's newest record is
	// still the one at sequence Expect. The driver answers with what is stored afterwards.
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
