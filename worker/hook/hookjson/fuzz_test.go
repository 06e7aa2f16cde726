package hookjson

import (
	"encoding/json"
	"testing"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/hook"
)

var (
	aCall = hook.Call{Session: "s", Batch: "b", ID: "toolu_1", Tool: "Bash", Input: json.RawMessage(`{"command":"ls"}`)}
	anEnd = hook.Done{Status: messages.StatusOK, Outcome: messages.Text("done")}
)

// FuzzRead: no input makes the reader panic, and only an object is an answer.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"decision":"block","reason":"r"}`, `{"continue":false,"hookSpecificOutput":{"permissionDecision":"ask","updatedInput":{"a":1}}}`,
		`{"hookSpecificOutput":{"updatedMCPToolOutput":{"content":[{"type":"text"}]}}}`, `null`, `{"tool_use_id":null}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, q := range []Request{Before(aCall), After(aCall, anEnd)} {
			a, err := q.read(raw)
			switch {
			case err != nil:
			case rawjson.Check(raw) != nil:
				t.Errorf("%q is accepted, want an error", raw)
			case q.Event == PreToolUse && (a.output != nil || a.content != nil), q.Event != PreToolUse && (a.opinion != hook.None || a.input != nil):
				t.Errorf("%q after %s: %+v", raw, q.Event, a)
			}
		}
	})
}
