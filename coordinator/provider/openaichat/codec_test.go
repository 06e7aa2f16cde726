package openaichat

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/coordinator/provider/codectest"
)

var native = codectest.Native{
	Message:       nativeMessage,
	Answers:       nativeAnswers,
	Images:        false,
	Empty:         "",
	TextArguments: true,
	OptionalIDs:   false,
}

func TestCodec(t *testing.T) { codectest.Run(t, Codec{}, native) }

func FuzzDecode(f *testing.F) { codectest.Fuzz(f, Codec{}, native) }

// nativeMessage returns an assistant message as OpenAI sends it. Its arguments are strings,
// which may hold broken JSON.
func nativeMessage(calls ...codectest.Call) string {
	if len(calls) == 0 {
		return `{"role":"assistant","content":"Done.","refusal":null,"annotations":[]}`
	}
	list := make([]string, len(calls))
	for i, call := range calls {
		arguments, _ := json.Marshal(call.Arguments)
		list[i] = `{` + call.Member("id") + `"type":"function","function":{"name":"` + call.Name + `","arguments":` + string(arguments) + `}}`
	}
	return `{"role":"assistant","content":null,"refusal":null,"tool_calls":[` + strings.Join(list, ",") + `]}`
}

func nativeAnswers(t testing.TB, reinjection json.RawMessage) (answers []codectest.Answer) {
	t.Helper()
	var list []struct {
		Role       string  `json:"role"`
		ToolCallID string  `json:"tool_call_id"`
		Content    *string `json:"content"`
	}
	codectest.Strict(t, reinjection, &list)
	for _, m := range list {
		if m.Role != "tool" || m.Content == nil {
			t.Fatalf("want a message of role tool with text, got %+v", m)
		}
		answers = append(answers, codectest.Marked(m.ToolCallID, *m.Content))
	}
	return answers
}
