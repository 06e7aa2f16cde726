package soak

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/toolfleet/toolfleet/internal/e2e/soak/ledger"
	"github.com/toolfleet/toolfleet/messages"
)

// These are the targets for recovery and drain. A busy machine may miss them, so a missed
// target is in the report and is no violation: see [Report.Slow].
const (
	recoveryTarget = 5 * time.Second
	drainTarget    = 30 * time.Second
	takeoverTarget = lease + 2*time.Second
	// tolerance is the factor by which a measured time may exceed its target before the run
	// fails.
	tolerance = 2
)

// lease and grace are settings of the fleet. The grace is added to the lease.
const (
	lease = 2 * time.Second
	grace = 500 * time.Millisecond
)

// Report is the outcome of a run.
type Report struct {
	Config     Config
	Began      time.Time
	Ended      time.Time
	Violations []Violation
	Faults     []Fault

	Batches, Calls, Lines, Aborts int
	Statuses                      map[messages.Status]int
	// CutShort counts the calls with OnCrashOnce that have a start and no end in the ledger,
	// because of a kill or an abort. Their outcome is unknown. A call that was hit just before
	// or after its run also has an unknown outcome, but the ledger does not show that.
	CutShort int
	// Retaken counts the idempotent calls that were started more than once, including retries.
	// Shut counts the starts with an old fence, which a tool that checks fences refuses.
	Retaken, Shut int
	// Unknowns counts the answers that wrongly say that an acknowledged batch is unknown.
	Unknowns int
	// Jobs counts the jobs that were in their queue when every batch had its reply.
	Jobs int
	// Answers counts the decisions of people by verdict. Taken counts the accepted decisions,
	// and Unanswered counts the questions that expired.
	Answers           map[messages.Verdict]int
	Taken, Unanswered int
	// Resubmitted counts the batches that were submitted again after their reply.
	Resubmitted int

	// Waits holds, for each batch, the time from its acknowledgement to its stored reply.
	// Fetches holds the time from the stored reply until the agent had it.
	Waits, Fetches []time.Duration
	Slowest        string // the batch that waited longest for its stored reply
	Drain          time.Duration
	Recovery       Measured // from the start of a new server to the first reply
	Takeovers      Measured // from the kill of a worker to the next start of its call
}

// Measured holds durations of one sort. All has every duration. Calm has those during which no
// other fault happened, and only these are compared with a target.
type Measured struct{ All, Calm []time.Duration }

func (m *Measured) add(took time.Duration, calm bool) {
	m.All = append(m.All, took)
	if calm {
		m.Calm = append(m.Calm, took)
	}
}

func (m Measured) String() string {
	return fmt.Sprintf("%s undisturbed; all: %s", spread(m.Calm), spread(m.All))
}

// judge checks the history and measures it.
func (r *Report) judge(h History) *Report {
	r.Violations, r.Faults, r.Lines = Check(h), h.Faults, len(h.Ledger)
	r.Statuses = map[messages.Status]int{}
	var slowest time.Duration
	for _, b := range h.Batches {
		r.Batches++
		r.Calls += len(b.Calls)
		if !b.Abort.IsZero() {
			r.Aborts++
		}
		if wait := b.Stored.Sub(b.Acked); !b.Replied.IsZero() {
			if wait > slowest {
				slowest, r.Slowest = wait, b.ID
			}
			r.Waits = append(r.Waits, max(wait, 0))
			r.Fetches = append(r.Fetches, max(b.Replied.Sub(b.Stored), 0))
		}
		for _, result := range b.Reply.Results {
			r.Statuses[result.Status]++
			if result.Err != nil && result.Err.Code == messages.CodeApprovalExpired {
				r.Unanswered++
			}
		}
	}
	r.Answers = map[messages.Verdict]int{}
	for _, decisions := range h.Decisions {
		for _, s := range decisions {
			r.Answers[s.Verdict]++
			if s.State != "" {
				r.Taken++
			}
		}
	}
	r.Recovery, r.Takeovers = recoveries(h), takeovers(h)
	r.readLedger(h)
	return r
}

func (r *Report) readLedger(h History) {
	c := checker{History: h, runs: map[callKey]*runs{}, keys: map[string]callKey{}}
	c.readLedger()
	for _, runs := range c.runs {
		for _, s := range runs.starts {
			if s.staleFence {
				r.Shut++
			}
		}
		switch {
		case len(runs.starts) == 0:
		case Tools[runs.starts[0].Tool].OnCrash == messages.OnCrashOnce && len(runs.ends) == 0:
			r.CutShort++
		case Tools[runs.starts[0].Tool].OnCrash == messages.OnCrashIdempotent && len(runs.starts) > 1:
			r.Retaken++
		}
	}
}

// recoveries measures the time from the start of each new server to the first reply.
func recoveries(h History) (took Measured) {
	for _, f := range h.Faults {
		if f.Member != server {
			continue
		}
		i, _ := slices.BinarySearchFunc(h.Replies, f.Until, time.Time.Compare)
		if i < len(h.Replies) {
			took.add(h.Replies[i].Sub(f.Until), !broken(h.Faults, f.At, h.Replies[i], f.Process))
		}
	}
	return took
}

// takeovers measures the time from the kill of a worker to the next start of an idempotent
// call that the worker had started.
func takeovers(h History) (took Measured) {
	killed := map[string]Fault{}
	for _, f := range h.Faults {
		if f.Act == Kill && f.Member != server {
			killed[f.Process] = f
		}
	}
	before := map[callKey]ledger.Entry{} // starts without an end
	for _, e := range h.Ledger {
		if Tools[e.Tool].OnCrash != messages.OnCrashIdempotent {
			continue
		}
		key := callKey{e.Batch, e.Index}
		if e.Point == ledger.End {
			delete(before, key) // a later start is a retry
			continue
		}
		if f, lost := killed[before[key].Worker]; lost && e.At > f.At.UnixNano() {
			at := time.Unix(0, e.At)
			took.add(at.Sub(f.At), !broken(h.Faults, f.At, at, f.Process))
		}
		before[key] = e
	}
	return took
}

// broken reports whether any process except but had a fault between two times.
func broken(faults []Fault, from, to time.Time, but string) bool {
	return slices.ContainsFunc(faults, func(f Fault) bool {
		return f.Process != but && f.At.Before(to) && f.Until.After(from)
	})
}

// Slow returns the targets that were missed by more than the tolerance.
func (r *Report) Slow() []string {
	var slow []string
	for _, m := range []struct {
		what   string
		took   time.Duration
		target time.Duration
	}{
		{"first reply after a server's restart", longest(r.Recovery.Calm), recoveryTarget},
		{"drained after the last fault", r.Drain, drainTarget},
		{"takeover from a killed worker", longest(r.Takeovers.Calm), takeoverTarget},
	} {
		if m.took > tolerance*m.target {
			slow = append(slow, fmt.Sprintf("%s: %s, and the target is %s", m.what, m.took.Round(time.Millisecond), m.target))
		}
	}
	return slow
}

func longest(took []time.Duration) time.Duration {
	if len(took) == 0 {
		return 0
	}
	return slices.Max(took)
}

// Passed reports whether no rule was broken and no target was missed by more than the
// tolerance.
func (r *Report) Passed() bool { return len(r.Violations) == 0 && len(r.Slow()) == 0 }

// shown is the largest number of violations that Print lists.
const shown = 25

// Print writes the report for people.
func (r *Report) Print(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%s\t"+format+"\n", append([]any{name}, args...)...)
	}
	row("seed", "%d", r.Config.Seed)
	row("faults", "%s", r.Config.Mix)
	row("took", "%s", r.Ended.Sub(r.Began).Round(time.Second))
	row("processes killed (kill -9)", "%d: %s", times(r.Faults, Kill), count(r.Faults, Kill))
	row("paused (SIGSTOP, SIGCONT)", "%s", count(r.Faults, Pause))
	row("ended in order (SIGTERM)", "%s", count(r.Faults, Term))
	row("gave up starting without server", "%s", count(r.Faults, Died))
	row("the machine stalled", "%d times", times(r.Faults, Stall))
	row("batches acknowledged", "%d, with %d calls; %d lines in the ledger", r.Batches, r.Calls, r.Lines)
	row("answers of people", "%d approve, %d edit, %d deny: %d taken; %d questions expired",
		r.Answers[messages.VerdictApprove], r.Answers[messages.VerdictEdit], r.Answers[messages.VerdictDeny], r.Taken, r.Unanswered)
	row("aborts asked for", "%d; batches submitted again when they had their reply: %d", r.Aborts, r.Resubmitted)
	row("results", "%s", statuses(r.Statuses))
	row("outcome_unknown", "%d; the ledger has %d once calls that were cut short between start and end",
		r.Statuses[messages.StatusOutcomeUnknown], r.CutShort)
	row("idempotent calls run again", "%d; starts that the fence shuts out: %d", r.Retaken, r.Shut)
	row("wrongly reported as unknown", "%d", r.Unknowns)
	row("jobs left in their queue", "%d", r.Jobs)
	row("from acknowledged to reply stored", "%s, that of %s", spread(r.Waits), r.Slowest)
	row("from there until the agent had it", "%s", spread(r.Fetches))
	row("first reply after server restart", "%s (target %s)", r.Recovery, recoveryTarget)
	row("takeover from a killed worker", "%s (target %s)", r.Takeovers, takeoverTarget)
	row("drained after the last fault", "%s (target %s)", r.Drain.Round(time.Millisecond), drainTarget)
	row("rules broken", "%s", broke(r.Violations))
	_ = w.Flush()
	for i, v := range r.Violations {
		if i == shown {
			fmt.Fprintf(out, "  ... and %d more\n", len(r.Violations)-shown)
			break
		}
		fmt.Fprintf(out, "  %s\n", v)
	}
	for _, s := range r.Slow() {
		fmt.Fprintf(out, "  too slow: %s\n", s)
	}
	if !r.Passed() {
		fmt.Fprintf(out, "FAILED: data, logs and ledger of the run are in %s\n", r.Config.Dir)
	}
}

// count lists how many servers, coordinators and workers an act hit.
func count(faults []Fault, act Act) string {
	sorts := map[string]int{}
	for _, f := range faults {
		if f.Act == act {
			sorts[strings.SplitN(f.Member, "-", 2)[0]]++
		}
	}
	return fmt.Sprintf("worker %d, coordinator %d, server %d", sorts["worker"], sorts["coordinator"], sorts[server])
}

func statuses(by map[messages.Status]int) string {
	var parts []string
	for status, n := range by {
		parts = append(parts, fmt.Sprintf("%s %d", status, n))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

func spread(took []time.Duration) string {
	if len(took) == 0 {
		return "none"
	}
	sorted := slices.Sorted(slices.Values(took))
	return fmt.Sprintf("median %s, longest %s of %d", sorted[len(sorted)/2].Round(time.Millisecond),
		sorted[len(sorted)-1].Round(time.Millisecond), len(sorted))
}

// broke lists how many times each rule was broken.
func broke(violations []Violation) string {
	if len(violations) == 0 {
		return "none"
	}
	by := map[Rule]int{}
	for _, v := range violations {
		by[v.Rule]++
	}
	var parts []string
	for rule, n := range by {
		parts = append(parts, fmt.Sprintf("%s %d", rule, n))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}
