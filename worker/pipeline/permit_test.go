package pipeline

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/call"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// guarded is a runner that decides about permissions too.
type guarded struct {
	tool.Func
	permit func() (tool.Permit, error)
}

func (g guarded) Permit(context.Context, tool.Call) (tool.Permit, error) { return g.permit() }

// A tool and a hook both have an opinion on a call: the stricter one counts. If the tool
// cannot give its opinion, the call is refused.
func TestTheToolsOwnPermission(t *testing.T) {
	for _, tt := range []struct {
		name, own string
		err       error
		hook      hook.Opinion
		status    messages.Status // "": a person is asked
		says      string
	}{
		{"none", "", nil, hook.None, messages.StatusOK, ""},
		{"allow", "allow", nil, hook.None, messages.StatusOK, ""},
		{"deny", "deny", nil, hook.Allow, messages.StatusDenied, "the tool w denies: closed"},
		{"ask", "ask", nil, hook.Allow, "", ""},
		{"a hook denies", "allow", nil, hook.Deny, messages.StatusDenied, "hook"},
		{"a hook asks", "allow", nil, hook.Ask, "", ""},
		{"not a word", "maybe", nil, hook.None, messages.StatusDenied, "the tool w denies"},
		{"it fails", "", errors.New("secret"), hook.None, messages.StatusDenied, "The permission check of w failed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			runs := 0
			g := guarded{func(context.Context, tool.Call) (tool.Output, error) { runs++; return tool.Text("ok"), nil },
				func() (tool.Permit, error) { return tool.Permit{Opinion: tt.own, Reason: "closed"}, tt.err }}
			cfg := Config{Registry: &tool.Registry{}, Approvals: oneApprover{}, Hooks: hooks(t, hook.Hook{Name: "h", Before: func(context.Context, hook.Call) (hook.Verdict, error) {
				return hook.Verdict{Opinion: tt.hook}, nil
			}})}
			if err := cfg.Registry.Add(write, g); err != nil {
				t.Fatal(err)
			}
			pipe, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			r, err := pipe.Run(t.Context(), jobFor(write, `{"n":1}`), nil, nil, nil)
			var asks *call.Ask
			if tt.status == "" {
				if !errors.As(err, &asks) || runs != 0 {
					t.Errorf("got %+v, %v, want a question", r, err)
				}
				return
			}
			if err != nil || r.Status != tt.status || (runs == 1) != (tt.status == messages.StatusOK) {
				t.Fatalf("got %s %+v after %d runs, %v", r.Status, r.Err, runs, err)
			}
			if r.Err != nil && (!strings.Contains(r.Err.Message, tt.says) || strings.Contains(r.Err.Message, "secret")) {
				t.Errorf("the model reads %q", r.Err.Message)
			}
		})
	}
}
