package builtin

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/base"
)

func TestPromises(t *testing.T) {
	for name := range specs {
		promise, ok := Promise(name)
		if !ok || promise.Name != name {
			t.Fatalf("the promise of builtin %s has the name %q", name, promise.Name)
		}
		full, err := promise.WithDefaults()
		if err != nil {
			t.Error(err)
		}
		schema, err := schemas.Compile(full.InputSchema)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := schema.Validate(json.RawMessage(`[]`)); err == nil {
			t.Errorf("%s: takes an array for its input", name)
		}
	}
	for _, name := range Names()[:5] {
		promise, _ := Promise(name)
		schema, err := schemas.Compile(promise.InputSchema)
		if err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(json.RawMessage(`{"pattern":"a","file_path":"a","content":"","old_string":"a","new_string":"","more":1}`)); err == nil {
			t.Errorf("%s: takes an argument that it does not have", name)
		}
		if promise.MaxOutput != base.MaxOutput || promise.Truncate == "" || len(promise.Description) < 100 {
			t.Errorf("%s: promises %+v", name, promise)
		}
		wantKind := messages.KindRead
		if name == "Write" || name == "Edit" {
			wantKind = messages.KindWrite
		}
		if promise.Kind != wantKind {
			t.Errorf("%s: kind %s, want %s", name, promise.Kind, wantKind)
		}
	}
	if _, ok := Promise("Nope"); ok {
		t.Error("got a promise of a builtin that does not exist")
	}
	if _, err := New("Nope", nil, nil); err == nil {
		t.Error("got a runner of a builtin that does not exist")
	}
	if _, err := New("Read", nil, nil); err == nil || !strings.Contains(err.Error(), "root") {
		t.Errorf("Read without a root: %v", err)
	}
	if _, err := New("noop", nil, nil); err != nil {
		t.Errorf("noop without a root: %v", err)
	}
}

// Rules about file_path have to see the path that the tool uses. So an argument with another
// spelling of the name file_path is refused.
func TestArgumentNamesAreExact(t *testing.T) {
	root := folder(t, map[string]string{"a": "1", "secret": "2"})
	runner, err := New("Read", root, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, input := range []string{
		`{"file_path":"a","FILE_PATH":"secret"}`, `{"File_path":"secret"}`, `{"file_path":7}`, `[]`, `null`, ``, `{"file_path":"a","limit":1.5}`,
		`{"file_path":"a","limit":0}`, `{"file_path":"a","offset":-1}`, `{"file_path":"a","limit":1e400}`,
	} {
		_, err := runner.Run(t.Context(), tool.Call{Input: json.RawMessage(input)})
		var told *messages.Error
		if !errors.As(err, &told) || told.Code != messages.CodeInvalidArguments {
			t.Errorf("%s: got %v, want %s", input, err, messages.CodeInvalidArguments)
		}
	}
	out, err := runner.Run(t.Context(), tool.Call{Input: json.RawMessage(`{"file_path":"a","limit":1.0e1,"offset":null}`)})
	if err != nil || !strings.Contains(string(out.Value), "1") {
		t.Errorf("whole numbers: got %s, %v", out.Value, err)
	}
}

func TestDemos(t *testing.T) {
	blob, err := run(t, nil, "blob", in{"bytes": 5})
	if err != nil || string(blob.Value) != `"xxxxx"` {
		t.Errorf("blob: got %s, %v", blob.Value, err)
	}
	slept, err := run(t, nil, "sleep", in{"ms": 0, "n": 1})
	if err != nil || string(slept.Value) != `{"ms":0}` {
		t.Errorf("sleep: got %s, %v", slept.Value, err)
	}
	refused(t, nil, "blob", in{"bytes": -1}, messages.CodeInvalidArguments)
	refused(t, nil, "sleep", in{"ms": "soon"}, messages.CodeInvalidArguments)
	if told := refused(t, nil, "fail", in{"message": "no"}, messages.CodeToolError); told.Message != "no" {
		t.Errorf("fail: got %q", told.Message)
	}
	refused(t, nil, "fail", in{}, messages.CodeToolError)
}

func TestSleepTellsProgressAndEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runner, _ := New("sleep", nil, nil)
		var told []messages.Progress
		call := callOf(t, "sleep", in{"ms": 3500})
		call.Progress = func(p messages.Progress) { told = append(told, p) }
		out, err := runner.Run(t.Context(), call)
		if err != nil || string(out.Value) != `{"ms":3500}` || len(told) != 3 || told[0].Fraction != 0.25 || told[2].Text != "slept 2.625s of 3.5s" {
			t.Errorf("got %s, %v, progress %v", out.Value, err, told)
		}
		for ms, want := range map[int]int{0: 0, 5: 0, 20: 3, 100: 3, 10_000: 9} {
			told = nil
			call := callOf(t, "sleep", in{"ms": ms})
			call.Progress = func(p messages.Progress) { told = append(told, p) }
			if _, err := runner.Run(t.Context(), call); err != nil || len(told) != want {
				t.Errorf("sleep of %d ms: %v, progress %v, want %d reports", ms, err, told, want)
			}
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		stop := errors.New("stop")
		cancel(stop)
		if _, err := runner.Run(ctx, callOf(t, "sleep", in{"ms": 86_400_000})); !errors.Is(err, stop) {
			t.Errorf("got %v, want the cause of the context", err)
		}
	})
}
