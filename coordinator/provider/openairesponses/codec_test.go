package openairesponses

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/coordinator/provider/codectest"
)

var native = codectest.Native{
	Message:       nativeMessage,
	Answers:       nativeAnswers,
	Images:        true,
	Empty:         "",
	TextArguments: true,
	OptionalIDs:   false,
}

func TestCodec(t *testing.T) { codectest.Run(t, Codec{}, native) }

func FuzzDecode(f *testing.F) { codectest.Fuzz(f, Codec{}, native) }

// nativeMessage returns an output list with reasoning and server tools around the calls.
func nativeMessage(calls ...codectest.Call) string {
	items := []string{
		`{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"c2ln"}`,
		`{"type":"web_search_call","id":"ws_1","status":"completed","action":{"type":"search","query":"x"}}`,
		`{"type":"message","id":"msg_1","role":"assistant","status":"completed","content":[{"type":"output_text","text":"Let me look.","annotations":[]}]}`,
	}
	for _, call := range calls {
		arguments, _ := json.Marshal(call.Arguments)
		items = append(items, `{"type":"function_call","id":"fc_1",`+call.Member("call_id")+`"name":"`+call.Name+`","arguments":`+string(arguments)+`,"status":"completed"}`)
	}
	return `[` + strings.Join(items, ",") + `]`
}

func nativeAnswers(t testing.TB, reinjection json.RawMessage) (answers []codectest.Answer) {
	t.Helper()
	var list []struct {
		Type      string          `json:"type"`
		CallID    string          `json:"call_id"`
		Name      string          `json:"name"`
		Namespace string          `json:"namespace"`
		Caller    json.RawMessage `json:"caller"`
		Output    json.RawMessage `json:"output"`
	}
	codectest.Strict(t, reinjection, &list)
	for _, item := range list {
		if item.Type != "function_call_output" && item.Type != "custom_tool_call_output" {
			t.Errorf("type is %q", item.Type)
		}
		text, images := nativeOutput(t, item.Output)
		a := codectest.Marked(item.CallID, text)
		a.Images = images
		answers = append(answers, a)
	}
	return answers
}

// nativeOutput returns the text and the images of an output, which is a string or a list of
// parts.
func nativeOutput(t testing.TB, output json.RawMessage) (text string, images []string) {
	t.Helper()
	if json.Unmarshal(output, &text) == nil {
		return text, nil
	}
	var parts []struct {
		Type     string `json:"type"`
		Text     string `json:"text"`
		ImageURL string `json:"image_url"`
		Detail   string `json:"detail"`
	}
	codectest.Strict(t, output, &parts)
	var texts []string
	for _, part := range parts {
		switch part.Type {
		case "input_text":
			texts = append(texts, part.Text)
		case "input_image":
			mimeType, _, ok := strings.Cut(strings.TrimPrefix(part.ImageURL, "data:"), ";base64,")
			if !ok || part.Detail == "" {
				t.Errorf("no image: %+v", part)
			}
			images = append(images, mimeType)
		default:
			t.Errorf("part of type %q", part.Type)
		}
	}
	return strings.Join(texts, "\n"), images
}
