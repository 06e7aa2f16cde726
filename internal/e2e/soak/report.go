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

// What the fleet is held to where it can be measured. A busy machine may miss these, so they are told and
// not held to be violations; see [Report.Slow].
const (
	recoveryTarget = 5 * time.Second
	drainTarget    = 30 * time.Second
	takeoverTarget = lease + 2*time.Second
	// tolerance is by which factor a target may be missed.
	tolerance = 2
)

// The lease of the fleet's settings, and the grace behind it.
const (
	lease = 2 * time.Second
	grace = 500 * time.Millisecond
)

// Report is what a run came to.
type Report struct {
	Config     Config
	Began      time.Time
	Ended      time.Time
	Violations []Violation
	Faults     []Fault

	Batches, Calls, Lines, Aborts int
	Statuses                      map[messages.Status]int
	// CutShort is how many once calls a kill or an abort cut short between their start and their end, by the ledger. All of them,
	// and those that were hit right before or after, have an unknown outcome.
	CutShort int
	// Retaken is how many idempotent calls were started more than once, also for a retry; Shut, the starts that the
	// fence shuts out.
	Retaken, Shut int
	// Unknowns is how often an acknowledged batch was said to be unknown, and was there after all.
	Unknowns int
	// Jobs is how many jobs stayed in their queue when every batch had its reply.
	Jobs int
	// Answers is what people have said to questions, by verdict, and how many of them were taken; Unanswered, the questions
	// that expired.
	Answers           map[messages.Verdict]int
	Taken, Unanswered int
	// Resubmitted is how many batches were submitted once more when they had their reply.
	Resubmitted int

	// Waits is from the acknowledgement of each batch to its stored reply, Fetches from there until the agent had it.
	Waits, Fetches []time.Duration
	Slowest        string // the batch whose reply was stored last, after its acknowledgement
	Drain          time.Duration
	Recovery       Measured // from the start of a new server to the first reply
	Takeovers      Measured // from the kill of a worker to the start of its call on another
}

// Measured is how long something took: every time, and the times at which nothing else was broken meanwhile. Only
// those are held against a target.
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
	for _, said := range h.Decisions {
		for _, s := range said {
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
			if s.shut {
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

// recoveries is how long it took from the start of each new server to the first reply.
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

// takeovers is how long it took from the kill of a worker to the next start of an idempotent call that it had
// started.
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
			delete(before, key) // what follows is a retry
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

// broken reports whether another process was broken at some time between two moments.
func broken(faults []Fault, from, to time.Time, but string) bool {
	return slices.ContainsFunc(faults, func(f Fault) bool {
		return f.Process != but && f.At.Before(to) && f.Until.After(from)
	})
}

// Slow says which targets were missed by far.
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

// Passed reports whether no rule was broken and no target was missed by far.
func (r *Report) Passed() bool { return len(r.Violations) == 0 && len(r.Slow()) == 0 }

// shown is how many violations are printed.
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
	row("the machine stood still", "%d times", times(r.Faults, Stall))
	row("batches acknowledged", "%d, with %d calls; %d lines in the ledger", r.Batches, r.Calls, r.Lines)
	row("answers of people", "%d approve, %d edit, %d deny: %d taken; %d questions expired",
		r.Answers[messages.VerdictApprove], r.Answers[messages.VerdictEdit], r.Answers[messages.VerdictDeny], r.Taken, r.Unanswered)
	row("aborts asked for", "%d; batches submitted again when they had their reply: %d", r.Aborts, r.Resubmitted)
	row("results", "%s", statuses(r.Statuses))
	row("outcome_unknown", "%d; the ledger has %d once calls that were cut short between start and end", r.Statuses[messages.StatusOutcomeUnknown], r.CutShort)
	row("idempotent calls run again", "%d; starts that the fence shuts out: %d", r.Retaken, r.Shut)
	row("said to be unknown, and found", "%d", r.Unknowns)
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

// count is how many members of each sort an act hit.
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

// broke is how often each rule was broken.
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
