package anthropic

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/coordinator/provider/codectest"
	"github.com/toolfleet/toolfleet/coordinator/provider/dialect"
)

var native = codectest.Native{
	Message:       nativeMessage,
	Answers:       nativeAnswers,
	Images:        true,
	Empty:         dialect.NoOutput,
	TextArguments: false,
	OptionalIDs:   false,
}

func TestCodec(t *testing.T) { codectest.Run(t, Codec{}, native) }

func FuzzDecode(f *testing.F) { codectest.Fuzz(f, Codec{}, native) }

// nativeMessage returns an assistant turn with text, thinking and server tools around the
// calls.
func nativeMessage(calls ...codectest.Call) string {
	blocks := []string{
		`{"type":"thinking","thinking":"hm","signature":"c2ln"}`,
		`{"type":"text","text":"Let me look."}`,
		`{"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{"query":"x"}}`,
		`{"type":"web_search_tool_result","tool_use_id":"srvtoolu_1","content":[]}`,
	}
	for _, call := range calls {
		blocks = append(blocks, `{"type":"tool_use",`+call.Member("id")+`"name":"`+call.Name+`","input":`+call.Arguments+`}`)
	}
	return `{"role":"assistant","content":[` + strings.Join(blocks, ",") + `],"stop_reason":"tool_use"}`
}

func nativeAnswers(t testing.TB, reinjection json.RawMessage) (answers []codectest.Answer) {
	t.Helper()
	var m struct {
		Role    string `json:"role"`
		Content []struct {
			Type        string `json:"type"`
			ToolUseID   string `json:"tool_use_id"`
			ToolsetName string `json:"toolset_name"`
			IsError     bool   `json:"is_error"`
			Content     []struct {
				Type   string `json:"type"`
				Text   string `json:"text"`
				Source struct {
					Type      string `json:"type"`
					MediaType string `json:"media_type"`
					Data      string `json:"data"`
				} `json:"source"`
			} `json:"content"`
		} `json:"content"`
	}
	codectest.Strict(t, reinjection, &m)
	if m.Role != "user" {
		t.Errorf("role is %q", m.Role)
	}
	for _, result := range m.Content {
		a := codectest.Answer{ID: result.ToolUseID, Failed: result.IsError}
		if result.Type != "tool_result" || len(result.Content) == 0 {
			t.Errorf("want a tool_result with content, got %+v", result)
		}
		var texts []string
		for _, block := range result.Content {
			switch {
			case block.Type == "image" && block.Source.Type == "base64" && block.Source.Data != "" && !result.IsError:
				a.Images = append(a.Images, block.Source.MediaType)
			case block.Type == "text" && strings.TrimSpace(block.Text) != "":
				texts = append(texts, block.Text)
			default:
				t.Errorf("the API refuses the block %+v in a result with is_error %v", block, result.IsError)
			}
		}
		a.Text = strings.Join(texts, "\n")
		answers = append(answers, a)
	}
	return answers
}
