// Package tooltest tests the contract of every runner of tools, in any language. The tool
// gets exactly its input and its call. Its output arrives as JSON. A failure becomes an
// error that the model can read. A run ends with its context. A probe tells whether a run
// was applied.
//
// The test of a runner passes a [Runner] to [Run]. For each behaviour it has a function
// that makes a tool with that behaviour. If a runner cannot do something, Cannot says why,
// and the subtest is skipped.
package tooltest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// Texts that the tools print or fail with.
const (
	Failure   = "no such customer"
	BadText   = "a\xffb"
	FloodSize = 6 << 20 // bytes of x before FloodTail
	FloodTail = "TAIL"
)

// Reports are the progress texts that the tool of Report sends, in order.
var Reports = []string{"one", "two"}

// Make makes a tool and the input for its runs, a JSON object. The folder dir is empty, and
// no other tool uses it.
type Make func(t *testing.T, dir string) (runner tool.Runner, input string)

// Runner is a runner under test. A Make may be nil only if Cannot has a reason for it.
type Runner struct {
	Echo       Make // the output is the input, byte for byte
	Fail       Make // fails with Failure; a retry does not help
	FailForNow Make // fails with Failure; a retry may succeed
	Wait       Make // reports progress once, and then runs until its context ends
	Report     Make // reports Reports, and succeeds
	Describe   Make // the output is the text that [Description] returns
	Apply      Make // creates a file in dir with the idempotency key as its name, unless it exists
	Flood      Make // prints FloodSize bytes of x, and FloodTail
	BadText    Make // prints the bytes of BadText
	Crash      Make // ends without a result, for example by a signal; a retry may do harm
	Checkable  Make // like Apply, and the runner is a [tool.Prober] that looks for the file

	// FailCode is the code of the errors of Fail and FailForNow. Default: tool_error.
	FailCode messages.Code

	// Limit is how many bytes the output of Flood may have. Cut is a part of the text that
	// stands where output is missing.
	Limit int
	Cut   string

	// Cannot holds the reason for each Make that is nil, by the name of the field.
	Cannot map[string]string
}

// Description returns what a tool sees of its call apart from the input, one item per line.
func Description(c tool.Call) string {
	return fmt.Sprintf("%s\n%s\n%s\n%d\n%d\n%s\n%d\n", c.Session, c.Batch, c.ID, c.Index, c.Attempt, c.IdempotencyKey, c.Fence)
}

// ApplyOnce does in Go what the tool of Apply does: it creates the file of a key in dir,
// unless it exists.
func ApplyOnce(dir, key string) error {
	f, err := os.OpenFile(filepath.Join(dir, key), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// Applied reports whether dir has the file of a key.
func Applied(dir, key string) bool {
	_, err := os.Stat(filepath.Join(dir, key))
	return err == nil
}

// Run runs the tests of the contract on a runner.
func Run(t *testing.T, r Runner) {
	for _, test := range []struct {
		name string
		make Make
		run  func(*testing.T, subject)
	}{
		{"Echo", r.Echo, echo},
		{"Fail", r.Fail, func(t *testing.T, s subject) { s.fails(t, r.FailCode, Failure, false) }},
		{"FailForNow", r.FailForNow, func(t *testing.T, s subject) { s.fails(t, r.FailCode, Failure, true) }},
		{"Wait", r.Wait, wait},
		{"Report", r.Report, report},
		{"Describe", r.Describe, describe},
		{"Apply", r.Apply, apply},
		{"Flood", r.Flood, func(t *testing.T, s subject) { flood(t, s, r.Limit, r.Cut) }},
		{"BadText", r.BadText, badText},
		{"Crash", r.Crash, func(t *testing.T, s subject) { s.fails(t, "", "", false) }},
		{"Checkable", r.Checkable, probe},
	} {
		t.Run(test.name, func(t *testing.T) {
			why := r.Cannot[test.name]
			if (why == "") == (test.make == nil) {
				t.Fatalf("make a tool for %s, or say in Cannot why the runner has none", test.name)
			}
			if why != "" {
				t.Skipf("%s: %s", test.name, why)
			}
			test.run(t, newSubject(t, test.make))
		})
	}
}

// RunProbe runs only the tests of probes, for a Make such as [Runner.Checkable].
func RunProbe(t *testing.T, checkable Make) { probe(t, newSubject(t, checkable)) }

// subject is a tool under test.
type subject struct {
	runner tool.Runner
	input  string
	dir    string
}

func newSubject(t *testing.T, create Make) subject {
	t.Helper()
	s := subject{dir: t.TempDir()}
	s.runner, s.input = create(t, s.dir)
	return s
}

// call returns an attempt of a call. Its ids have the most unusual characters that headers
// and environment variables can carry.
func (s subject) call(attempt int) tool.Call {
	return tool.Call{
		Tenant: "_", Session: "s 1", Batch: "b=2", ID: "c\u00e9$x", Index: 3, Tool: "t", Input: json.RawMessage(s.input),
		Attempt: attempt, IdempotencyKey: messages.Digest([]byte("key")), Fence: 1<<63 + uint64(attempt),
		Progress: func(messages.Progress) {},
	}
}

// run runs a call that must succeed.
func (s subject) run(t *testing.T, c tool.Call) tool.Output {
	t.Helper()
	out, err := s.try(t, t.Context(), c)
	if err != nil {
		t.Fatalf("run: %v", err)
	}
	if out.Value != nil && (out.Content != nil || rawjson.Check(out.Value) != nil) {
		t.Fatalf("the output is no JSON, or has content beside it: %.100q", out.Value)
	}
	return out
}

// try runs a call. It fails the test if a report comes after the run.
func (s subject) try(t *testing.T, ctx context.Context, c tool.Call) (tool.Output, error) {
	t.Helper()
	var ended atomic.Bool
	progress := c.Progress
	c.Progress = func(p messages.Progress) {
		if ended.Load() {
			t.Errorf("reported after the end of the run: %+v", p)
		}
		progress(p)
	}
	out, err := s.runner.Run(ctx, c)
	ended.Store(true)
	return out, err
}

// text returns an output that must be text.
func text(t *testing.T, out tool.Output) string {
	t.Helper()
	s, ok := (messages.Outcome{Output: out.Value}).OutputString()
	if !ok || !strings.HasPrefix(string(out.Value), `"`) {
		t.Fatalf("the output is no text: %.100q", out.Value)
	}
	return s
}

// failed returns the error that the model reads. If a tool sets no code, the code is
// tool_error.
func failed(t *testing.T, out tool.Output, err error) *messages.Error {
	t.Helper()
	if err == nil {
		t.Fatalf("the run succeeds with %.100q", out.Value)
	}
	if out.Value != nil || out.Content != nil {
		t.Errorf("a failure has the output %+v", out)
	}
	var failure *messages.Error
	if !errors.As(err, &failure) {
		failure = &messages.Error{Code: messages.CodeToolError, Message: err.Error()}
	}
	return failure
}

// fails runs a failing call twice, because one failure must not affect the next run. The text
// of the error must not be empty.
func (s subject) fails(t *testing.T, code messages.Code, words string, retryable bool) {
	t.Helper()
	code = cmp.Or(code, messages.CodeToolError)
	for attempt := 1; attempt <= 2; attempt++ {
		out, err := s.try(t, t.Context(), s.call(attempt))
		failure := failed(t, out, err)
		says := strings.TrimSpace(failure.Message) != "" && strings.Contains(failure.Message, words)
		if failure.Code != code || !says || failure.Retryable != retryable {
			t.Errorf("attempt %d: got %+v, want %s with %q, retryable %t", attempt, failure, code, words, retryable)
		}
	}
}

// echo checks that numbers are not rounded, nothing is escaped, and the input stays
// unchanged.
func echo(t *testing.T, s subject) {
	for _, input := range []string{s.input, `{}`, `{"n":9007199254740993,"f":1.10,"s":"<&>\u0000é","a":[null,true,{}]}`} {
		c := s.call(1)
		c.Input = json.RawMessage(input)
		if out := s.run(t, c); string(out.Value) != input || string(c.Input) != input {
			t.Errorf("input %s: got %s, and the input is then %s", input, out.Value, c.Input)
		}
	}
}

// wait checks that a run ends with its context and returns the cause. It also checks that
// no run begins if the context has already ended.
func wait(t *testing.T, s subject) {
	stop := errors.New("stop")
	// A runner may send no report. The time limit ends the test in that case.
	bounded, end := context.WithTimeout(t.Context(), time.Minute)
	defer end()
	ctx, cancel := context.WithCancelCause(bounded)
	c := s.call(1)
	c.Progress = func(messages.Progress) { cancel(stop) } // now the tool is running
	if out, err := s.try(t, ctx, c); !errors.Is(err, stop) || out.Value != nil {
		t.Errorf("ended while it ran: got %.100q, %v, want the cause", out.Value, err)
	}
	c.Progress = func(messages.Progress) { t.Error("began after the end") }
	if out, err := s.try(t, ctx, c); !errors.Is(err, stop) || out.Value != nil {
		t.Errorf("ended before it ran: got %.100q, %v, want the cause", out.Value, err)
	}
}

// report checks that the tool's reports come in order and that the last one comes. A runner
// sends few reports a second, so it may join or drop other reports.
func report(t *testing.T, s subject) {
	var mu sync.Mutex
	var got []string // guarded by mu
	c := s.call(1)
	c.Progress = func(p messages.Progress) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, strings.Split(p.Text, "\n")...)
	}
	s.run(t, c)
	if !slices.Equal(got, Reports) && !slices.Equal(got, Reports[len(Reports)-1:]) {
		t.Errorf("the lines of the reports are %q, want %q, or the last of them", got, Reports)
	}
}

// describe checks that each run sees its own call, even if several run at the same time.
func describe(t *testing.T, s subject) {
	const attempts = 4
	var got, want [attempts]string
	var wg sync.WaitGroup
	for i := range attempts {
		c := s.call(i + 1)
		want[i] = Description(c)
		wg.Go(func() {
			out, err := s.runner.Run(t.Context(), c)
			if got[i], _ = (messages.Outcome{Output: out.Value}).OutputString(); err != nil {
				t.Errorf("attempt %d: %v", i+1, err)
			}
		})
	}
	wg.Wait()
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// files lists the files that the tool has made.
func (s subject) files(t *testing.T) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// apply checks that all attempts of a call have the same key, so that the effect happens
// once.
func apply(t *testing.T, s subject) {
	first, other := s.call(1), s.call(1)
	other.IdempotencyKey = messages.Digest([]byte("other"))
	for _, c := range []tool.Call{first, s.call(2), other} {
		s.run(t, c)
	}
	want := []string{first.IdempotencyKey, other.IdempotencyKey}
	slices.Sort(want)
	if diff := gocmp.Diff(want, s.files(t)); diff != "" {
		t.Error(diff)
	}
}

// flood checks that a long output is cut, says so, and keeps its end.
func flood(t *testing.T, s subject, limit int, cut string) {
	out := s.run(t, s.call(1))
	if got := text(t, out); len(out.Value) > limit || !strings.HasSuffix(got, FloodTail) || !strings.Contains(got, cut) {
		t.Errorf("%d bytes, want at most %d, %q in them, and %q at the end: %.60q", len(out.Value), limit, cut, FloodTail, got)
	}
}

func badText(t *testing.T, s subject) {
	if got, want := text(t, s.run(t, s.call(1))), strings.ToValidUTF8(BadText, "\uFFFD"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// probe checks that a probe tells runs with one key from runs with another, changes
// nothing, and answers unknown if its time is up.
func probe(t *testing.T, s subject) {
	prober, ok := s.runner.(tool.Prober)
	if !ok {
		t.Fatalf("a %T is no tool.Prober", s.runner)
	}
	ask := func(what string, c tool.Call, want bool) {
		t.Helper()
		before := s.files(t)
		probed, err := prober.Probe(t.Context(), c)
		if err != nil || probed.Applied != want {
			t.Errorf("%s: got %+v, %v, want applied %t", what, probed, err, want)
		}
		if diff := gocmp.Diff(before, s.files(t)); diff != "" {
			t.Errorf("%s: the probe changed something\n%s", what, diff)
		}
	}
	c, other := s.call(1), s.call(1)
	other.IdempotencyKey = messages.Digest([]byte("other"))
	ask("before the run", c, false)
	s.run(t, c)
	ask("after the run", c, true)
	ask("of another call", other, false)

	stop := errors.New("stop")
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(stop)
	if probed, err := prober.Probe(ended, c); !errors.Is(err, stop) || probed.Applied {
		t.Errorf("with no time: got %+v, %v, want the cause", probed, err)
	}
}
