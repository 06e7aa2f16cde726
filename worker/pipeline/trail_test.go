package pipeline

import (
	"context"
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/permission"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// The trail for the audit log has the hash of the arguments that ran or would have run, and
// the duration of each phase that the call entered.
func TestTrail(t *testing.T) {
	one, seven := messages.Digest([]byte(`{"n":1}`)), messages.Digest([]byte(`{"n":7}`))
	patched := verdict(hook.Verdict{Input: json.RawMessage(`{ "n": 7 }`)})
	for name, tt := range map[string]struct {
		input  string
		hooks  []hook.Hook
		rules  permission.Rules
		hash   string
		phases []string
	}{
		"ran":                   {`{ "n" : 1 }`, nil, permission.Rules{}, one, phases},
		"ran, patched":          {`{"n":1}`, []hook.Hook{patched}, permission.Rules{}, seven, phases},
		"schema":                {`{"x":1,"a":2}`, nil, permission.Rules{}, messages.Digest([]byte(`{"a":2,"x":1}`)), []string{Validate, PostHooks}},
		"no JSON":               {`{"n":`, nil, permission.Rules{}, "", []string{Validate, PostHooks}},
		"a key twice":           {`{"n":1,"n":2}`, nil, permission.Rules{}, "", []string{Validate, PostHooks}},
		"denied":                {`{"n":1}`, []hook.Hook{patched}, rules(t, "", "deny w(n=1)"), one, []string{Validate, Semantic, Permissions, PostHooks}},
		"denied, patched":       {`{"n":1}`, []hook.Hook{patched}, rules(t, "", "deny w(n=7)"), seven, []string{Validate, Semantic, PreHooks, Permissions, PostHooks}},
		"hook makes it no JSON": {`{"n":1}`, []hook.Hook{verdict(hook.Verdict{Input: json.RawMessage(`{`)})}, permission.Rules{}, "", []string{Validate, Semantic, Permissions, PreHooks, PostHooks}},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := run(t, t.Context(), Config{Hooks: hooks(t, tt.hooks...), Rules: tt.rules}, write, &probe{}, jobFor(write, tt.input))
			if err != nil || r.Trail == nil {
				t.Fatalf("got %+v, %v", r, err)
			}
			got := r.Trail
			if got.ArgsHash != tt.hash || got.ToolHash != "" || got.Span != "" {
				t.Errorf("got %+v, want the hash %s", got, tt.hash)
			}
			var took map[string]float64
			if err := json.Unmarshal(rawjson.MustMarshal(got.PhasesMS), &took); err != nil {
				t.Fatal(err)
			}
			entered := rawjson.SortedKeys(took)
			if diff := cmp.Diff(slices.Sorted(slices.Values(tt.phases)), entered); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The trail has the hash of the tool's own output only if a hook has replaced the output.
func TestTrailOfAReplacedOutput(t *testing.T) {
	after := func(change hook.Change) hook.Hook {
		return hook.Hook{Name: "h", After: func(context.Context, hook.Call, hook.Done) (hook.Change, error) { return change, nil }}
	}
	p := &probe{run: func(context.Context, tool.Call) (tool.Output, error) { return tool.Text("given"), nil }}
	given := messages.Text("given").Hash()
	for name, tt := range map[string]struct {
		change hook.Change
		want   string
	}{
		"replaced":              {hook.Change{Output: json.RawMessage(`"other"`)}, given},
		"replaced by blocks":    {hook.Change{Content: []messages.Block{{Type: "text", Text: "other"}}}, given},
		"nothing":               {hook.Change{}, ""},
		"told the model more":   {hook.Change{Context: "told"}, ""},
		"cannot take its place": {hook.Change{Output: json.RawMessage(`"` + string(make([]byte, 2000)) + `"`)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := run(t, t.Context(), Config{MaxOutput: 1000, Hooks: hooks(t, after(tt.change))}, write, p, jobFor(write, `{"n":1}`))
			if err != nil || r.Trail.ToolHash != tt.want {
				t.Errorf("got %+v, %v, want %q", r.Trail, err, tt.want)
			}
		})
	}
}
