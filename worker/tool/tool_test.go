package tool

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

func says(context.Context, Call) (Output, error)    { return Text("ran"), nil }
func applied(context.Context, Call) (Probed, error) { return Probed{true, Text("ran")}, nil }

func TestRegistryRefuses(t *testing.T) {
	var reg Registry
	if err := reg.Add(schemas.Tool{Name: "taken"}, Func(says)); err != nil {
		t.Fatal(err)
	}
	const noProbe = "tool x: on_crash is checkable, but its runner has no probe to ask; make it with tool.NewProber, or say idempotent or once"
	for _, tt := range []struct {
		name       string
		definition schemas.Tool
		runner     Runner
		want       string
	}{
		{"a name that is taken", schemas.Tool{Name: "taken"}, Func(says), "tool taken is registered twice; two versions of it need a version each"},
		{"no runner", schemas.Tool{Name: "x"}, nil, "tool x: has no runner"},
		{"a definition that does not hold together", schemas.Tool{Name: "x", Kind: "z"}, Func(says), `tool x: kind "z": want read, write or compute`},
		{"a retry of a once write", schemas.Tool{Name: "x", Retry: schemas.Retry{Attempts: 2}}, Func(says),
			"tool x: retry: a write with on_crash: once is never run again, because a run that failed may have had its effect; " +
				"only reads, computes and writes with on_crash: idempotent or checkable may be"},
		{"checkable without a probe", schemas.Tool{Name: "x", OnCrash: messages.OnCrashCheckable}, Func(says), noProbe},
		{"checkable with a nil probe", schemas.Tool{Name: "x", OnCrash: messages.OnCrashCheckable}, NewProber(says, nil), noProbe},
	} {
		if err := reg.Add(tt.definition, tt.runner); err == nil || err.Error() != tt.want {
			t.Errorf("%s: got %v, want %s", tt.name, err, tt.want)
		}
	}
	if got := len(reg.Definitions()); got != 1 {
		t.Errorf("%d tools are registered, want 1", got)
	}
}

func TestCheckable(t *testing.T) {
	var reg Registry
	definition := schemas.Tool{Name: "x", OnCrash: messages.OnCrashCheckable, Retry: schemas.Retry{Attempts: 3}}
	if err := reg.Add(definition, NewProber(says, applied)); err != nil {
		t.Fatal(err)
	}
	x, _ := reg.Lookup("x")
	if out, err := x.Runner.Run(t.Context(), Call{}); err != nil || string(out.Value) != `"ran"` {
		t.Errorf("run: got %s, %v", out.Value, err)
	}
	if probed, err := x.Runner.(Prober).Probe(t.Context(), Call{}); err != nil || !probed.Applied {
		t.Errorf("probe: got %+v, %v", probed, err)
	}
	if x.Retry != (schemas.Retry{Attempts: 3, BackoffMS: 500, MaxBackoffMS: 10_000}) {
		t.Errorf("retry: got %+v", x.Retry)
	}
}

func TestReadProbed(t *testing.T) {
	nobodyKnows := errors.New("")
	for answer, want := range map[string]any{
		"not_done":             Probed{},
		"not_done\r\nand more": Probed{},
		"done":                 Probed{Applied: true},
		" done \r\n":           Probed{Applied: true},
		"done\n{\"a\":1}\n":    Probed{true, Output{Value: []byte(`{"a":1}`)}},
		"done\n{\"a\":1}{}":    Probed{true, Text(`{"a":1}{}`)},
		"done\na\xffb":         Probed{true, Text("a\uFFFDb")},
		"":                     nobodyKnows,
		"\ndone":               nobodyKnows,
		"done not_done":        nobodyKnows,
		"notdone":              nobodyKnows,
		"\"done\"":             nobodyKnows,
	} {
		got, err := ReadProbed([]byte(answer))
		if want == nobodyKnows {
			if err == nil || got.Applied {
				t.Errorf("%q: got %+v, %v, want an error", answer, got, err)
			}
			continue
		}
		if diff := cmp.Diff(want, any(got)); err != nil || diff != "" {
			t.Errorf("%q: %v %s", answer, err, diff)
		}
	}
}

func TestRegistryVersions(t *testing.T) {
	var reg Registry
	for _, version := range []string{"1.9", "2", "", "1.10"} {
		if err := reg.Add(schemas.Tool{Name: "x", Version: version}, Func(says)); err != nil {
			t.Fatal(err)
		}
	}
	if err := reg.Add(schemas.Tool{Name: "a"}, Func(says)); err != nil {
		t.Fatal(err)
	}
	if err := reg.Add(schemas.Tool{Name: "x", Version: "2.0"}, Func(says)); err == nil || err.Error() != "tool x is registered twice in version 2.0" {
		t.Errorf("a version that is taken: %v", err)
	}
	var got []string
	for _, definition := range reg.Definitions() {
		got = append(got, definition.Name+definition.Version)
		if own, known := reg.Version(definition.Name, definition.Digest); !known || own.Version != definition.Version {
			t.Errorf("version %q by its digest: %q, %v", definition.Version, own.Version, known)
		}
	}
	if diff := cmp.Diff([]string{"a", "x2", "x1.10", "x1.9", "x"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if newest, known := reg.Lookup("x"); !known || newest.Version != "2" {
		t.Errorf("the newest: %q, %v", newest.Version, known)
	}
	if _, known := reg.Version("x", ""); known {
		t.Error("there is a definition without a digest")
	}
}
