package lane

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/messages"
)

// errOtherInput ends a takeover whose frozen input is not that of the attempt that was lost: under another
// idempotency key the effect could be had twice. A guard, for the input is taken from that attempt's record.
var errOtherInput = errors.New("the input is not that of the attempt before")

// room is how many bytes of a message are left for all but what weighs in a record: its other fields, of which renewals
// and releases have more than the claim before them, and the header.
const room = 1 << 10

// claim marks in the journal that the call is now started, and keeps the mark alive from then on. When it can no
// longer be kept alive the run is cancelled before others may hold it to have lapsed.
//
// Whoever watches hears of it then, and not when the call was picked up: what is told of the run of a call that claims is durable
// by then, and a call that is refused or has to wait for a person was never running.
func (a *attempt) claim(ctx context.Context, want Want) (Held, error) {
	held, err := a.begin(ctx, want)
	if err == nil {
		a.event(messages.Event{Type: messages.EventRunning})
	}
	return held, err
}

func (a *attempt) begin(ctx context.Context, want Want) (Held, error) {
	if !a.claims() {
		return Held{Attempt: a.runs}, nil
	}
	before, last := a.mine()
	unsure := a.unsure()
	if unsure && before.ArgsHash != want.ArgsHash {
		return Held{}, errOtherInput
	}
	record := messages.CallRecord{
		V: messages.Version, State: messages.Claimed, Nonce: a.nonce, Attempt: before.Attempt + 1, Worker: a.cfg.Worker,
		ArgsHash: want.ArgsHash, ToolDigest: a.job.ToolDigest, OnCrash: want.OnCrash, Input: want.Input, Hooks: want.Hooks, Approval: before.Approval,
		LeaseMS: a.cfg.Lease.Milliseconds(), DeadlineMS: want.Deadline.Milliseconds(), Lapsed: before.Lapsed, Span: a.parent,
		Permission: want.Permission, Started: a.began,
	}
	if lapsed(before) {
		record.Lapsed++
	}
	if q := before.Approval; q != nil && q.ArgsHash == want.ArgsHash { // the question holds the input
		record.Input = nil
	}
	heavy := messages.CallRecord{Input: record.Input, Hooks: record.Hooks, Approval: record.Approval, Permission: record.Permission} // in every record from now on
	if size := len(messages.MustMarshal(heavy)); size > a.conn.MaxPayload()-room {
		return Held{}, fmt.Errorf("claim with %d bytes of arguments, which could not be renewed: %w", size, bus.ErrTooLarge)
	}
	asked := time.Now()
	seq, err := a.insist(a.running, record, last)
	var other *journal.Lost
	if errors.As(err, &other) {
		a.claimRefused()
		return Held{}, errNotMine
	}
	if err != nil {
		return Held{}, fmt.Errorf("claim: %w", err)
	}
	record.Fence = seq
	a.mu.Lock()
	a.last, a.record, a.claimed = seq, record, true
	a.mu.Unlock()
	a.count(Claimed)
	if time.Since(asked) > a.cfg.Lease/3 { // it took long to be stored; nothing is started on half a lease
		asked = time.Now()
		if err := a.renew(a.running); err != nil {
			a.loseLease(fmt.Errorf("%w: %v", ErrLeaseLost, err))
			return Held{}, context.Cause(a.running)
		}
	}
	a.keeper.Go(func() { a.keep(asked) })
	return Held{Attempt: record.Attempt, Fence: seq, Probe: unsure && want.OnCrash == messages.Checkable}, nil
}

// insist writes a record until it is known to be stored or lost to another. The nonce makes each try the same one.
func (a *attempt) insist(ctx context.Context, record messages.CallRecord, last uint64) (seq uint64, err error) {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		seq, err = a.journal.Write(ctx, a.key, record, last)
		var lost *journal.Lost
		if err == nil || errors.As(err, &lost) || bus.IsTerminal(err) {
			return seq, err
		}
		a.log.Warn("record not stored; trying again", "state", record.State, "err", err, "wait", wait)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return 0, errors.Join(err, context.Cause(ctx))
		}
	}
}

// keep renews the lease at every third of it until the result is stored, and more often while that fails. The lease
// counts from when we asked, which is before the server stored: so we never think it longer than anybody else does.
func (a *attempt) keep(since time.Time) {
	ctx := a.kept
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
		// Not when renew gives up: on a connection that is silent it asks for a while what became of its write.
		late := time.AfterFunc(time.Until(end), func() { a.loseLease(fmt.Errorf("%w in time", ErrLeaseLost)) })
		// A try that is not answered is not waited for until the end: the next one may be.
		renewing, done := context.WithTimeout(ctx, a.cfg.Lease/5)
		err := a.renew(renewing)
		done()
		late.Stop()
		var lost *journal.Lost
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			since, wait = asked, a.cfg.Lease/3-time.Since(asked)
			a.alive()
		case errors.As(err, &lost), !time.Now().Before(end):
			a.loseLease(fmt.Errorf("%w: %v", ErrLeaseLost, err))
			return
		default:
			wait = min(250*time.Millisecond, a.cfg.Lease/10)
		}
	}
}

// renew writes a new record behind our newest. A renewal before this one that was stored after all, when nobody here
// knows, does not count: the lease is as old as that one.
func (a *attempt) renew(ctx context.Context) error {
	for {
		record, last := a.mine()
		record.State, record.Nonce = messages.Renewed, rand.Text()
		seq, err := a.journal.Write(ctx, a.key, record, last)
		var lost *journal.Lost
		late := errors.As(err, &lost) && a.isOurs(lost.Newest)
		if late {
			seq, record = lost.Newest.Seq, lost.Newest.Record
		}
		if err == nil || late {
			a.mu.Lock()
			a.last, a.record = seq, record
			a.mu.Unlock()
		}
		if !late {
			return err
		}
	}
}

// close writes the record that ends our claim, or the call, behind our newest one. A *journal.Lost error names the
// record of whoever was faster.
func (a *attempt) close(ctx context.Context, record messages.CallRecord) (seq uint64, err error) {
	for {
		_, last := a.mine()
		seq, err = a.journal.Write(ctx, a.key, record, last)
		var lost *journal.Lost
		if !errors.As(err, &lost) || !a.isOurs(lost.Newest) {
			return seq, err
		}
		a.mu.Lock()
		a.last = lost.Newest.Seq
		a.mu.Unlock()
	}
}

// mine is our newest record, or the one that we claim behind, with its sequence.
func (a *attempt) mine() (messages.CallRecord, uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.record, a.last
}

// holds reports whether we hold a claim.
func (a *attempt) holds() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.claimed
}

// isOurs reports whether a record continues our claim.
func (a *attempt) isOurs(e journal.CallEntry) bool {
	record, _ := a.mine()
	return e.Record.State == messages.Renewed && e.Record.Fence == record.Fence && record.Fence != 0
}
