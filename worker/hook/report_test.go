package hook

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/messages"
)

func TestReport(t *testing.T) {
	broken := Hook{Name: "b", Class: Observe, Before: func(context.Context, Call) (Verdict, error) { return Verdict{}, errors.New("SECRET") }}
	var got []messages.HookMessage
	r := mustSet(t,
		before("a", 0, Verdict{Opinion: Ask, Reason: "big", Context: "note", Stop: true, StopReason: "enough"}), broken, before("c", 0, Verdict{}),
		Hook{Name: "d", Match: "other", Before: broken.Before}, Hook{Name: "e", After: func(context.Context, Call, Done) (Change, error) { return Change{}, nil }},
	).Before(t.Context(), aCall, func(m messages.HookMessage) { got = append(got, m) })
	sent := []messages.HookMessage{
		{Type: messages.HookPermissionDecision, Hook: "a", Opinion: "ask", Text: "big"},
		{Type: messages.HookAdditionalContext, Hook: "a", Text: "note"},
		{Type: messages.HookStoppedContinuation, Hook: "a", Text: "enough"},
		{Type: messages.HookErrorInExecution, Hook: "b"},
	}
	want := &messages.Hooks{Count: 3, Messages: sent, Stop: "a", StopReason: "enough", Opinion: "ask", By: "a", Reason: "big", Context: []string{"note"}}
	if diff := cmp.Diff(want, r.Report()); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(sent, got); diff != "" {
		t.Errorf("emitted messages (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, Reported(r.Report()).Report()); diff != "" {
		t.Errorf("report of the result that was made from the report (-want +got):\n%s", diff)
	}

	after := Result{Count: 2, Messages: []messages.HookMessage{{Type: messages.HookErrorInExecution, Hook: "z"}}, Stop: "z", Context: []string{"x"}}
	want = &messages.Hooks{Count: 5, Messages: append(sent, after.Messages...), Stop: "a", StopReason: "enough"}
	if diff := cmp.Diff(want, Summary(r, after)); diff != "" {
		t.Errorf("summary (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(&messages.Hooks{Count: 2, Messages: after.Messages, Stop: "z"}, Summary(Result{}, after)); diff != "" {
		t.Errorf("summary of hooks after the tool (-want +got):\n%s", diff)
	}
	if none := (Result{}).Report(); none != nil || Summary(Result{}, Result{}) != nil || Reported(nil).Report() != nil {
		t.Errorf("the report of no hooks is %+v, want nil", none)
	}
}

// Texts of hooks go into records and events: they are bounded and valid UTF-8.
func TestWordsAreBounded(t *testing.T) {
	long := strings.Repeat("é", 3*MaxContext)
	r := mustSet(t,
		before("a", 0, Verdict{Opinion: Allow, Reason: long, Context: long[:2*(MaxContext-10)]}),
		before("b", 0, Verdict{Context: "0123456789abc", Stop: true, StopReason: "\xff" + long}),
		before("c", 0, Verdict{Context: "too late"}),
	).Before(t.Context(), aCall, nil)
	cut := " [...]"
	if want := strings.Repeat("é", MaxReason) + cut; r.Reason != want || r.Messages[0].Text != want || r.Messages[1].Text != want {
		t.Errorf("reason of %d bytes, want %d", len(r.Reason), len(want))
	}
	if want := []string{long[:2*(MaxContext-10)], "0123456789" + cut}; !cmp.Equal(want, r.Context) {
		t.Errorf("%d contexts, the second %q, want two, and the second one cut", len(r.Context), r.Context[1])
	}
	if want := "\uFFFD" + strings.Repeat("é", MaxReason-1) + cut; r.StopReason != want {
		t.Errorf("stop reason %.20q of %d bytes, want %d", r.StopReason, len(r.StopReason), len(want))
	}
}

func TestMatch(t *testing.T) {
	for _, tt := range []struct {
		match string
		yes   []string
		no    []string
	}{
		{"", []string{"Bash", "mcp__mail"}, nil},
		{"*", []string{"Bash", "mcp__mail"}, nil},
		{"Edit|Write", []string{"Edit", "Write"}, []string{"Edi", "EditWrite", "edit"}},
		{"Bash|mcp__*", []string{"Bash", "mcp__mail"}, []string{"mcp_", "BashX"}},
		{"[a-c]?", []string{"ax"}, []string{"dx", "a"}},
	} {
		h := mustSet(t, Hook{Name: "h", Match: tt.match, Before: func(context.Context, Call) (Verdict, error) { return Verdict{}, nil }}).hooks[0]
		for _, name := range tt.yes {
			if !h.matches(name) {
				t.Errorf("%q does not match %q", tt.match, name)
			}
		}
		for _, name := range tt.no {
			if h.matches(name) {
				t.Errorf("%q matches %q", tt.match, name)
			}
		}
	}
	// A pattern that can match no tool is refused, because a gate with such a pattern would
	// let all calls pass.
	for _, match := range []string{"mcp__.*", "Edit|", "|", "Edit |Write", "(Edit)", "^Edit$", "[a", "Bash(git:*)", "a/b"} {
		_, err := NewSet(Hook{Name: "h", Match: match, Before: func(context.Context, Call) (Verdict, error) { return Verdict{}, nil }})
		if err == nil {
			t.Errorf("match %q is accepted, want an error", match)
		}
	}
}
