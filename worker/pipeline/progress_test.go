package pipeline

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/builtin"
	"github.com/toolfleet/toolfleet/worker/tool/exectool"
)

// watched runs a tool. It returns the progress reports that watchers receive, with their
// times.
func watched(t *testing.T, runner tool.Runner, input string) (reports []string) {
	t.Helper()
	promise := schemas.Tool{Name: "tool", Kind: messages.KindRead, InputSchema: json.RawMessage(`{"type":"object"}`), TimeoutMS: 60_000}
	reg := &tool.Registry{}
	if err := reg.Add(promise, runner); err != nil {
		t.Fatal(err)
	}
	pipe, err := New(Config{Registry: reg})
	if err != nil {
		t.Fatal(err)
	}
	own, _ := reg.Lookup("tool")
	began := time.Now()
	r, err := pipe.Run(t.Context(), wire.Job{Tool: "tool", ToolDigest: own.Digest, Kind: messages.KindRead, Input: json.RawMessage(input)}, nil, nil, func(e messages.Event) {
		raw, err := rawjson.Marshal(e.Progress)
		if err != nil {
			t.Error(err)
		}
		reports = append(reports, fmt.Sprintf("%s %s", time.Since(began), raw))
	})
	if err != nil || r.Status != messages.StatusOK {
		t.Fatalf("%+v, %v", r, err)
	}
	return reports
}

// reporter returns a tool that reports the given values, with the given pauses between them.
func reporter(all ...any) tool.Runner {
	return tool.Func(func(_ context.Context, c tool.Call) (tool.Output, error) {
		for _, what := range all {
			switch what := what.(type) {
			case time.Duration:
				time.Sleep(what)
			case float64:
				c.Progress(messages.Progress{Fraction: what})
			case string:
				c.Progress(messages.Progress{Text: what})
			case messages.Progress:
				c.Progress(what)
			}
		}
		return tool.Text("done"), nil
	})
}

// Watchers see fractions from 0 to 1 that never decrease, whatever a tool in Go reports.
func TestReportsNeverGoBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := watched(t, reporter(
			math.NaN(), math.Inf(-1), -0.5, 1.5, math.Inf(1), time.Second,
			0.5, messages.Progress{Fraction: 0.3, Text: "again"}, "words", messages.Progress{Fraction: math.NaN(), Text: "\xff"}, 1.0,
		), `{}`)
		want := []string{
			`0s {}`, `0s {}`, `0s {}`, `0s {}`, `0s {}`,
			`1s {"fraction":0.5}`, `1s {"fraction":0.5,"text":"again"}`, `1s {"fraction":0.5,"text":"words"}`, `1s {"fraction":0.5,"text":"\ufffd"}`, `1s {"fraction":1}`,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	})
}

// The text of a report is cut at a bound, and never within a character.
func TestReportsAreShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for text, want := range map[string]string{
			strings.Repeat("x", 8<<20):             strings.Repeat("x", maxReport),
			"x" + strings.Repeat("é", maxReport/2): "x" + strings.Repeat("é", maxReport/2-1),
			strings.Repeat("é", maxReport/2):       strings.Repeat("é", maxReport/2),
		} {
			if diff := cmp.Diff([]string{`0s {"text":"` + want + `"}`}, watched(t, reporter(text), `{}`)); diff != "" {
				t.Errorf("a text of %d bytes: %.200s", len(text), diff)
			}
		}
	})
}

// A tool reports very often: watchers get at most ten reports a second, and always the last
// one. A few reports in a row pass at once.
func TestReportsAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all []any
		for i := range 100 { // every 3.1 ms, so that no report comes at the very moment when another is sent
			all = append(all, float64(i+1)/200, fmt.Sprint("step ", i), 3100*time.Microsecond)
		}
		all = append(all, 0.2, 600*time.Millisecond)
		for i := range 20 {
			all = append(all, fmt.Sprint("late ", i))
		}
		got := watched(t, reporter(all...), `{}`)
		want := []string{
			`0s {"fraction":0.005}`, `0s {"fraction":0.005,"text":"step 0"}`,
			`3.1ms {"fraction":0.01}`, `3.1ms {"fraction":0.01,"text":"step 1"}`,
			`6.2ms {"fraction":0.015}`, `6.2ms {"fraction":0.015,"text":"step 2"}`,
			`9.3ms {"fraction":0.02}`, `9.3ms {"fraction":0.02,"text":"step 3"}`,
			`12.4ms {"fraction":0.025}`, `12.4ms {"fraction":0.025,"text":"step 4"}`,
			`100ms {"fraction":0.165,"text":"step 32"}`,
			`200ms {"fraction":0.325,"text":"step 64"}`,
			`300ms {"fraction":0.485,"text":"step 96"}`,
			`400ms {"fraction":0.5,"text":"step 99"}`,
			// After half a second without reports, five pass at once. The last report is
			// always sent.
			`910ms {"fraction":0.5,"text":"late 0"}`,
			`910ms {"fraction":0.5,"text":"late 1"}`,
			`910ms {"fraction":0.5,"text":"late 2"}`,
			`910ms {"fraction":0.5,"text":"late 3"}`,
			`910ms {"fraction":0.5,"text":"late 4"}`,
			`910ms {"fraction":0.5,"text":"late 19"}`,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	})
}

// The tool sleep reports each quarter of its time, even of a short one. A program reports a
// lower fraction than before: watchers see the highest one again.
func TestReportsOfRunners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sleep, err := builtin.New("sleep", nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{`10ms {"fraction":0.25,"text":"slept 10ms of 40ms"}`, `20ms {"fraction":0.5,"text":"slept 20ms of 40ms"}`, `30ms {"fraction":0.75,"text":"slept 30ms of 40ms"}`}
		if diff := cmp.Diff(want, watched(t, sleep, `{"ms":40}`)); diff != "" {
			t.Errorf("sleep (-want +got)\n%s", diff)
		}
	})
	program, err := exectool.New(exectool.Config{Command: []string{"sh", "-c", `
		echo '{"fraction":0.5,"text":"half"}' >&3; echo '{"fraction":0.3,"text":"back"}' >&3; echo words >&3; echo '{"fraction":0.7}' >&3`}})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{`{"fraction":0.5,"text":"half"}`, `{"fraction":0.5,"text":"back"}`, `{"fraction":0.5,"text":"words"}`, `{"fraction":0.7}`}
	got := watched(t, program, `{}`)
	for i := range got {
		_, got[i], _ = strings.Cut(got[i], " ") // without the times, since a program runs in real time
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("a program (-want +got)\n%s", diff)
	}
}
