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

	mu      sync.Mutex
	counter int                 // of events; guarded by mu
	last    uint64              // our newest record, 0 before the claim; guarded by mu
	record  messages.CallRecord // that record; guarded by mu
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
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := a.giveSigns(ctx)
	queued := time.Since(a.job.QueuedAt)
	a.event(messages.Event{Type: messages.EventRunning})
	result, err := a.tools.Run(ctx, a.job, a.claim(ctx, cancel), func(p messages.Progress) {
		a.event(messages.Event{Type: messages.EventProgress, Progress: &p})
	})
	stop()
	switch {
	case errors.Is(err, errNotMine):
		if over, err := a.settled(ctx); over || err != nil {
			return err
		}
		a.settle(a.log, a.d.Term("claimed by another worker"))
		return nil
	case err != nil:
		return err
	case context.Cause(ctx) != nil:
		return context.Cause(ctx) // what a killed tool said is no result
	}
	result.QueueMS = float64(max(queued, 0).Microseconds()) / 1000
	result.Worker = a.cfg.Worker
	return a.finish(ctx, result)
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

// claim is the function that marks the start in the journal and keeps the mark alive from then on. When
// it can no longer be kept alive the run is cancelled before others may hold it to have lapsed.
func (a *attempt) claim(ctx context.Context, cancel context.CancelCauseFunc) Claim {
	return func(_ context.Context, want Want) (Held, error) {
		if !a.claims {
			return Held{Attempt: a.d.Delivered}, nil
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		record := messages.CallRecord{
			State: messages.Claimed, Nonce: a.nonce, Attempt: a.record.Attempt + 1, Worker: a.cfg.Worker,
			ArgsHash: want.ArgsHash, ToolDigest: a.job.ToolDigest, OnCrash: want.OnCrash,
			LeaseMS: a.cfg.Lease.Milliseconds(), DeadlineMS: want.Deadline.Milliseconds(),
		}
		asked := time.Now()
		seq, err := a.journal.Write(ctx, a.key, record, a.last)
		var lost *journal.Lost
		if errors.As(err, &lost) {
			return Held{}, errNotMine
		}
		if err != nil {
			return Held{}, fmt.Errorf("claim: %w", err)
		}
		a.last, a.record = seq, record
		a.record.Fence = seq
		go a.keep(ctx, cancel, asked)
		return Held{Attempt: record.Attempt, Fence: seq}, nil
	}
}

// keep renews the lease at every third of it until ctx ends. The lease counts from when we asked, which
// is before the server stored: so we never think it longer than anybody else does.
func (a *attempt) keep(ctx context.Context, cancel context.CancelCauseFunc, since time.Time) {
	ticks := time.NewTicker(a.cfg.Lease / 3)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		asked := time.Now()
		err := a.renew(ctx)
		var lost *journal.Lost
		switch {
		case err == nil:
			since = asked
		case errors.As(err, &lost), time.Since(since) > a.cfg.Lease*2/3-a.cfg.Grace:
			cancel(fmt.Errorf("%w: %w", ErrLeaseLost, err))
			return
		}
	}
}

func (a *attempt) renew(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if ctx.Err() != nil || a.record.State == messages.Ended {
		return nil
	}
	ctx, done := context.WithTimeout(ctx, a.cfg.Lease/3)
	defer done()
	record := a.record
	record.State, record.Nonce = messages.Renewed, rand.Text()
	seq, err := a.journal.Write(ctx, a.key, record, a.last)
	if err == nil {
		a.last, a.record = seq, record
	}
	return err
}

// finish stores the result, tells the coordinator, and settles. What is stored counts, whoever stored it.
func (a *attempt) finish(ctx context.Context, result messages.Result) error {
	if err := a.journal.Offload(ctx, &result); err != nil {
		return err
	}
	stored, err := a.store(ctx, result)
	var lost *journal.Lost
	if errors.As(err, &lost) {
		a.log.Warn("result not stored: the call has ended or was taken over meanwhile", "state", lost.Newest.Record.State)
		a.settle(a.log, a.d.Ack())
		return nil
	}
	if err != nil {
		return err
	}
	a.tell(messages.Notice{Result: &stored})
	a.settle(a.log, a.d.Ack())
	a.cfg.Observe(stored)
	return nil
}

func (a *attempt) store(ctx context.Context, result messages.Result) (messages.Result, error) {
	if !a.claims {
		return a.journal.WriteResult(ctx, a.key, result)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	record := a.record
	record.State, record.Nonce, record.Result = messages.Ended, rand.Text(), &result
	record.ToolDigest = a.job.ToolDigest
	_, err := a.journal.Write(ctx, a.key, record, a.last)
	if err == nil {
		a.record = record
	}
	return result, err
}

// giveSigns tells broker and coordinator that the call is alive, for as long as it is, and returns how to stop.
func (a *attempt) giveSigns(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var signs sync.WaitGroup
	var sign func()
	var timer *time.Timer
	sign = func() {
		defer signs.Done()
		if ctx.Err() != nil {
			return
		}
		if err := a.d.InProgress(); err != nil {
			a.log.Debug("sign of life not sent", "err", err)
		}
		a.tell(messages.Notice{Running: true, Worker: a.cfg.Worker})
		signs.Add(1)
		timer.Reset(a.cfg.AckWait / 3)
	}
	signs.Add(1)
	timer = time.AfterFunc(min(firstSign, a.cfg.AckWait/3), sign)
	return func() {
		cancel()
		if timer.Stop() {
			signs.Done()
		}
		signs.Wait()
	}
}

func (a *attempt) tell(n messages.Notice) {
	n.V, n.Batch, n.Index = messages.Version, a.key.BatchKey.String(), a.key.Index
	if err := a.conn.Publish(a.conn.Names().Notify(a.job.Notify), nil, messages.MustMarshal(n)); err != nil {
		a.log.Debug("coordinator not told; its poll will find out", "err", err)
	}
}

func (a *attempt) event(e messages.Event) {
	a.mu.Lock()
	a.counter++
	e.Counter = a.counter
	e.Attempt = max(a.record.Attempt, a.d.Delivered)
	a.mu.Unlock()
	e.V, e.Session, e.Batch, e.Index = messages.Version, a.job.Session, a.job.Batch, a.job.Index
	e.CallID, e.Tool, e.Kind, e.Worker, e.Time = a.job.CallID, a.job.Tool, a.job.Kind, a.cfg.Worker, time.Now()
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
