package coordinator

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

func TestStopSummary(t *testing.T) {
	context := messages.HookMessage{Type: messages.HookAdditionalContext, Hook: "a", Text: "note"}
	broken := messages.HookMessage{Type: messages.HookErrorInExecution, Hook: "b"}
	cut := messages.HookMessage{Type: messages.HookCancelled, Hook: "c"}
	stops := messages.HookMessage{Type: messages.HookStoppedContinuation, Hook: "d", Text: "enough"}
	results := []messages.Result{
		{Index: 0},
		{Index: 1, Hooks: &messages.Hooks{Count: 2, Messages: []messages.HookMessage{context, broken}}},
		{Index: 2, Hooks: &messages.Hooks{Count: 2, Messages: []messages.HookMessage{stops, cut}, Stop: "d", StopReason: "enough"}},
		{Index: 3, Hooks: &messages.Hooks{Count: 1, Stop: "e", StopReason: "later"}},
	}
	want := &messages.StopSummary{StopHookSummary: messages.StopHookSummary{
		HookCount: 5, HookInfos: []messages.HookMessage{context, broken, stops, cut}, HookErrors: []messages.HookMessage{broken, cut},
		PreventedContinuation: true, StopReason: "enough",
	}}
	if diff := cmp.Diff(want, stopSummary(results)); diff != "" {
		t.Errorf("summary (-want +got):\n%s", diff)
	}
	if got := stopSummary(results[:1]); got != nil {
		t.Errorf("of a batch without hooks: %+v, want none", got)
	}
	silent := stopSummary([]messages.Result{{Hooks: &messages.Hooks{Count: 1}}})
	wire := `{"stop_hook_summary":{"hookCount":1,"hookInfos":[],"hookErrors":[],"preventedContinuation":false}}`
	if got := string(rawjson.MustMarshal(silent)); got != wire {
		t.Errorf("a hook without a word: %s, want %s", got, wire)
	}
}
