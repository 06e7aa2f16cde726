package soak

import (
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/e2e/soak/ledger"
	"github.com/toolfleet/toolfleet/messages"
)

// Rule names a rule that a history can break.
type Rule string

// Each comment says how a history breaks the rule.
const (
	Lost        Rule = "lost"        // an acknowledged batch has no reply, or was refused
	Differs     Rule = "differs"     // a batch has two replies that are not the same
	Malformed   Rule = "malformed"   // a reply does not have one result for each call, in call order
	Twice       Rule = "twice"       // an effect happened more than once
	Untrue      Rule = "untrue"      // a result does not agree with the ledger
	Order       Rule = "order"       // a call started before a call that it waits for had ended
	Unknown     Rule = "unknown"     // an outcome is unknown, and no fault explains it
	Stranded    Rule = "stranded"    // a call expired although a worker could have taken it
	Stray       Rule = "stray"       // an effect without a call, or of a worker that had lost its claim
	Unasked     Rule = "unasked"     // a call started with arguments that nobody had approved
	Audit       Rule = "audit"       // the audit log has no line about a call, or several
	Leftover    Rule = "leftover"    // a batch stayed in the log, or there is a dead letter
	EndedItself Rule = "ended-alone" // a process ended without a signal from the run
)

// Violation is one break of a rule.
type Violation struct {
	Rule  Rule
	Where string // session, batch and call
	What  string
}

func (v Violation) String() string { return fmt.Sprintf("%-11s %s: %s", v.Rule, v.Where, v.What) }

// Check returns the violations of the rules in a history.
func Check(h History) []Violation {
	c := checker{History: h, runs: map[callKey]*runs{}, keys: map[string]callKey{}}
	c.readLedger()
	for _, b := range h.Batches {
		if c.answered(b) {
			for i, call := range b.Calls {
				c.truth(b, i, call)
				if n := h.Lines[b.ID][i]; n != 1 {
					c.report(Audit, callKey{b.ID, i}.String(), "%d lines in the audit log, want 1", n)
				}
			}
		}
	}
	c.order()
	for _, what := range h.Left {
		c.report(Leftover, "log", "%s", what)
	}
	for _, f := range h.Faults {
		if f.Act == Died && !c.hadNoServer(f) {
			c.report(EndedItself, f.Process, "%s", f.Status)
		}
	}
	return c.violations
}

type callKey struct {
	batch string
	index int
}

func (k callKey) String() string { return fmt.Sprintf("%s#%d", k.batch, k.index) }

// line is an entry of the ledger with its line number.
type line struct {
	ledger.Entry
	place int
	// staleFence means that the session already had a newer fence at this start. A tool that
	// checks the fence refuses such a start.
	staleFence bool
}

// runs holds the lines of the ledger about one call.
type runs struct{ starts, ends []line }

type checker struct {
	History
	runs       map[callKey]*runs
	keys       map[string]callKey // call of each idempotency key
	violations []Violation
}

func (c *checker) report(rule Rule, where string, format string, args ...any) {
	c.violations = append(c.violations, Violation{rule, where, fmt.Sprintf(format, args...)})
}

// readLedger groups the lines of the ledger by call, and marks starts with an older fence.
// Fences grow within a session, so such a start comes from a worker that has lost its claim.
func (c *checker) readLedger() {
	asked := map[string]*Batch{}
	for _, b := range c.Batches {
		asked[b.ID] = b
	}
	newest := map[string]uint64{}
	used := map[uint64]callKey{}
	for place, e := range c.Ledger {
		key := callKey{e.Batch, e.Index}
		if b := asked[e.Batch]; b == nil || b.Session != e.Session || e.Index >= len(b.Calls) || b.Calls[e.Index].Tool != e.Tool {
			c.report(Stray, key.String(), "%s of %s by %s: no batch asked for it", e.Point, e.Tool, e.Worker)
			continue
		}
		r := c.runs[key]
		if r == nil {
			r = &runs{}
			c.runs[key] = r
		}
		l := line{Entry: e, place: place}
		if e.Point == ledger.End {
			r.ends = append(r.ends, l)
			continue
		}
		if e.Fence > 0 {
			if _, again := used[e.Fence]; again {
				c.report(Twice, key.String(), "the claim %d was used for two starts", e.Fence)
			}
			used[e.Fence] = key
			l.staleFence = e.Fence < newest[e.Session]
			newest[e.Session] = max(newest[e.Session], e.Fence)
		}
		r.starts = append(r.starts, l)
	}
}

// answered checks the reply of a batch as a whole. It reports whether the results can be
// checked too.
func (c *checker) answered(b *Batch) bool {
	switch {
	case b.Acked.IsZero():
		return false
	case b.Refused != "":
		c.report(Lost, b.ID, "refused: %s", b.Refused)
		return false
	case b.Replied.IsZero():
		c.report(Lost, b.ID, "no reply")
		return false
	}
	if len(b.Copies) > 1 {
		c.report(Differs, b.ID, "%d different replies", len(b.Copies))
	}
	r := b.Reply
	if aborted := r.Status == messages.ReplyAborted && !b.Abort.IsZero(); r.Status != messages.ReplyCompleted && !aborted || r.Digest != b.Digest || string(r.Batch) != b.ID || string(r.Session) != b.Session {
		c.report(Malformed, b.ID, "the reply is %s of %s %s, digest %s", r.Status, r.Session, r.Batch, r.Digest)
	}
	if len(r.Results) != len(b.Calls) {
		c.report(Malformed, b.ID, "%d results for %d calls", len(r.Results), len(b.Calls))
		return false
	}
	for i, result := range r.Results {
		if call := b.Calls[i]; result.Index != i || string(result.CallID) != call.ID || result.Tool != call.Tool {
			c.report(Malformed, b.ID, "result %d is of call %d %s %s", i, result.Index, result.CallID, result.Tool)
			return false
		}
	}
	return true
}

// truth checks the result of a call against the ledger.
func (c *checker) truth(b *Batch, i int, call Call) {
	tool, result := Tools[call.Tool], b.Reply.Results[i]
	key := callKey{b.ID, i}
	if result.Status == messages.StatusAborted && b.Abort.IsZero() {
		c.report(Untrue, key.String(), "aborted without a request to abort")
	}
	if result.Status == messages.StatusTimeout {
		c.report(Untrue, key.String(), "%s, and no call of the run had so little time", outcome(result))
	}
	if why := stranded(b, i, tool); why != "" {
		c.report(Stranded, key.String(), "%s after %s: %s", outcome(result), b.Replied.Sub(b.Acked).Round(time.Second), why)
	}
	if result.Status == messages.StatusOK && call.Input.Fail && tool.Ledger {
		c.report(Untrue, key.String(), "ok, and its input asked for a failure")
	}
	if !tool.Ledger {
		return
	}
	r := c.runs[key]
	if r == nil {
		r = &runs{}
	}
	if tool.Kind == messages.KindRead {
		if result.Status == messages.StatusOK && len(r.ends) == 0 {
			c.report(Untrue, key.String(), "ok, and no run of it ended")
		}
		return
	}
	c.effects(key, tool, r)
	if tool.Asks {
		c.checkApproval(b, i, r)
	}
	switch ran := len(r.starts) > 0; {
	case result.Status == messages.StatusOK || result.Err != nil && result.Err.Code == messages.CodeToolError:
		if !endedIn(r, result.Attempt) {
			c.report(Untrue, key.String(), "%s in attempt %d, and the ledger has no such end", result.Status, result.Attempt)
		}
	case result.Status == messages.StatusOutcomeUnknown:
		c.explained(b, i)
		if !ran && c.unharmed(b, i) {
			c.report(Unknown, key.String(), "claimed by %v and never started, and nothing kept them from it", b.Claims[i])
		}
	case result.Status == messages.StatusAborted && tool.OnCrash == messages.OnCrashIdempotent: // the abort may have stopped it
	case ran:
		c.report(Untrue, key.String(), "%s, and it was started by %s", outcome(result), r.starts[0].Worker)
	}
}

// poison is the number of workers in a row that a call may lose before the fleet ends it.
const poison = 5

// stranded returns why a call that the fleet ended without a result should have run, or "" if
// its end is right. No fault lasts as long as a call may wait in the queue, so no call may
// expire because there is no worker.
func stranded(b *Batch, i int, tool Tool) string {
	switch r := b.Reply.Results[i]; {
	case r.Status == messages.StatusExpired && tool.Asks && r.Err != nil && r.Err.Code == messages.CodeApprovalExpired:
	case r.Status == messages.StatusExpired:
		return "there were workers"
	case r.Err != nil && r.Err.Code == messages.CodeWorkerLost:
		return "there were other workers"
	case r.Status == messages.StatusOutcomeUnknown && tool.OnCrash == messages.OnCrashIdempotent && len(b.Claims[i]) < poison && b.Abort.IsZero():
		return fmt.Sprintf("it may be run again, and it was claimed %d times", len(b.Claims[i]))
	}
	return ""
}

func outcome(r messages.Result) string {
	if r.Err == nil {
		return string(r.Status)
	}
	return fmt.Sprintf("%s (%s)", r.Status, r.Err.Code)
}

// effects checks how often a write was applied.
func (c *checker) effects(key callKey, tool Tool, r *runs) {
	if tool.OnCrash == messages.OnCrashOnce && len(r.starts) > 1 {
		c.report(Twice, key.String(), "started %d times, by %s and %s", len(r.starts), r.starts[0].Worker, r.starts[1].Worker)
	}
	attempts := map[int]bool{}
	for _, s := range r.starts {
		switch owner, taken := c.keys[s.Key]; {
		case s.Key == "" || s.Fence == 0:
			c.report(Untrue, key.String(), "a write was started with the key %q and the fence %d", s.Key, s.Fence)
		case s.Key != r.starts[0].Key:
			c.report(Twice, key.String(), "it was started with the keys %q and %q", r.starts[0].Key, s.Key)
		case taken && owner != key:
			c.report(Untrue, key.String(), "it has the idempotency key of %s", owner)
		case attempts[s.Attempt]:
			c.report(Twice, key.String(), "attempt %d was started twice", s.Attempt)
		}
		attempts[s.Attempt] = true
		c.keys[s.Key] = key
		if s.staleFence && !c.wasStopped(s.Worker, s.At) {
			c.report(Stray, key.String(), "%s started it after it had lost its claim, and nothing had stopped it", s.Worker)
		}
	}
}

func endedIn(r *runs, attempt int) bool {
	for _, e := range r.ends {
		if e.Attempt == attempt {
			return true
		}
	}
	return false
}

// wasStopped reports whether a process was paused before the given time. Only a worker that
// was paused may start a call after it has lost its claim.
func (c *checker) wasStopped(process string, at int64) bool {
	for _, f := range c.Faults {
		if f.Act == Pause && f.Process == process && f.At.UnixNano() <= at {
			return true
		}
	}
	return false
}

// hadNoServer reports whether a process ended because it found no server when it started. Such
// an end is no violation, because the supervisor starts the process again. A panic has another
// exit status.
func (c *checker) hadNoServer(died Fault) bool {
	if died.Status != "exit status 1" || died.At.Sub(died.Born) > startsWithin {
		return false
	}
	for _, f := range c.Faults {
		if f.Member == server && f.At.Before(died.At) && f.Until.Add(time.Second).After(died.Born) {
			return true
		}
	}
	return false
}

// startsWithin is how long a process looks for its server before it ends.
const startsWithin = 15 * time.Second

// unharmed reports whether the workers that claimed a call could start it. None of them was
// stopped, killed or paused, the batch was not aborted, and the server was never away for half
// a lease.
func (c *checker) unharmed(b *Batch, i int) bool {
	for _, f := range c.Faults {
		for _, claim := range b.Claims[i] {
			if f.Process == claim.Worker {
				return false
			}
		}
		if f.Act == Stall || f.Member == server && f.Until.Sub(f.At) >= c.Lease/2 {
			return false
		}
	}
	return b.Abort.IsZero()
}

// explained checks that an unknown outcome has a cause. One cause is that the worker was
// killed or paused while it held the claim. Another is that the claim could not be renewed,
// because the server was away or the machine stalled. The last is that the call was aborted
// while it ran.
func (c *checker) explained(b *Batch, i int) {
	for _, claim := range b.Claims[i] {
		if !b.Abort.IsZero() { // the abort stopped it while it ran
			return
		}
		for _, f := range c.Faults {
			if f.At.After(b.Replied) || f.Act == Term && f.Member != server {
				continue
			}
			if f.Process == claim.Worker && !f.Until.Before(claim.At) ||
				(f.Member == server || f.Act == Stall) && !f.Until.Add(c.Lease).Before(claim.At) {
				return
			}
		}
	}
	c.report(Unknown, callKey{b.ID, i}.String(), "claimed by %v, and nothing had happened to them", b.Claims[i])
}
