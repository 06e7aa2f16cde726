package codectest

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/messages"
)

// pixel is the smallest PNG there is.
const pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

// outputs lists outputs with the text that the model must get: the text of a string, or the
// JSON of any other value.
var outputs = []struct{ name, output, text string }{
	{"text", `"plain"`, "plain"},
	{"text that looks like JSON", `"{\"a\": 1}"`, `{"a": 1}`},
	{"text that looks like a block", `"[{\"type\":\"text\",\"text\":\"x\"}]"`, `[{"type":"text","text":"x"}]`},
	{"quotes and backslashes", `"a\\b\"c\/d"`, `a\b"c/d`},
	{"lines", `" a\r\n\tb\n"`, " a\r\n\tb\n"},
	{"no HTML escapes in text", `"<a href='x'>&amp;</a>"`, "<a href='x'>&amp;</a>"},
	{"no HTML escapes in JSON", `{"a":"<b>&\u003c"}`, `{"a":"<b>&<"}`},
	{"NUL", `"a\u0000b"`, "a\x00b"},
	{"emoji", `"\ud83d\ude00 😀"`, "😀 😀"},
	{"object", `{"b": 1, "a": [true, null]}`, `{"b":1,"a":[true,null]}`},
	{"empty object", `{}`, `{}`},
	{"object with an error in it", `{"error":"x","output":1,"status":"error"}`, `{"error":"x","output":1,"status":"error"}`},
	{"array", `[1, "two", {}]`, `[1,"two",{}]`},
	{"empty array", `[]`, `[]`},
	{"true", `true`, `true`},
	{"null", `null`, `null`},
	{"zero", `0`, `0`},
	{"2^53+1", `9007199254740993`, `9007199254740993`},
	{"2^53+1 in an object", `{"n":9007199254740993}`, `{"n":9007199254740993}`},
	{"1e400", `1e400`, `1e400`},
	{"long decimals", `[0.1000000000000000055511151231257827, 1.0, -0, 1E+2]`, `[0.1000000000000000055511151231257827,1.0,-0,1E+2]`},
}

func (s suite) outputs(t *testing.T) {
	for _, test := range outputs {
		t.Run(test.name, func(t *testing.T) {
			got, reinjection := s.one(t, messages.Outcome{Output: json.RawMessage(test.output)})
			if got.Text != test.text || got.Failed {
				t.Errorf("output %s: got %+v, want %q\n%s", test.output, got, test.text, reinjection)
			}
		})
	}
	t.Run("lone surrogates", func(t *testing.T) {
		for _, output := range []string{`"a\ud800b\udfff"`, `{"k":"a\ud800b\udfff"}`} {
			if _, reinjection := s.one(t, messages.Outcome{Output: json.RawMessage(output)}); !hasSurrogates(reinjection) {
				t.Errorf("output %s: got %s", output, reinjection)
			}
		}
	})
	t.Run("no JSON", func(t *testing.T) {
		if got, _ := s.one(t, messages.Outcome{Output: json.RawMessage(`{"a":`)}); !got.Failed {
			t.Errorf("got %+v, want a failure: the output is not JSON, and the call still needs an answer", got)
		}
	})
}

// hasSurrogates reports whether a reinjection has the surrogates of a\ud800b\udfff. They must
// be escaped once in a string, and twice in JSON within a string.
func hasSurrogates(reinjection json.RawMessage) bool {
	return strings.Contains(strings.ReplaceAll(string(reinjection), `\\u`, `\u`), `a\ud800b\udfff`)
}

func (s suite) emptyOutputs(t *testing.T) {
	for _, o := range []messages.Outcome{messages.Text(""), {Content: []messages.Block{}}, {Content: []messages.Block{{Type: "text"}}}} {
		if got, reinjection := s.one(t, o); got.Text != s.Empty || got.Failed {
			t.Errorf("%+v: got %+v, want %q and no failure\n%s", o, got, s.Empty, reinjection)
		}
	}
	if s.Empty == "" {
		return
	}
	if got, _ := s.one(t, messages.Text(" \n\t")); got.Text != s.Empty {
		t.Errorf("blank output: got %+v, want %q: the provider refuses blank text", got, s.Empty)
	}
}

func (s suite) errors(t *testing.T) {
	for _, test := range []struct {
		name, text string
		outcome    messages.Outcome
	}{
		{"the tool's own words", "no such file: <a>", messages.Failed(messages.CodeToolError, "no such file: <a>")},
		{"no code", "boom", messages.Outcome{Err: &messages.Error{Message: "boom"}}},
		{"JSON in the tool's words", `{"ok":true}`, messages.Outcome{Err: &messages.Error{Message: `{"ok":true}`}}},
		{"no words", "The tool failed without saying why.", messages.Outcome{Err: &messages.Error{Message: " \n"}}},
		{"coded", `{"error":"timeout","message":"did not end within 5s","retryable":false}`, messages.Failed(messages.CodeTimeout, "did not end within 5s")},
		{"coded, retryable", `{"error":"rate_limited","message":"a < b","retryable":true}`,
			messages.Outcome{Err: &messages.Error{Code: "rate_limited", Message: "a < b", Retryable: true}}},
		{"output that fails", "half of it", messages.Outcome{Output: json.RawMessage(`"half of it"`), IsError: true}},
		{"empty output that fails", "The tool failed without saying why.", messages.Outcome{Output: json.RawMessage(`""`), IsError: true}},
		{"object that fails", `{"a":1}`, messages.Outcome{Output: json.RawMessage(`{"a": 1}`), IsError: true}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got, reinjection := s.one(t, test.outcome); !got.Failed || got.Text != test.text {
				t.Errorf("got %+v, want the failure %q\n%s", got, test.text, reinjection)
			}
		})
	}
}

func (s suite) content(t *testing.T) {
	image := func(mime string) messages.Block {
		return messages.Block{Type: "image", Data: pixel, MimeType: mime}
	}
	got, reinjection := s.one(t, messages.Outcome{Content: []messages.Block{{Type: "text", Text: "before"}, image("image/png"), {Type: "text", Text: "after"}}})
	if got.Failed || !strings.HasPrefix(got.Text, "before") || !strings.HasSuffix(got.Text, "after") {
		t.Errorf("text around an image: got %+v\n%s", got, reinjection)
	}
	if s.Images && diff([]string{"image/png"}, got.Images) != "" {
		t.Errorf("got the images %q, want one image/png\n%s", got.Images, reinjection)
	}
	if !s.Images && (got.Text != "before\n[image omitted: image/png]\nafter" || strings.Contains(string(reinjection), pixel)) {
		t.Errorf("want a note in place of the image: got %+v", got)
	}
	got, _ = s.one(t, messages.Outcome{Content: []messages.Block{image("image/png"), image("image/jpeg")}})
	if s.Images && diff([]string{"image/png", "image/jpeg"}, got.Images) != "" {
		t.Errorf("images alone: got %+v", got)
	}
	got, _ = s.one(t, messages.Outcome{Content: []messages.Block{{Type: "text", Text: "one"}, {Type: "text", Text: "two"}}})
	if got.Text != "one\ntwo" {
		t.Errorf("two texts: got %+v", got)
	}
}

func (s suite) contentFails(t *testing.T) {
	got, reinjection := s.one(t, messages.Outcome{IsError: true, Content: []messages.Block{
		{Type: "text", Text: "exit 1"}, {Type: "text", Text: "see above"},
	}})
	if !got.Failed || got.Text != "exit 1\nsee above" {
		t.Errorf("got %+v\n%s", got, reinjection)
	}
	for _, blank := range [][]messages.Block{{}, {{Type: "text", Text: " "}}} {
		got, reinjection := s.one(t, messages.Outcome{IsError: true, Content: blank})
		if !got.Failed || strings.TrimSpace(got.Text) == "" {
			t.Errorf("blank: got %+v, want a failure with some text\n%s", got, reinjection)
		}
	}
}
