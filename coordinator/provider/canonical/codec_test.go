package canonical

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
	OptionalIDs:   false,
}

func TestCodec(t *testing.T) { codectest.Run(t, Codec{}, native) }

func FuzzDecode(f *testing.F) { codectest.Fuzz(f, Codec{}, native) }

func nativeMessage(calls ...codectest.Call) string {
	list := make([]string, len(calls))
	for i, call := range calls {
		list[i] = `{` + call.Member("id") + `"name":"` + call.Name + `","input":` + call.Arguments + `}`
	}
	return `{"calls":[` + strings.Join(list, ",") + `]}`
}

func nativeAnswers(t testing.TB, reinjection json.RawMessage) (answers []codectest.Answer) {
	t.Helper()
	var m struct {
		Results []struct {
			ID      string          `json:"id"`
			Name    string          `json:"name"`
			Output  json.RawMessage `json:"output"`
			Error   *string         `json:"error"`
			IsError bool            `json:"is_error"`
			Content *[]struct {
				Type     string  `json:"type"`
				Text     *string `json:"text"`
				Data     []byte  `json:"data"`
				MimeType string  `json:"mimeType"`
			} `json:"content"`
		} `json:"results"`
	}
	codectest.Strict(t, reinjection, &m)
	for _, r := range m.Results {
		a := codectest.Answer{ID: r.ID, Failed: r.IsError || r.Error != nil}
		switch {
		case r.Output != nil && r.Error == nil && r.Content == nil:
			a.Text = codectest.TextOf(r.Output)
		case r.Output == nil && r.Error != nil && r.Content == nil:
			a.Text = *r.Error
		case r.Output == nil && r.Error == nil && r.Content != nil:
			var texts []string
			for _, block := range *r.Content {
				if block.Type == "image" {
					a.Images = append(a.Images, block.MimeType)
				} else {
					texts = append(texts, *block.Text)
				}
			}
			a.Text = strings.Join(texts, "\n")
		default:
			t.Errorf("want one of output, error and content: %+v", r)
		}
		answers = append(answers, a)
	}
	return answers
}
