package batch_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/plan"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

var update = flag.Bool("update", false, "rewrite testdata; read the diff before you commit it")

// Each file of testdata is a scenario. "calls:" names the tools of the batch, "timeout:" bounds it,
// and "keep going" runs writes after an unknown outcome. A line "> event" is an event; the lines
// below it are the effects that the machine asks for. "+3s" before an event lets time pass. Words
// of an event:
//
//	seq=7       the sequence of its record
//	after=4s    the pause before the next attempt
//	failed=2    how many attempts failed; of a claim: how many were lost with their worker
//	drained     the release came without an error
//	deadline=9s the longest that the claimed run may take
//	active=9s   the active time in the plan record
//	expires=15m how long the question may be answered
//	room=1      how many calls of the batch may have a place in the window
//	passed      later batches wait to pass it
//	wake?       print when the machine needs the next tick
//
// "turn" is followed by what the batch may start: nothing, safe or everything. "passable" follows
// the event from which on later batches may pass it. "states:" lists the state of every call, when
// it has changed. "rest" follows each event that leaves the batch waiting for people or for an
// earlier batch alone.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := (&story{t: t, now: epoch}).run(string(want))
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("%s (-want +got; -update rewrites it):\n%s", file, diff)
			}
		})
	}
}

// serverTime is the server's clock. It is far from the machine's time, so a mix-up of the two
// clocks fails a scenario.
var serverTime = epoch.Add(-48 * time.Hour)

type story struct {
	t        *testing.T
	now      time.Time
	m        *batch.Machine
	timeout  time.Duration     // timeout of the batch
	keep     bool              // whether writes run after an unknown outcome
	records  []wire.PlanRecord // the plan records that the machine wanted to store
	states   []string          // states of the calls, as printed last
	passable bool              // whether "passable" was printed
	out      bytes.Buffer
}

func (s *story) run(text string) []byte {
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case s.m != nil && (strings.HasPrefix(line, "timeout:") || line == "keep going"):
			s.t.Fatalf("%q comes after the calls, so it has no effect", line)
		case strings.HasPrefix(line, "timeout:"):
			s.timeout, _ = time.ParseDuration(strings.TrimSpace(line[len("timeout:"):]))
		case line == "keep going":
			s.keep = true
		case strings.HasPrefix(line, "calls:"):
			s.begin(strings.Fields(line[len("calls:"):]))
		case strings.HasPrefix(line, ">"):
			fmt.Fprintln(&s.out, line)
			s.tell(strings.Fields(line[1:]))
			continue
		case line != "" && !strings.HasPrefix(line, "#"):
			continue // an effect, which -update writes anew
		}
		fmt.Fprintln(&s.out, line)
	}
	return s.out.Bytes()
}

func (s *story) begin(names []string) {
	catalog, err := schemas.NewCatalog(
		schemas.Tool{Name: "read", Kind: messages.KindRead}, schemas.Tool{Name: "write", Kind: messages.KindWrite},
		schemas.Tool{Name: "shy", Kind: messages.KindRead, ConcurrencySafe: new(bool)},
		schemas.Tool{Name: "maybe", Kind: messages.KindRead, SafeWhen: "true"},
		schemas.Tool{Name: "again", Kind: messages.KindWrite, OnCrash: messages.OnCrashIdempotent},
		schemas.Tool{Name: "beside", Kind: messages.KindWrite, ConcurrencySafe: new(true)},
		schemas.Tool{Name: "check", Kind: messages.KindWrite, OnCrash: messages.OnCrashCheckable},
	)
	if err != nil {
		s.t.Fatal(err)
	}
	var calls []messages.ToolCall
	for i, n := range names {
		calls = append(calls, messages.ToolCall{Index: i, ID: messages.CallID(fmt.Sprint(i)), Name: n, Input: []byte("{}")})
	}
	cfg := config("mine")
	cfg.Poison, cfg.KeepGoing, cfg.Unserved = 5, s.keep, 30*time.Second
	if s.timeout > 0 {
		cfg.Timeout = s.timeout
	}
	s.m = batch.New(plan.New(calls, catalog), cfg)
}

func (s *story) tell(words []string) {
	if strings.HasPrefix(words[0], "+") {
		d, err := time.ParseDuration(words[0][1:])
		if err != nil {
			s.t.Fatal(err)
		}
		s.now = s.now.Add(d)
		words = words[1:]
	}
	index, failed, room, seq := 0, 0, 8, uint64(0)
	var after, deadline, active time.Duration
	expires := 15 * time.Minute
	for _, w := range words[1:] {
		if name, value, named := strings.Cut(w, "="); !named {
			_, _ = fmt.Sscanf(w, "%d", &index)
		} else if name == "expires" {
			expires, _ = time.ParseDuration(value)
		} else if name == "after" {
			after, _ = time.ParseDuration(value)
		} else if name == "deadline" {
			deadline, _ = time.ParseDuration(value)
		} else if name == "active" {
			active, _ = time.ParseDuration(value)
		} else if name == "room" {
			_, _ = fmt.Sscan(value, &room)
		} else if name == "failed" {
			_, _ = fmt.Sscan(value, &failed)
		} else {
			_, _ = fmt.Sscan(value, &seq)
		}
	}
	why := wire.Stop{By: "Ada", Reason: "wrong account"}
	result := messages.Result{Index: index, Status: messages.StatusOK, Outcome: messages.Text("ok")}
	var ev batch.Event
	switch words[0] {
	case "begin":
		resumed := slices.Contains(words, "resumed")
		ev = batch.Begin{Resumed: resumed, Late: resumed, Again: slices.Contains(words, "again")}
	case "result":
		ev = batch.Ended{Index: index, Result: result}
	case "claimed", "renewed":
		onCrash := s.m.Plan().Calls[index].Tool.OnCrash
		ev = batch.Recorded{Index: index, Seq: seq, Record: wire.CallRecord{
			State: wire.CallState(words[0]), Attempt: 1 + failed, Lapsed: failed, LeaseMS: 10_000,
			DeadlineMS: deadline.Milliseconds(), OnCrash: onCrash,
		}}
	case "released", "granted":
		record := wire.CallRecord{State: wire.CallState(words[0]), Attempt: 1, RetryAfterMS: after.Milliseconds(), OnCrash: s.m.Plan().Calls[index].Tool.OnCrash}
		if words[0] == "released" && !slices.Contains(words, "drained") {
			record.Error = &messages.Error{Code: "rate_limited", Message: "busy", Retryable: true}
		}
		ev = batch.Recorded{Index: index, Seq: seq, Record: record}
	case "parked":
		ev = batch.Recorded{Index: index, Seq: seq, Expires: s.now.Add(expires),
			Record: wire.CallRecord{State: wire.Parked, Approval: &messages.Approval{Asked: serverTime, Expires: serverTime.Add(expires)}}}
	case "letgo":
		ev = batch.LetGo{Index: index, After: after, Attempt: failed, Lost: slices.Contains(words, "lost")}
	case "unserved", "served":
		ev = batch.Unserved{Index: index, Is: words[0] == "unserved"}
	case "gone":
		ev = batch.Unserved{Index: index, Is: true, Gone: "Not run: the arguments do not fit."}
	case "handed":
		ev = batch.HandedBack{Index: index}
	case "aborted":
		ev = batch.Aborted{Stop: why}
	case "steered":
		ev = batch.Steered{Stop: why, Now: slices.Contains(words, "now")}
	case "late":
		ev = batch.Late{}
	case "ended":
		ev = batch.Recorded{Index: index, Seq: seq, Record: wire.CallRecord{State: wire.Ended, Attempt: 1, Result: &result}}
	case "unknown":
		result.Status, result.Outcome = messages.StatusOutcomeUnknown, messages.Failed(messages.CodeOutcomeUnknown, "?")
		ev = batch.Recorded{Index: index, Seq: seq, Record: wire.CallRecord{State: wire.Ended, Attempt: 1, Result: &result}}
	case "planned":
		ev = batch.Planned{Record: s.records[len(s.records)-1], Seq: seq}
	case "stored":
		ev = batch.Planned{Record: wire.PlanRecord{Nonce: "theirs", ActiveMS: active.Milliseconds()}, Seq: seq}
	case "running":
		ev = batch.Running{Index: index}
	case "turn":
		may := map[string]batch.May{"nothing": batch.Nothing, "safe": batch.SafeCalls, "everything": batch.Everything}[words[1]]
		ev = batch.Turn{May: may, Room: room, Passed: slices.Contains(words, "passed")}
	case "looked":
		ev = batch.Looked{}
	case "tick":
		ev = batch.Tick{}
	default:
		s.t.Fatalf("no event %q", words[0])
	}
	for _, e := range s.m.Step(s.now, ev) {
		s.write(e)
	}
	if s.m.Passable() && !s.passable {
		s.passable = true
		fmt.Fprintln(&s.out, "passable")
	}
	if states := s.m.States(); !slices.Equal(states, s.states) {
		s.states = states
		fmt.Fprintf(&s.out, "states: %s\n", strings.Join(states, " "))
	}
	wake, ok := s.m.Wake()
	if ok && !wake.After(s.now) {
		s.t.Errorf("after %q at %v the machine wants to be woken at %v: it spins", words, s.now.Sub(epoch), wake.Sub(epoch))
	}
	if ok && words[len(words)-1] == "wake?" {
		fmt.Fprintf(&s.out, "wake in %s\n", wake.Sub(s.now))
	}
	if until, rests := s.m.Rest(); rests {
		fmt.Fprintf(&s.out, "rest for %s\n", until.Sub(s.now))
	}
}

func (s *story) write(e batch.Effect) {
	switch e := e.(type) {
	case batch.Announce:
		fmt.Fprintln(&s.out, "announce")
	case batch.StorePlan:
		s.records = append(s.records, e.Record)
		fmt.Fprintf(&s.out, "store plan of stage %d behind %d:", e.Record.Stage, e.Expect)
		for _, c := range e.Record.Calls {
			fmt.Fprintf(&s.out, " %s/%d", c.Tool, c.Stage)
		}
		for _, r := range e.Record.Results {
			fmt.Fprintf(&s.out, " result %d", r.Index)
		}
		fmt.Fprintln(&s.out)
	case batch.Dispatch:
		lane := "read lane"
		if e.Exclusive {
			lane = "write lane"
		}
		fmt.Fprintf(&s.out, "dispatch %d to the %s", e.Index, lane)
		if e.Again > 0 {
			fmt.Fprintf(&s.out, ", again %d", e.Again)
		}
		if e.TakeOver > 0 {
			fmt.Fprintf(&s.out, ", taking over %d", e.TakeOver)
		}
		if e.Attempt > 0 {
			fmt.Fprintf(&s.out, ", after %d attempts", e.Attempt)
		}
		if e.Deadline > 0 {
			fmt.Fprintf(&s.out, ", within %s", e.Deadline)
		}
		fmt.Fprintln(&s.out)
	case batch.Stop:
		fmt.Fprintf(&s.out, "stop %d: %s\n", e.Index, e.Why.Why())
	case batch.Look:
		fmt.Fprintln(&s.out, "look")
	case batch.End:
		fmt.Fprintf(&s.out, "end %d as %s (%s) behind %d: %s\n", e.Index, e.Result.Status, e.Result.Err.Code, e.Expect, e.Result.Err.Message)
	case batch.Tell:
		fmt.Fprintf(&s.out, "tell %d %s\n", e.Result.Index, e.Result.Status)
	case batch.Finish:
		fmt.Fprint(&s.out, "finish")
		for _, r := range e.Results {
			fmt.Fprintf(&s.out, " %s", r.Status)
		}
		fmt.Fprintln(&s.out)
	}
}
