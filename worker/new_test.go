package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/fleet"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

type transfer struct {
	Amount json.Number `json:"amount"`
	Count  int         `json:"count,omitempty"`
	More   any         `json:"more,omitempty"`
}

type receipt struct {
	ID string `json:"id"`
}

func book(context.Context, transfer) (receipt, error) { return receipt{"r-1"}, nil }

// Every field of a definition can be set by an option.
func TestOptionsReachEveryPromise(t *testing.T) {
	safe := false
	got, err := New("book", "Books.", Write, book, Timeout(1500*time.Microsecond), Checkable(func(context.Context, transfer) (*receipt, bool, error) { return nil, false, nil }),
		Retry(3, time.Second, time.Minute), Pool("gpu"), Require("input.count > 0", "Count is 1 or more."), Check(func(context.Context, transfer) error { return nil }),
		Risk("high"), MaxOutput(100), Truncate("tail"), ConcurrencySafe(safe), ShellCommand("more"), InputSchema(`{"type":"object"}`)).Definition()
	if err != nil {
		t.Fatal(err)
	}
	want := schemas.Tool{
		Name: "book", Description: "Books.", Kind: messages.KindWrite, ConcurrencySafe: &safe, ShellCommand: "more", InputSchema: json.RawMessage(`{"type":"object"}`),
		TimeoutMS: 2, OnCrash: messages.OnCrashCheckable, Retry: schemas.Retry{Attempts: 3, BackoffMS: 1000, MaxBackoffMS: 60_000}, Pool: "gpu", MaxOutput: 100, Truncate: "tail",
		Semantic: []schemas.SemanticRule{{Require: "input.count > 0", Message: "Count is 1 or more."}}, Risk: "high", Digest: got.Digest,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	other, err := New("book", "", Write, book, Idempotent(), SafeWhen("input.count > 0")).Definition()
	if err != nil || other.OnCrash != messages.OnCrashIdempotent || other.SafeWhen != "input.count > 0" {
		t.Errorf("got %+v, %v", other, err)
	}
	least, err := New("book", "", Read, book).Definition()
	if err != nil || least.Timeout() != 5*time.Second || least.Pool != schemas.DefaultPool || least.OnCrash != "" {
		t.Errorf("got %+v, %v", least, err)
	}
}

func TestNewRefuses(t *testing.T) {
	type other struct{ A int }
	for name, tt := range map[string]struct {
		tool Tool
		want string
	}{
		"no kind":           {New("x", "", "", book), "tool x: its kind is missing: want worker.Read, worker.Write or worker.Compute"},
		"another kind":      {New("x", "", "maybe", book), `tool x: kind "maybe": want read, write or compute`},
		"no name":           {New("", "", Read, book), `tool name "": want 1 to 64 of [a-zA-Z0-9_-]`},
		"no function":       {New[transfer, string]("x", "", Read, nil), "tool x: it has no function to run"},
		"a read on a crash": {New("x", "", Read, book, Idempotent()), "tool x: Idempotent and Checkable are for writes; a read may always be run again"},
		"both":              {New("x", "", Write, book, Idempotent(), Checkable(func(context.Context, transfer) (*receipt, bool, error) { return nil, false, nil })), "tool x: Idempotent and Checkable: want one of them"},
		"no probe":          {New("x", "", Write, book, Checkable[transfer, receipt](nil)), "tool x: on_crash is checkable, but its runner has no probe to ask; make it with tool.NewProber, or say idempotent or once"},
		"another's probe": {New("x", "", Write, book, Checkable(func(context.Context, other) (*receipt, bool, error) { return nil, false, nil })),
			"tool x: Checkable has a func(context.Context, worker.other) (*worker.receipt, bool, error); want a func(context.Context, worker.transfer) (*worker.receipt, bool, error)"},
		"another's check": {New("x", "", Write, book, Check(func(context.Context, other) error { return nil })),
			"tool x: Check has a func(context.Context, worker.other) error; want a func(context.Context, worker.transfer) error"},
		"a negative timeout":     {New("x", "", Read, book, Timeout(-time.Microsecond)), "tool x: timeout is negative"},
		"a retry of a write":     {New("x", "", Write, book, Retry(2, 0, 0)), "tool x: retry: a write with on_crash: once is never run again, because a run that failed may have had its effect; only reads, computes and writes with on_crash: idempotent or checkable may be"},
		"a broken schema":        {New("x", "", Read, book, InputSchema(`{"type":"object","required":1}`)), "tool x: input_schema: schema: /required: expected array, but got number"},
		"a schema of another":    {New("x", "", Read, book, InputSchema(`{"type":"string"}`)), "tool x: input_schema: its root must have type: object, because the arguments of a call are one"},
		"a rule that is none":    {New("x", "", Read, book, Require("input.", "no")), "tool x: semantic[0]: "},
		"a tier that is none":    {New("x", "", Read, book, Risk("huge")), `tool x: risk "huge": want low, medium, high or critical`},
		"a part that is none":    {New("x", "", Read, book, Truncate("best")), `tool x: truncate "best": want head, middle or tail`},
		"a custom one, unnamed":  {Custom(schemas.Tool{}, tool.Func(nil)), `tool name "": want 1 to 64 of [a-zA-Z0-9_-]`},
		"a custom one, unrunned": {Custom(schemas.Tool{Name: "x"}, nil), "tool x: has no runner"},
		"nothing at all":         {Tool{}, "a tool is made by worker.New or worker.Custom"},
	} {
		_, err := tt.tool.Definition()
		if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %s", name, err, tt.want)
		}
	}
}

// runs calls the function of a tool once, as a worker does.
func runs[In, Out any](t *testing.T, input string, run func(context.Context, In) (Out, error)) (tool.Output, error) {
	t.Helper()
	made := New("x", "", Read, run)
	if made.err != nil {
		t.Fatal(made.err)
	}
	return made.runner.Run(t.Context(), tool.Call{Input: json.RawMessage(input), IdempotencyKey: "key", Fence: 7, Attempt: 2})
}

func TestOutputs(t *testing.T) {
	for name, tt := range map[string]struct {
		run  func() (tool.Output, error)
		want string
	}{
		"text": {func() (tool.Output, error) {
			return runs(t, `{}`, func(context.Context, struct{}) (string, error) { return "a \"b\"", nil })
		}, `"a \"b\""`},
		"struct": {func() (tool.Output, error) {
			return runs(t, `{}`, func(context.Context, struct{}) (receipt, error) { return receipt{"1"}, nil })
		}, `{"id":"1"}`},
		"list": {func() (tool.Output, error) {
			return runs(t, `{}`, func(context.Context, struct{}) ([]int, error) { return []int{1}, nil })
		}, `[1]`},
		"own": {func() (tool.Output, error) {
			return runs(t, `{}`, func(context.Context, struct{}) (tool.Output, error) {
				return tool.Output{Value: []byte(`{"a":1}`)}, nil
			})
		}, `{"a":1}`},
		"digits": {func() (tool.Output, error) {
			return runs(t, `{"amount":1234567890123456789.10,"more":[0.10]}`, func(_ context.Context, in transfer) (transfer, error) { return in, nil })
		}, `{"amount":1234567890123456789.10,"more":[0.10]}`},
		"pointer": {func() (tool.Output, error) {
			return runs(t, `{"id":"7"}`, func(_ context.Context, in *receipt) (string, error) { return in.ID, nil })
		}, `"7"`},
		"call": {func() (tool.Output, error) {
			return runs(t, `{}`, func(ctx context.Context, _ struct{}) (string, error) {
				Progress(ctx, 0.5, "half")
				c := CallOf(ctx)
				return fmt.Sprint(c.IdempotencyKey, c.Fence, c.Attempt), nil
			})
		}, `"key7 2"`},
	} {
		got, err := tt.run()
		if err != nil || string(got.Value) != tt.want {
			t.Errorf("%s: got %s, %v, want %s", name, got.Value, err, tt.want)
		}
	}
	if _, err := runs(t, `{}`, func(context.Context, struct{}) (func(), error) { return nil, nil }); err == nil {
		t.Error("a function is written as JSON")
	}
}

func TestErrors(t *testing.T) {
	missing := Errorf("not_found", "there is no %s", "x")
	for _, tt := range []struct {
		err  error
		want messages.Error
	}{
		{missing, messages.Error{Code: "not_found", Message: "there is no x"}},
		{TryAgain(errors.New("busy")), messages.Error{Code: messages.CodeToolError, Message: "busy", Retryable: true}},
		{TryAgain(missing), messages.Error{Code: "not_found", Message: "there is no x", Retryable: true}},
		{TryAgain(fmt.Errorf("look: %w", missing)), messages.Error{Code: "not_found", Message: "there is no x", Retryable: true}},
		{Errorf("lost", "read: %w", io.EOF), messages.Error{Code: "lost", Message: "read: EOF"}},
		{Errorf("lost", "read: %w", TryAgain(io.EOF)), messages.Error{Code: "lost", Message: "read: tool_error: EOF", Retryable: true}},
	} {
		var got *messages.Error
		if !errors.As(tt.err, &got) || *got != tt.want {
			t.Errorf("got %+v, want %+v", tt.err, tt.want)
		}
	}
	if own := (*messages.Error)(nil); !errors.As(missing, &own) || own.Retryable || TryAgain(nil) != nil {
		t.Error("TryAgain changes an error, or makes one of nil")
	}
	if err := TryAgain(fmt.Errorf("look: %w", Errorf("lost", "read: %w", io.EOF))); !errors.Is(err, io.EOF) {
		t.Errorf("%v does not wrap its cause", err)
	}
	_, err := runs(t, `{}`, func(context.Context, struct{}) (string, error) { return "dropped", missing })
	if err != missing {
		t.Errorf("got %v", err)
	}
}

// Arguments fit the schema and not the Go type, or a check refuses them: the tool does not
// run.
func TestChecks(t *testing.T) {
	var checked []string
	made := New("x", "", Read, func(context.Context, transfer) (string, error) { t.Error("it runs"); return "", nil },
		Check(func(ctx context.Context, in transfer) error {
			checked = append(checked, CallOf(ctx).Tool)
			if in.Count > 3 {
				return Errorf("too_many", "at most 3")
			}
			return nil
		}))
	checker := made.runner.(tool.Checker)
	for input, want := range map[string]string{
		`{"amount":1,"count":3}`:                    "",
		`{"amount":1,"count":4}`:                    "too_many: at most 3",
		`{"amount":1,"count":99999999999999999999}`: "invalid_arguments: count: number 99999999999999999999 does not fit here; want int",
		`{"amount":1,"count":3.0}`:                  "invalid_arguments: count: number 3.0 does not fit here; want int",
		`{"amount":1,"other":1}`:                    `invalid_arguments: The arguments cannot be read: json: unknown field "other"`,
		`[]`:                                        "invalid_arguments: arguments: array does not fit here; want worker.transfer",
	} {
		err := checker.Check(t.Context(), tool.Call{Input: json.RawMessage(input), Tool: "x"})
		if fmt.Sprint(err) != want && !(err == nil && want == "") {
			t.Errorf("%s: got %v, want %s", input, err, want)
		}
	}
	if fmt.Sprint(checked) != "[x x]" {
		t.Errorf("checked %v", checked)
	}
}

func TestProbes(t *testing.T) {
	unknown := errors.New("unknown")
	for name, tt := range map[string]struct {
		out     *receipt
		applied bool
		err     error
		want    tool.Probed
		fails   bool
	}{
		"applied":              {&receipt{"1"}, true, nil, tool.Probed{Applied: true, Output: tool.Output{Value: []byte(`{"id":"1"}`)}}, false},
		"applied, who knows":   {nil, true, nil, tool.Probed{Applied: true}, false},
		"not applied":          {nil, false, nil, tool.Probed{}, false},
		"contradicts itself":   {&receipt{"1"}, false, nil, tool.Probed{}, true},
		"nobody knows":         {nil, false, unknown, tool.Probed{}, true},
		"nobody knows, really": {&receipt{"1"}, true, unknown, tool.Probed{}, true},
	} {
		made := New("x", "", Write, book, Checkable(func(ctx context.Context, in transfer) (*receipt, bool, error) {
			if CallOf(ctx).IdempotencyKey != "key" || in.Count != 1 {
				t.Errorf("probed with %+v", in)
			}
			return tt.out, tt.applied, tt.err
		}))
		got, err := made.runner.(tool.Prober).Probe(t.Context(), tool.Call{Input: json.RawMessage(`{"amount":1,"count":1}`), IdempotencyKey: "key"})
		if (err != nil) != tt.fails || !cmp.Equal(got, tt.want) {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, err, tt.want)
		}
		if _, checks := made.runner.(tool.Checker); !checks {
			t.Error("a checkable tool has lost its checks")
		}
	}
}

func TestRunRefuses(t *testing.T) {
	good := New("good", "", Compute, func(context.Context, struct{}) (string, error) { return "", nil })
	for name, tt := range map[string]struct {
		options Options
		tools   []Tool
		want    string
	}{
		"no tool":      {Options{}, nil, "there is no tool to serve: make one with worker.New"},
		"twice":        {Options{}, []Tool{good, good}, "tool good is registered twice; two versions of it need a version each"},
		"all at once":  {Options{Slots: -1}, []Tool{New("x", "", "", book), {}}, "tool x: its kind is missing: want worker.Read, worker.Write or worker.Compute\na tool is made by worker.New or worker.Custom\nworker.Options.Slots: \"-1\" is not a whole number from 1"},
		"a short time": {Options{Drain: 1}, []Tool{good}, `worker.Options.Drain: "1ns" is no duration of at least 1ms, such as 500ms, 10s or 1h30m`},
		"no policy":    {Options{Policy: "not-there.yaml"}, []Tool{good}, "read the policy file: open not-there.yaml"},
		"no settings":  {Options{Settings: "not-there.yaml"}, []Tool{good}, "read the settings: open not-there.yaml"},
	} {
		if err := Run(t.Context(), tt.options, tt.tools...); err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %s", name, err, tt.want)
		}
	}
}

// Every field of fleet.Options reaches the settings of the connection.
func TestOptionsOfTheConnection(t *testing.T) {
	o := fleet.Options{}
	for i := range reflect.TypeFor[fleet.Options]().NumField() {
		reflect.ValueOf(&o).Elem().Field(i).SetString("its" + reflect.TypeFor[fleet.Options]().Field(i).Name)
	}
	cfg, err := Options{Fleet: o}.settings()
	if err != nil {
		t.Fatal(err)
	}
	want := bus.To(o, "")
	want.Timeout = 10 * time.Second
	if diff := cmp.Diff(want, cfg.Bus(o.Name, nil)); diff != "" {
		t.Error(diff)
	}
}

// An option wins over the settings file.
func TestOptionsWinOverSettings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "toolfleet.yaml")
	if err := os.WriteFile(file, []byte("slots: 3\nlease: 20s\ndrain: 1m\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TOOLFLEET_LEASE", "40s") // is not read
	cfg, err := Options{Settings: file, Slots: 5}.settings()
	if err != nil || cfg.Workers.Slots != 5 || cfg.Workers.Lease != 20*time.Second || cfg.Workers.Drain != time.Minute {
		t.Errorf("got %+v, %v", cfg, err)
	}
}

// A program is used wrongly: it exits with status 2 and says what is wrong.
func TestMainWithoutServing(t *testing.T) {
	t.Setenv("TOOLFLEET_CONFIG", "none")
	good := New("good", "", Compute, func(context.Context, struct{}) (string, error) { return "", nil })
	for _, tt := range []struct {
		args        []string
		tools       []Tool
		status      int
		out, errors string // parts of what is printed
	}{
		{[]string{"--help"}, []Tool{good}, 0, "Serves good to a toolfleet fleet.", ""},
		{[]string{"--help"}, []Tool{good}, 0, "--nats=URL", ""},
		{[]string{"--version"}, []Tool{good}, 0, "shout ", ""},
		{[]string{"--root", "."}, []Tool{good}, 2, "", "shout: unknown flag --root"},
		{[]string{"--slots", "no"}, []Tool{good}, 2, "", `shout: --slots: "no" is not a whole number from 1`},
		{[]string{"--policy", "not-there.yaml"}, []Tool{good}, 2, "", "shout: read the policy file: open not-there.yaml"},
		{nil, nil, 2, "", "shout: there is no tool to serve: make one with worker.New"},
		{nil, []Tool{New("x", "", "", book)}, 2, "", "shout: tool x: its kind is missing"},
		{[]string{"--nkey", "not-there"}, []Tool{good}, 1, "", "not-there"},
	} {
		var out, errs bytes.Buffer
		status := run(append([]string{"/bin/shout"}, tt.args...), &out, &errs, tt.tools)
		if status != tt.status || !strings.Contains(out.String(), tt.out) || !strings.Contains(errs.String(), tt.errors) {
			t.Errorf("%v: status %d, out %s, errors %s, want status %d, %q, %q", tt.args, status, &out, &errs, tt.status, tt.out, tt.errors)
		}
	}
}

func TestTry(t *testing.T) {
	var fences []uint64
	steps := func(ctx context.Context, _ struct{}) (string, error) {
		fences = append(fences, CallOf(ctx).Fence)
		Progress(ctx, 0.5, "half")
		return strings.Repeat("x", 20), nil
	}
	var reports []messages.Progress
	calls := tool.Call{Attempt: 3, Progress: func(p messages.Progress) { reports = append(reports, p) }}
	for kind, fence := range map[messages.Kind]uint64{Write: 3, Read: 0} {
		fences, reports = nil, nil
		result, err := New("t", "", kind, steps, Risk("critical"), MaxOutput(10)).Try(t.Context(), calls)
		if err != nil || result.Status != messages.StatusOK || result.Attempt != 3 || result.Truncated == nil {
			t.Errorf("%s: got %+v, %v", kind, result, err)
		}
		if len(fences) != 1 || fences[0] != fence || len(reports) != 1 {
			t.Errorf("%s: got the fences %v and the reports %v", kind, fences, reports)
		}
	}
	if _, err := New("t", "", "", steps).Try(t.Context(), calls); err == nil {
		t.Error("a tool without a kind runs")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	cancel(stop)
	if _, err := New("t", "", Read, steps).Try(ctx, calls); !errors.Is(err, stop) {
		t.Errorf("got %v, want the context's", err)
	}
}
