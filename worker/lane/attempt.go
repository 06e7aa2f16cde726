package lane

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/messages"
)

// firstSign is how long a call runs before its coordinator is told that it does. Most calls end sooner
// and need no such word.
const firstSign = 100 * time.Millisecond

// attempt is one delivery on its way through this worker.
type attempt struct {
	*Consumer
	log    *slog.Logger
	d      *bus.Delivery
	job    messages.Job
	key    messages.CallKey
	claims bool
	nonce  string
	keeper sync.WaitGroup // of the lease

	mu      sync.Mutex
	counter int                 // of events; guarded by mu
	last    uint64              // the newest record that is ours or that we take over; guarded by mu
	record  messages.CallRecord // that record; guarded by mu
	claimed bool                // we hold a claim; guarded by mu
}

// run brings the call to its end, or finds that it has one. An error means that neither was possible:
// the delivery stays unsettled.
func (a *attempt) run(ctx context.Context) error {
	if a.job.Dispatch > 0 || a.d.Delivered > 1 {
		over, err := a.settled(ctx)
		if over || err != nil {
			return err
		}
	}
	stop := a.giveSigns(ctx)
	defer stop()
	result, err := a.work(ctx)
	switch {
	case errors.Is(err, errNotMine):
		if over, err := a.settled(ctx); over || err != nil {
			return err
		}
		a.settle(a.log, a.d.Term("claimed by another worker"))
		return nil
	case err != nil:
		return err
	}
	return a.finish(ctx, result)
}

// work takes the call through its phases. While the tool runs its lease is kept alive, and when that fails
// the run is cancelled.
func (a *attempt) work(ctx context.Context) (messages.Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer a.keeper.Wait()
	defer cancel(nil)
	queued := time.Since(a.job.QueuedAt)
	a.event(messages.Event{Type: messages.EventRunning})
	result, err := a.tools.Run(ctx, a.job, a.claim(ctx, cancel), func(p messages.Progress) {
		a.event(messages.Event{Type: messages.EventProgress, Progress: &p})
	})
	if err != nil && !errors.Is(err, errOtherInput) {
		return result, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.last != 0 && !a.claimed {
		// An attempt before this one was started and lost; that this one was refused says nothing about it.
		result = unknownAttempt(a.job)
	}
	result.QueueMS = float64(max(queued, 0).Microseconds()) / 1000
	result.Worker = a.cfg.Worker
	return result, nil
}

func unknownAttempt(job messages.Job) messages.Result {
	return messages.Result{
		V: messages.Version, Index: job.Index, CallID: job.CallID, Tool: job.Tool, Kind: job.Kind, Status: messages.StatusOutcomeUnknown,
		Outcome: messages.Failed(messages.CodeOutcomeUnknown, "The worker that ran "+job.Tool+" was lost while it ran, and it could not be run again. "+
			"It may or may not have been applied. Do not repeat it blindly: check with a read, or ask a person."),
	}
}

// settled looks into the journal for what is already known about the call: an end is passed on, a live
// claim of another is left alone. It reports whether the delivery was settled with that.
func (a *attempt) settled(ctx context.Context) (bool, error) {
	if !a.claims {
		result, found, err := a.journal.Result(ctx, a.key)
		if err != nil || !found {
			return false, err
		}
		a.tell(messages.Notice{Result: &result})
		a.settle(a.log, a.d.Ack())
		return true, nil
	}
	newest, found, err := a.journal.Newest(ctx, a.key)
	if err != nil || !found {
		return false, err
	}
	switch {
	case newest.Record.State == messages.Ended:
		a.tell(messages.Notice{Result: newest.Record.Result})
		a.settle(a.log, a.d.Ack())
		return true, nil
	case newest.Seq == a.job.TakeOver:
		a.mu.Lock()
		a.last, a.record = newest.Seq, newest.Record
		a.mu.Unlock()
		return false, nil
	}
	// Whether that claim still holds is for the coordinator to see; it publishes the job again when it does not.
	a.settle(a.log, a.d.Term("claimed by "+newest.Record.Worker))
	return true, nil
}

// errOtherInput ends a takeover whose frozen input is not that of the attempt that was lost: under another
// idempotency key the effect could be had twice.
var errOtherInput = errors.New("the input is not that of the attempt before")

// claim is the function that marks the start in the journal and keeps the mark alive from then on. When
// it can no longer be kept alive the run is cancelled before others may hold it to have lapsed.
func (a *attempt) claim(ctx context.Context, cancel context.CancelCauseFunc) Claim {
	return func(_ context.Context, want Want) (Held, error) {
		if !a.claims {
			return Held{Attempt: a.d.Delivered}, nil
		}
		a.mu.Lock()
		before, last := a.record, a.last
		a.mu.Unlock()
		if last != 0 && before.ArgsHash != want.ArgsHash {
			return Held{}, errOtherInput
		}
		record := messages.CallRecord{
			State: messages.Claimed, Nonce: a.nonce, Attempt: before.Attempt + 1, Worker: a.cfg.Worker,
			ArgsHash: want.ArgsHash, ToolDigest: a.job.ToolDigest, OnCrash: want.OnCrash, Input: want.Input,
			LeaseMS: a.cfg.Lease.Milliseconds(), DeadlineMS: want.Deadline.Milliseconds(),
		}
		asked, seq, err := a.insist(ctx, record, last)
		var lost *journal.Lost
		if errors.As(err, &lost) {
			return Held{}, errNotMine
		}
		if err != nil {
			return Held{}, fmt.Errorf("claim: %w", err)
		}
		record.Fence = seq
		a.mu.Lock()
		a.last, a.record, a.claimed = seq, record, true
		a.mu.Unlock()
		if time.Since(asked) > a.cfg.Lease/3 { // it took long to be stored; nothing is started on half a lease
			asked = time.Now()
			if err := a.renew(ctx); err != nil {
				return Held{}, fmt.Errorf("%w: %w", ErrLeaseLost, err)
			}
		}
		a.keeper.Go(func() { a.keep(ctx, cancel, asked) })
		return Held{Attempt: record.Attempt, Fence: seq}, nil
	}
}

// insist writes a record until it is known to be stored or lost to another. The nonce makes each try the
// same one. It gives the time right before the try that counts.
func (a *attempt) insist(ctx context.Context, record messages.CallRecord, last uint64) (asked time.Time, seq uint64, err error) {
	first := time.Now()
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		seq, err = a.journal.Write(ctx, a.key, record, last)
		var lost *journal.Lost
		if err == nil || errors.As(err, &lost) || bus.IsTerminal(err) {
			return first, seq, err
		}
		a.log.Warn("record not stored; trying again", "state", record.State, "err", err, "wait", wait)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return first, 0, errors.Join(err, context.Cause(ctx))
		}
	}
}

// keep renews the lease at every third of it until ctx ends, and more often while that fails. The lease counts
// from when we asked, which is before the server stored: so we never think it longer than anybody else does.
func (a *attempt) keep(ctx context.Context, cancel context.CancelCauseFunc, since time.Time) {
	wait := a.cfg.Lease / 3
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		asked := time.Now()
		// The tool must be dead when the lease ends, and killing it takes a moment too.
		end := since.Add(a.cfg.Lease - a.cfg.Grace)
		renewing, done := context.WithDeadline(ctx, end)
		err := a.renew(renewing)
		done()
		var lost *journal.Lost
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			since, wait = asked, a.cfg.Lease/3
		case errors.As(err, &lost), !time.Now().Before(end):
			cancel(fmt.Errorf("%w: %w", ErrLeaseLost, err))
			return
		default:
			wait = min(250*time.Millisecond, a.cfg.Lease/10)
		}
	}
}

func (a *attempt) renew(ctx context.Context) error {
	record, last := a.mine()
	record.State, record.Nonce = messages.Renewed, rand.Text()
	seq, err := a.journal.Write(ctx, a.key, record, last)
	var lost *journal.Lost
	if errors.As(err, &lost) && a.isOurs(lost.Newest) { // a renewal before this one was stored after all
		seq, err = lost.Newest.Seq, nil
	}
	if err == nil {
		a.mu.Lock()
		a.last, a.record = seq, record
		a.mu.Unlock()
	}
	return err
}

// mine is our newest record, with its sequence.
func (a *attempt) mine() (messages.CallRecord, uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.record, a.last
}

// isOurs reports whether a record continues our claim.
func (a *attempt) isOurs(e journal.CallEntry) bool {
	record, _ := a.mine()
	return e.Record.State == messages.Renewed && e.Record.Fence == record.Fence && record.Fence != 0
}

// finish stores the result, tells the coordinator, and settles. What is stored counts, whoever stored it. A
// result that exists is stored whatever happens meanwhile, until the worker itself has to end.
func (a *attempt) finish(ctx context.Context, result messages.Result) error {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		stored, err := a.store(ctx, &result)
		var lost *journal.Lost
		switch {
		case err == nil:
			a.tell(messages.Notice{Result: &stored})
			a.settle(a.log, a.d.Ack())
			a.cfg.Observe(stored)
			return nil
		case errors.As(err, &lost):
			a.log.Warn("result not stored: the call has ended or was taken over meanwhile", "state", lost.Newest.Record.State)
			a.settle(a.log, a.d.Ack())
			return nil
		case errors.Is(err, bus.ErrTooLarge):
			result.Outcome = messages.Failed(messages.CodeTooLarge, "The result is too large to be kept.")
			result.Ref = nil
			if result.Status == messages.StatusOK {
				result.Err.Message += " The call itself was done."
			}
		default:
			a.log.Warn("result not stored; trying again", "err", err, "wait", wait)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		}
	}
}

func (a *attempt) store(ctx context.Context, result *messages.Result) (messages.Result, error) {
	if result.Ref == nil {
		if err := a.journal.Offload(ctx, result); err != nil {
			return *result, err
		}
	}
	if !a.claims {
		return a.journal.WriteResult(ctx, a.key, *result)
	}
	for {
		record, last := a.mine()
		record.State, record.Result, record.Worker = messages.Ended, result, a.cfg.Worker
		record.ToolDigest = a.job.ToolDigest
		record.Nonce = a.nonce + "-end"
		_, err := a.journal.Write(ctx, a.key, record, last)
		var lost *journal.Lost
		if errors.As(err, &lost) && a.isOurs(lost.Newest) {
			a.mu.Lock()
			a.last = lost.Newest.Seq
			a.mu.Unlock()
			continue
		}
		return *result, err
	}
}

// giveSigns tells broker and coordinator that the call is alive, for as long as it is, and returns how to stop.
func (a *attempt) giveSigns(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var signs sync.WaitGroup
	signs.Go(func() {
		timer := time.NewTimer(min(firstSign, a.cfg.AckWait/3))
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
			if err := a.d.InProgress(); err != nil {
				a.log.Debug("sign of life not sent", "err", err)
			}
			a.tell(messages.Notice{Running: true, Worker: a.cfg.Worker})
			timer.Reset(a.cfg.AckWait / 3)
		}
	})
	return func() { cancel(); signs.Wait() }
}

func (a *attempt) tell(n messages.Notice) {
	if !messages.IsToken(a.job.Notify) {
		return
	}
	n.V, n.Batch, n.Index = messages.Version, a.key.BatchKey.String(), a.key.Index
	if err := a.conn.Publish(a.conn.Names().Notify(a.job.Notify), nil, messages.MustMarshal(n)); err != nil {
		a.log.Debug("coordinator not told; its poll will find out", "err", err)
	}
}

func (a *attempt) event(e messages.Event) {
	a.mu.Lock()
	a.counter++
	e.Counter = a.counter
	e.Attempt = a.d.Delivered
	if a.claims {
		e.Attempt = a.record.Attempt
		if !a.claimed {
			e.Attempt++ // the one that is about to be claimed
		}
	}
	a.mu.Unlock()
	e.V, e.Session, e.Batch, e.Index = messages.Version, a.job.Session, a.job.Batch, a.job.Index
	e.CallID, e.Tool, e.Kind, e.Worker, e.Time = a.job.CallID, a.job.Tool, a.job.Kind, a.cfg.Worker, time.Now()
	if p := e.Progress; p != nil && !(p.Fraction >= 0 && p.Fraction <= 1) { // NaN too
		p.Fraction = 0
	}
	header := bus.Header{messages.EventHeader: {string(e.Type)}}
	if err := a.conn.Publish(a.conn.Names().Of(messages.VerbEvent, a.key.BatchKey), header, messages.MustMarshal(e)); err != nil {
		a.log.Debug("event lost", "type", e.Type, "err", err)
	}
}

// afterPool takes the pool out of a job's subject: <prefix>.read.<pool>.<t>.<s>.<b>.<i>.
func afterPool(subject string) string {
	parts := strings.Split(subject, ".")
	if len(parts) < 4 {
		return subject
	}
	n := len(parts) - 5 // where the pool stands
	if n < 1 {
		return subject
	}
	return strings.Join(append(parts[:n:n], parts[n+1:]...), ".")
}
