package gemini

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
	TextArguments: false,
	OptionalIDs:   true,
	RepeatsName:   true,
}

func TestCodec(t *testing.T) { codectest.Run(t, Codec{}, native) }

func FuzzDecode(f *testing.F) { codectest.Fuzz(f, Codec{}, native) }

// nativeMessage returns a model's content with text, thoughts and server tools around the
// calls.
func nativeMessage(calls ...codectest.Call) string {
	parts := []string{
		`{"text":"hm","thought":true,"thoughtSignature":"c2ln"}`,
		`{"text":"Let me look."}`,
		`{"executableCode":{"language":"PYTHON","code":"1"}}`,
		`{"codeExecutionResult":{"outcome":"OUTCOME_OK","output":"1"}}`,
		`{"toolCall":{"id":"s1","toolType":"GOOGLE_SEARCH_WEB","args":{}}}`,
		`{"toolResponse":{"id":"s1","toolType":"GOOGLE_SEARCH_WEB","response":{}}}`,
	}
	for _, call := range calls {
		parts = append(parts, `{"functionCall":{`+call.Member("id")+`"name":"`+call.Name+`","args":`+call.Arguments+`},"thoughtSignature":"c2ln"}`)
	}
	return `{"role":"model","parts":[` + strings.Join(parts, ",") + `]}`
}

func nativeAnswers(t testing.TB, reinjection json.RawMessage) (answers []codectest.Answer) {
	t.Helper()
	var c struct {
		Role  string `json:"role"`
		Parts []struct {
			FunctionResponse struct {
				ID       string `json:"id"`
				Name     string `json:"name"`
				Response struct {
					Output json.RawMessage `json:"output"`
					Error  *string         `json:"error"`
				} `json:"response"`
				Parts []struct {
					InlineData struct {
						MimeType string `json:"mimeType"`
						Data     []byte `json:"data"`
					} `json:"inlineData"`
				} `json:"parts"`
			} `json:"functionResponse"`
		} `json:"parts"`
	}
	codectest.Strict(t, reinjection, &c)
	if c.Role != "user" {
		t.Errorf("role is %q", c.Role)
	}
	for _, part := range c.Parts {
		r := part.FunctionResponse
		a := codectest.Answer{ID: r.ID}
		switch {
		case r.Name == "" || (r.Response.Error == nil) == (r.Response.Output == nil):
			t.Errorf("want a name and either output or error: %+v", r)
		case r.Response.Error != nil:
			a.Failed, a.Text = true, *r.Response.Error
		default:
			a.Text = codectest.TextOf(r.Response.Output)
		}
		for _, media := range r.Parts {
			a.Images = append(a.Images, media.InlineData.MimeType)
		}
		answers = append(answers, a)
	}
	return answers
}
