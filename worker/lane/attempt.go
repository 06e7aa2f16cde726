package lane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/call"
)

// attempt is one job on its way through this worker. Fields without a guard are set before work
// starts, or are used only by the goroutine of run.
type attempt struct {
	*Consumer
	log     *slog.Logger
	pool    string // the pool that the job came from
	job     wire.Job
	key     wire.CallKey
	service Service
	nonce   string
	runs    int           // runs of a call that does not claim, this one included
	began   time.Time     // when the job was taken in hand
	waited  time.Duration // how long it was queued by then, by the server's clock
	// running is the context of the run. It ends when the worker does, when the lease is lost, or
	// when the call is stopped.
	running context.Context
	cancel  context.CancelCauseFunc // cancels running
	// kept is the context of the lease. It ends when the end of the call is stored, or cannot be.
	kept   context.Context
	lapse  context.CancelFunc // cancels kept
	keeper sync.WaitGroup     // waits for the goroutine that renews the lease

	parent    string    // our span, for later attempts to link to; "" if it is not recorded
	became    string    // what became of the call, for the span
	failure   string    // how the attempt itself failed, not its tool; "": it did not
	refused   bool      // the refused claim was counted
	leaseLost sync.Once // the lost lease was counted

	// telling is held while an event is sent, so that events go out in the order of their counters.
	telling sync.Mutex

	mu      sync.Mutex
	d       *bus.Delivery // the newest delivery of the job; guarded by mu
	notify  string        // the coordinator that published that job; guarded by mu
	counter int           // number of events so far; guarded by mu
	// last is the sequence of our newest record, or of the one we claim behind; guarded by mu.
	last    uint64
	record  wire.CallRecord // that record; guarded by mu
	claimed bool            // we hold a claim; guarded by mu
}

// settlement is how a delivery is settled in the end. Nil means that nothing is known to be stored,
// so that the broker has to deliver the job again.
type settlement func(*bus.Delivery) error

func ack(d *bus.Delivery) error { return d.Ack() }

func term(reason string) settlement {
	return func(d *bus.Delivery) error { return d.Term(reason) }
}

// letGo gives the job up. The job leaves the queue, and the coordinator publishes it again after
// the given time. failed counts the attempts so far that failed, or were lost with their worker,
// without a claim.
func (a *attempt) letGo(reason string, after time.Duration, failed int) settlement {
	return func(d *bus.Delivery) error {
		err := d.Term(reason)
		a.tell(wire.Notice{LetGo: &wire.LetGo{AfterMS: after.Milliseconds(), Attempt: failed}})
		return err
	}
}

// retryLater gives up a failed attempt of a call that does not claim. The job stays in the queue
// until the coordinator replaces it by a job that carries the number of failed attempts. If the job
// left the queue before the coordinator has this notice, a poll could publish the call with an
// attempt too many. Without a coordinator the broker delivers the job again, and that delivery
// counts as the next attempt.
func (a *attempt) retryLater(after time.Duration) settlement {
	return func(d *bus.Delivery) error {
		err := d.Nak(after + a.cfg.AckWait/3)
		a.tell(wire.Notice{LetGo: &wire.LetGo{AfterMS: after.Milliseconds(), Attempt: a.runs, Job: d.Seq}})
		return err
	}
}

// run brings the call to its end, or finds that it has ended, or gives it up for another worker.
func (a *attempt) run(ctx context.Context) (settle settlement, err error) {
	defer func() { a.lapse(); a.keeper.Wait() }()
	delivered := a.delivery().Delivered
	// The call may have ended elsewhere in the meantime.
	if a.job.TakeOver > 0 || a.job.Dispatch > 0 || delivered > 1 || a.waited > time.Second {
		if settle, err := a.settled(ctx); settle != nil || err != nil {
			return settle, err
		}
	}
	ctx = a.trace(ctx)
	defer func() { a.endTrace(ctx, err) }()
	// Attempts that failed cleanly do not count towards poison. Those of a call that does not claim are deliveries where
	// no coordinator hears of them, so a tool with many attempts has as many deliveries.
	poison := a.cfg.Poison
	if !a.claims() {
		poison = max(poison, a.service.Attempts)
	}
	if lost := delivered - 1 + max(a.job.Attempt-(a.service.Attempts-1), 0); lost >= poison {
		return a.finish(ctx, a.poisoned(lost))
	}
	stop := a.giveSigns(a.running)
	result, err := a.work()
	stop()
	var back *call.HandBack
	var ask *call.Ask
	switch {
	case errors.Is(err, errNotMine):
		if settle, err := a.settled(ctx); settle != nil || err != nil {
			return settle, err
		}
		return term("claimed by another worker"), nil
	case errors.As(err, &back):
		return a.handBack(ctx, back)
	case errors.As(err, &ask):
		return a.park(ctx, ask)
	// The worker shuts down; the tool has not run, or may run again.
	case err != nil && ctx.Err() != nil:
		return a.release(ctx, nil, 0)
	case err != nil:
		return nil, err
	}
	if wait, again := a.again(result); again {
		settle, err := a.release(ctx, result.Err, wait)
		if err == nil {
			a.logFailure("attempt failed; there will be another", result)
		}
		if !errors.Is(err, bus.ErrTooLarge) {
			return settle, err
		}
		a.log.Warn("not tried again: the record of it would be too large", "err", err)
	}
	return a.finish(ctx, result)
}

// work takes the call through its phases. Once the call is claimed its lease is renewed until the
// result is stored; if that fails, the run is cancelled.
func (a *attempt) work() (messages.Result, error) {
	result, err := a.tools.Run(a.running, a.job, a.prior(), a.claim, a.event)
	switch {
	case err != nil:
		result, err = a.endOf(err)
	// A refusal of this attempt says nothing about the lost attempt before it.
	case a.unsure() && !a.holds():
		result = a.lost()
	}
	if err != nil {
		return result, err
	}
	result.QueueMS = a.queueMS()
	result.Worker = a.cfg.Worker
	return result, nil
}

// queueMS is how long the job was queued, in milliseconds, by the clocks of the coordinator that
// published it and of this worker.
func (a *attempt) queueMS() float64 {
	return float64(max(a.began.Sub(a.job.QueuedAt), 0).Microseconds()) / 1000
}

// endOf turns an error that the run would meet on every worker into a result. It passes any other
// error on: the call then goes on elsewhere.
func (a *attempt) endOf(err error) (messages.Result, error) {
	var ask *call.Ask
	tooLarge := errors.Is(err, bus.ErrTooLarge)
	switch {
	case errors.Is(err, errOtherInput), tooLarge && a.unsure():
		return a.lost(), nil
	// An approval cannot come after what may have been done.
	case errors.As(err, &ask) && a.unsure():
		return a.lost(), nil
	case tooLarge:
		return a.failed(messages.StatusError, messages.CodeTooLarge,
			"The arguments, and what hooks said about them, are too large to be recorded. "+a.job.Tool+" was not run."), nil
	}
	return messages.Result{}, err
}

// lost is the result of a call whose earlier attempt was started and lost, and that cannot run
// again.
func (a *attempt) lost() messages.Result {
	return a.failed(messages.StatusOutcomeUnknown, messages.CodeOutcomeUnknown, "An attempt of "+a.job.Tool+" was lost or given up while it ran, and it could not be run again. "+
		"It may or may not have been applied. Do not repeat it blindly: check with a read, or ask a person.")
}

// prior returns the record that the job takes over from, or nil when there is none.
func (a *attempt) prior() *wire.CallRecord {
	if record, last := a.mine(); last > 0 {
		return &record
	}
	return nil
}

// failed makes a result for a call that no run has answered.
func (a *attempt) failed(status messages.Status, code messages.Code, message string) messages.Result {
	return messages.Result{
		V: messages.Version, Index: a.job.Index, CallID: a.job.CallID, Tool: a.job.Tool, Kind: a.job.Kind, Status: status,
		Attempt: a.attempts(), Outcome: messages.Failed(code, message), Worker: a.cfg.Worker,
	}
}

// attempts returns how often the call was claimed or, if it does not claim, run.
func (a *attempt) attempts() int {
	if !a.claims() {
		return a.runs
	}
	record, _ := a.mine()
	return record.Attempt
}

// claims reports whether the run is claimed. It is claimed when the tool may change the world, and
// when the call has a record for another reason, such as a question to people.
func (a *attempt) claims() bool { return a.service.Claims || a.job.TakeOver > 0 }

// unsure reports whether an attempt before this one may have changed the world.
func (a *attempt) unsure() bool {
	before, _ := a.mine()
	return a.service.Claims && before.Unsure()
}

// poisoned is the result of a call that was delivered again and again without coming to an end: it
// probably kills its workers.
func (a *attempt) poisoned(lost int) messages.Result {
	if a.unsure() {
		return a.failed(messages.StatusOutcomeUnknown, messages.CodeOutcomeUnknown, fmt.Sprintf(
			"%d workers in a row were lost over %s, the first of them while it ran. It may or may not have been applied. Do not repeat it blindly: check with a read, or ask a person.", lost, a.job.Tool))
	}
	return a.failed(messages.StatusError, messages.CodeWorkerLost, fmt.Sprintf(
		"%d workers in a row were lost over this call of %s, so it is not tried again. It may be what breaks them.", lost, a.job.Tool))
}

// settled looks in the journal for what is already known about the call. It returns a settlement
// when there is nothing to do here: the stored end is passed on, and another worker's claim is left
// alone.
func (a *attempt) settled(ctx context.Context) (settlement, error) {
	if !a.claims() {
		result, found, err := a.journal.Result(ctx, a.key)
		if err != nil {
			return nil, err
		}
		if found {
			a.tell(wire.Notice{Result: &result})
			return ack, nil
		}
		// No worker had it before that could have parked it.
		if a.job.Dispatch == 0 && a.delivery().Delivered == 1 {
			return nil, nil
		}
	}
	newest, _, err := a.journal.Newest(ctx, a.key)
	if err != nil {
		return nil, err
	}
	return a.settledBy(newest), nil
}

// settledBy settles the job by the newest record of its call. It returns nil when the call goes on
// from that record.
func (a *attempt) settledBy(newest journal.CallEntry) settlement {
	switch Decide(a.job.TakeOver, newest.Record, newest.Seq) {
	case Tell:
		a.tell(wire.Notice{Result: newest.Record.Result})
		return ack
	case Leave:
		// The worker that parked it may not have notified this coordinator.
		if newest.Record.State == wire.Parked {
			a.tell(wire.Notice{Record: &newest.Record, Seq: newest.Seq})
			return term("it waits for a person")
		}
		if lapsed(newest.Record) {
			a.claimRefused()
		}
		return term("claimed by " + newest.Record.Worker)
	case TakeOver:
		a.mu.Lock()
		a.last, a.record = newest.Seq, newest.Record
		a.mu.Unlock()
	}
	return nil
}

// again reports whether another attempt should follow a failed one, and after which pause. The
// pipeline marks an error as retryable only where another run can do no harm.
func (a *attempt) again(r messages.Result) (wait time.Duration, again bool) {
	switch r.Status {
	case messages.StatusError, messages.StatusTimeout, messages.StatusOutcomeUnknown:
	default:
		return 0, false
	}
	if r.Err == nil || !r.Err.Retryable || r.Attempt >= a.service.Attempts {
		return 0, false
	}
	wait = a.service.Backoff(r.Attempt)
	wait = wait/2 + rand.N(wait/2+1)
	inTime := a.conn.Now(a.running).Add(wait).Before(a.job.NotAfter) &&
		(a.job.DeadlineMS == 0 || time.Since(a.began)+wait < time.Duration(a.job.DeadlineMS)*time.Millisecond)
	return wait, inTime
}

// handBack gives back a call whose frozen input must run alone. The coordinator runs it at the end
// of its stage. The hand-back is written to the journal first, so that every coordinator knows it.
func (a *attempt) handBack(ctx context.Context, back *call.HandBack) (settlement, error) {
	note := wire.HandBack{V: messages.Version, ArgsHash: back.ArgsHash, Worker: a.cfg.Worker, Reason: back.Reason}
	if err := a.journal.WriteHandBack(ctx, a.key, note); err != nil {
		return nil, err
	}
	a.became = handedBack
	a.log.Info("handed back: its input must run alone", "reason", back.Reason)
	return func(d *bus.Delivery) error {
		err := d.Term("handed back")
		a.tell(wire.Notice{Hand: &note})
		return err
	}, nil
}

// lastWords returns a context that outlives ctx by Config.LastWords, so that the end of a call can
// still be stored.
func (a *attempt) lastWords(ctx context.Context) (context.Context, context.CancelFunc) {
	words, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(a.cfg.LastWords, func() { cancel(context.Cause(ctx)) })
	})
	return words, func() { stop(); cancel(nil) }
}

// delivery returns the newest delivery of the job.
func (a *attempt) delivery() *bus.Delivery {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.d
}
