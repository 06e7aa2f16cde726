package pipeline

import (
	"context"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// The semantic rules of a tool's definition are checked before the tool's own check sees the
// input.
func TestSemanticRules(t *testing.T) {
	for _, tt := range []struct {
		name, input string
		rules       []schemas.SemanticRule
		code        messages.Code // "": the call runs
		says        string
	}{
		{"holds", `{"n":1}`, []schemas.SemanticRule{{Require: "input.n > 0", Message: "no"}}, "", ""},
		{"does not hold", `{"n":0}`, []schemas.SemanticRule{{Require: "input.n > 0", Message: "n must be positive."}}, messages.CodeInvalidArguments, "n must be positive."},
		{"own code", `{"n":0}`, []schemas.SemanticRule{{Require: "input.n > 0", Message: "m", Code: "too_small"}}, "too_small", "m"},
		{"the first that does not hold", `{"n":0}`, []schemas.SemanticRule{{Require: "input.n < 1", Message: "a"}, {Require: "input.n > 1", Message: "b"}, {Require: "false", Message: "c"}},
			messages.CodeInvalidArguments, "b"},
		{"cannot be evaluated", `{"n":424242}`, []schemas.SemanticRule{{Require: "input.other > 0", Message: "m"}}, messages.CodeInvalidArguments, "could not be found out"},
		{"by principal", `{"n":0}`, []schemas.SemanticRule{{Require: "principal.id == 'other'", Message: "m"}}, messages.CodeInvalidArguments, "m"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			checked := false
			p := &probe{check: func(context.Context, tool.Call) error { checked = true; return nil }}
			r, err := run(t, t.Context(), Config{}, with(write, func(t *schemas.Tool) { t.Semantic = tt.rules }), p, askJob(tt.input))
			if err != nil {
				t.Fatal(err)
			}
			if tt.code == "" {
				if r.Status != messages.StatusOK || !checked {
					t.Errorf("got %s %v, checked by the tool: %v", r.Status, r.Err, checked)
				}
				return
			}
			if r.Status != messages.StatusSemanticError || r.Err.Code != tt.code || !strings.Contains(r.Err.Message, tt.says) || checked || p.effects.Load() > 0 {
				t.Errorf("got %s %+v, checked by the tool: %v", r.Status, r.Err, checked)
			}
			if strings.Contains(r.Err.Message, "424242") {
				t.Errorf("the message holds a value: %s", r.Err.Message)
			}
		})
	}
}
