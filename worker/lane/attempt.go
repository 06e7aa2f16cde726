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
	"github.com/toolfleet/toolfleet/messages"
)

// attempt is one job on its way through this worker.
type attempt struct {
	*Consumer
	log     *slog.Logger
	pool    string // that it came from
	job     messages.Job
	key     messages.CallKey
	service Service
	nonce   string
	runs    int                     // of a call that does not claim, this one included
	began   time.Time               // when the job was taken in hand
	waited  time.Duration           // how long it was queued by then, by the server's clock
	running context.Context         // of the run: ends when the worker does, the lease is lost, or somebody stops it
	cancel  context.CancelCauseFunc // of running
	kept    context.Context         // of the lease: ends when what became of the call is stored, or cannot be
	lapse   context.CancelFunc      // of kept
	keeper  sync.WaitGroup          // of the lease

	parent    string    // our span, for those who come after us; "" where it is not recorded
	became    string    // what became of the call
	failure   string    // what kind of, of the attempt itself and not of its tool
	refused   bool      // the claim was
	leaseLost sync.Once // counted

	telling sync.Mutex // held while an event is told, so that they go out in the order of their counters

	mu      sync.Mutex
	d       *bus.Delivery       // the newest of the job; guarded by mu
	notify  string              // the coordinator that published it; guarded by mu
	counter int                 // of events; guarded by mu
	last    uint64              // the newest record that is ours or that we claim behind; guarded by mu
	record  messages.CallRecord // that record; guarded by mu
	claimed bool                // we hold a claim; guarded by mu
}

// settlement is how a delivery is settled in the end. None: nothing is known to be stored, so the broker shall
// deliver the job again.
type settlement func(*bus.Delivery) error

func ack(d *bus.Delivery) error { return d.Ack() }

func term(reason string) settlement {
	return func(d *bus.Delivery) error { return d.Term(reason) }
}

// letGo gives the job up: it leaves the queue, and the coordinator publishes it again after a while. Failed counts the
// attempts so far that failed, or were lost with their worker, without a claim.
func (a *attempt) letGo(reason string, after time.Duration, failed int) settlement {
	return func(d *bus.Delivery) error {
		err := d.Term(reason)
		a.tell(messages.Notice{LetGo: &messages.LetGo{AfterMS: after.Milliseconds(), Attempt: failed}})
		return err
	}
}

// retryLater gives up a failed attempt of a call that does not claim. The job stays in the queue until the
// coordinator replaces it by one that knows of the failed attempts: were it gone before the coordinator
// hears of this, a poll could publish the call with an attempt too many. Without a coordinator the broker
// delivers it again, and the delivery counts as the next attempt.
func (a *attempt) retryLater(after time.Duration) settlement {
	return func(d *bus.Delivery) error {
		err := d.Nak(after + a.cfg.AckWait/3)
		a.tell(messages.Notice{LetGo: &messages.LetGo{AfterMS: after.Milliseconds(), Attempt: a.runs, Job: d.Seq}})
		return err
	}
}

// run brings the call to its end, or finds that it has one, or gives it up for another worker to take.
func (a *attempt) run(ctx context.Context) (settle settlement, err error) {
	defer func() { a.lapse(); a.keeper.Wait() }()
	delivered := a.delivery().Delivered
	if a.job.TakeOver > 0 || a.job.Dispatch > 0 || delivered > 1 || a.waited > time.Second { // in which its call may have ended
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
	var back *HandBack
	var ask *Ask
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
	case err != nil && ctx.Err() != nil: // the worker goes away; the tool has not run, or may run again
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

// work takes the call through its phases. The lease of a claim is kept alive from then on, until the result is stored,
// and when that fails the run is cancelled.
func (a *attempt) work() (messages.Result, error) {
	result, err := a.tools.Run(a.running, a.job, a.prior(), a.claim, a.event)
	switch {
	case err != nil:
		result, err = a.endOf(err)
	case a.unsure() && !a.holds(): // that this attempt was refused says nothing about the one before it
		result = a.lost()
	}
	if err != nil {
		return result, err
	}
	result.QueueMS = a.queueMS()
	result.Worker = a.cfg.Worker
	return result, nil
}

// queueMS is how long the job was queued, by the clocks of whoever published it and of this worker.
func (a *attempt) queueMS() float64 {
	return float64(max(a.began.Sub(a.job.QueuedAt), 0).Microseconds()) / 1000
}

// endOf is the result of a call whose run ended with an error that it would end with on every worker. Any other is passed
// on, and the call goes on from it.
func (a *attempt) endOf(err error) (messages.Result, error) {
	var ask *Ask
	tooLarge := errors.Is(err, bus.ErrTooLarge)
	switch {
	case errors.Is(err, errOtherInput), tooLarge && a.unsure():
		return a.lost(), nil
	case errors.As(err, &ask) && a.unsure(): // nobody can agree any more to what may have been done
		return a.lost(), nil
	case tooLarge:
		return a.failed(messages.StatusError, messages.CodeTooLarge,
			"The arguments, and what hooks said about them, are too large to be recorded. "+a.job.Tool+" was not run."), nil
	}
	return messages.Result{}, err
}

// lost is the result of a call of which an attempt before this one was started and lost, and that cannot be run again.
func (a *attempt) lost() messages.Result {
	return a.failed(messages.StatusOutcomeUnknown, messages.CodeOutcomeUnknown, "An attempt of "+a.job.Tool+" was lost or given up while it ran, and it could not be run again. "+
		"It may or may not have been applied. Do not repeat it blindly: check with a read, or ask a person.")
}

// prior is the record that the job takes over from; nil when this is the beginning.
func (a *attempt) prior() *messages.CallRecord {
	if record, last := a.mine(); last > 0 {
		return &record
	}
	return nil
}

// failed is a result that no run made.
func (a *attempt) failed(status messages.Status, code messages.Code, message string) messages.Result {
	return messages.Result{
		V: messages.Version, Index: a.job.Index, CallID: a.job.CallID, Tool: a.job.Tool, Kind: a.job.Kind, Status: status,
		Attempt: a.attempts(), Outcome: messages.Failed(code, message), Worker: a.cfg.Worker,
	}
}

// attempts is how often the call was claimed or, where it does not claim, run.
func (a *attempt) attempts() int {
	if !a.claims() {
		return a.runs
	}
	record, _ := a.mine()
	return record.Attempt
}

// claims reports whether the run is claimed: of a tool that may change the world, and of a call that has a journal of its
// own for another reason, such as a question to people.
func (a *attempt) claims() bool { return a.service.Claims || a.job.TakeOver > 0 }

// unsure reports whether an attempt before this one may have changed the world.
func (a *attempt) unsure() bool {
	before, _ := a.mine()
	return a.service.Claims && before.Unsure()
}

// poisoned ends a call that was delivered again and again and never came to an end: it takes its workers along.
func (a *attempt) poisoned(lost int) messages.Result {
	if a.unsure() {
		return a.failed(messages.StatusOutcomeUnknown, messages.CodeOutcomeUnknown, fmt.Sprintf(
			"%d workers in a row were lost over %s, the first of them while it ran. It may or may not have been applied. Do not repeat it blindly: check with a read, or ask a person.", lost, a.job.Tool))
	}
	return a.failed(messages.StatusError, messages.CodeWorkerLost, fmt.Sprintf(
		"%d workers in a row were lost over this call of %s, so it is not tried again. It may be what breaks them.", lost, a.job.Tool))
}

// settled looks into the journal for what is already known about the call, and settles the job where that says that
// there is nothing to do here: an end is passed on, a claim of another is left alone.
func (a *attempt) settled(ctx context.Context) (settlement, error) {
	if !a.claims() {
		result, found, err := a.journal.Result(ctx, a.key)
		if err != nil {
			return nil, err
		}
		if found {
			a.tell(messages.Notice{Result: &result})
			return ack, nil
		}
		if a.job.Dispatch == 0 && a.delivery().Delivered == 1 { // nobody has had it in hand, who could have parked it
			return nil, nil
		}
	}
	newest, _, err := a.journal.Newest(ctx, a.key)
	if err != nil {
		return nil, err
	}
	return a.settledBy(newest), nil
}

// settledBy settles the job by the newest record of its call, and is nil where that record is the one to go on from.
func (a *attempt) settledBy(newest journal.CallEntry) settlement {
	switch Decide(a.job.TakeOver, newest.Record, newest.Seq) {
	case Tell:
		a.tell(messages.Notice{Result: newest.Record.Result})
		return ack
	case Leave:
		if newest.Record.State == messages.Parked { // whoever parked it may not have told this coordinator
			a.tell(messages.Notice{Record: &newest.Record, Seq: newest.Seq})
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

// again reports whether a failed attempt should be followed by another, and after which pause. The pipeline calls
// an error retryable only where another run can do no harm.
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

// handBack gives a call back whose frozen input must run alone: the coordinator gives it its turn at the end of its
// stage. That is noted down first, so that every coordinator knows.
func (a *attempt) handBack(ctx context.Context, back *HandBack) (settlement, error) {
	note := messages.HandBack{V: messages.Version, ArgsHash: back.ArgsHash, Worker: a.cfg.Worker, Reason: back.Reason}
	if err := a.journal.WriteHandBack(ctx, a.key, note); err != nil {
		return nil, err
	}
	a.became = handedBack
	a.log.Info("handed back: its input must run alone", "reason", back.Reason)
	return func(d *bus.Delivery) error {
		err := d.Term("handed back")
		a.tell(messages.Notice{Hand: &note})
		return err
	}, nil
}

// lastWords is a context in which something can still be stored for a while after the worker has to end.
func (a *attempt) lastWords(ctx context.Context) (context.Context, context.CancelFunc) {
	words, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(a.cfg.LastWords, func() { cancel(context.Cause(ctx)) })
	})
	return words, func() { stop(); cancel(nil) }
}

// delivery is the newest delivery of the job.
func (a *attempt) delivery() *bus.Delivery {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.d
}
