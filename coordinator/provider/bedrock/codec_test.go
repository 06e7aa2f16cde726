package bedrock

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

// nativeMessage returns an assistant message with text, reasoning and a server tool around the
// calls.
func nativeMessage(calls ...codectest.Call) string {
	blocks := []string{
		`{"reasoningContent":{"reasoningText":{"text":"hm","signature":"c2ln"}}}`,
		`{"text":"Let me look."}`,
		`{"toolUse":{"toolUseId":"srv_1","name":"web","input":{},"type":"server_tool_use"}}`,
	}
	for _, call := range calls {
		blocks = append(blocks, `{"toolUse":{`+call.Member("toolUseId")+`"name":"`+call.Name+`","input":`+call.Arguments+`}}`)
	}
	return `{"role":"assistant","content":[` + strings.Join(blocks, ",") + `]}`
}

func nativeAnswers(t testing.TB, reinjection json.RawMessage) (answers []codectest.Answer) {
	t.Helper()
	var m struct {
		Role    string `json:"role"`
		Content []struct {
			ToolResult struct {
				ToolUseID string `json:"toolUseId"`
				Status    string `json:"status"`
				Content   []struct {
					Text  *string         `json:"text"`
					JSON  json.RawMessage `json:"json"`
					Image *struct {
						Format string `json:"format"`
						Source struct {
							Bytes []byte `json:"bytes"`
						} `json:"source"`
					} `json:"image"`
				} `json:"content"`
			} `json:"toolResult"`
		} `json:"content"`
	}
	codectest.Strict(t, reinjection, &m)
	if m.Role != "user" {
		t.Errorf("role is %q", m.Role)
	}
	for _, block := range m.Content {
		result := block.ToolResult
		a := codectest.Answer{ID: result.ToolUseID, Failed: result.Status == "error"}
		if len(result.Content) == 0 || result.Status != "" && result.Status != "success" && result.Status != "error" {
			t.Errorf("the API refuses %+v", result)
		}
		var texts []string
		for _, c := range result.Content {
			switch {
			case c.Text != nil && c.JSON == nil && c.Image == nil && strings.TrimSpace(*c.Text) != "":
				texts = append(texts, *c.Text)
			case c.Text == nil && c.JSON != nil && c.JSON[0] == '{' && c.Image == nil:
				texts = append(texts, string(c.JSON))
			case c.Text == nil && c.JSON == nil && c.Image != nil && len(c.Image.Source.Bytes) > 0:
				a.Images = append(a.Images, "image/"+c.Image.Format)
			default:
				t.Errorf("the API refuses the content %+v", c)
			}
		}
		a.Text = strings.Join(texts, "\n")
		answers = append(answers, a)
	}
	return answers
}
