package dialect

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

func TestQuoteUndoesUnquote(t *testing.T) {
	for _, token := range []string{
		`""`, `"a"`, `"\""`, `"\\"`, `"\b\f\n\r\t"`, `"\u0000\u001f"`, `"/<>&'"`, `"é😀` + "\u2028\u007f" + `"`,
		`"\ud800"`, `"\udfff"`, `"\udc00\ud800"`, `"a\ud83d😀\ude00b"`, `"\ud800\n"`,
	} {
		if got := string(Quote(Unquote([]byte(token)))); got != token {
			t.Errorf("Quote(Unquote(%s)) = %s", token, got)
		}
	}
	for token, want := range map[string]string{
		`"\u00e9\u003c\/\u2028"`: "é</\u2028",
		`"\ud83d\ude00"`:         "😀",
		`"\uD83D\uDE00"`:         "😀",
		`"\ud83d\u0041"`:         "\xed\xa0\xbdA",
	} {
		if got := Unquote([]byte(token)); got != want {
			t.Errorf("Unquote(%s) = %q, want %q", token, got, want)
		}
	}
	if got, want := string(Quote("a\xff\xed\xa0")), "\"a\ufffd\ufffd\ufffd\""; got != want {
		t.Errorf("Quote of bytes that are no text: got %s, want %s", got, want)
	}
}

// FuzzUnquote compares Unquote and Quote with encoding/json, which differs only in lone
// surrogates.
func FuzzUnquote(f *testing.F) {
	for _, seed := range []string{`"a"`, `"\ud800"`, `"\ud83d\ude00"`, `"\\\"\n\u0000é<"`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, token []byte) {
		var want string
		if !utf8.Valid(token) { // a codec refuses a message with such bytes earlier
			return
		}
		if len(token) < 2 || token[0] != '"' || token[len(token)-1] != '"' || json.Unmarshal(token, &want) != nil {
			return
		}
		text := Unquote(token)
		var got string
		if err := json.Unmarshal(Quote(text), &got); err != nil || strings.ToValidUTF8(got, "\ufffd") != strings.ToValidUTF8(want, "\ufffd") {
			t.Errorf("Quote(Unquote(%s)) reads %q (%v), want %q", token, got, err, want)
		}
		if again := Unquote(Quote(text)); again != text && strings.ToValidUTF8(text, "") == text {
			t.Errorf("Unquote(Quote(%q)) = %q", text, again)
		}
	})
}

func TestValue(t *testing.T) {
	for raw, want := range map[string]string{
		" { \"b\" : [ 1 , -0.10e+5 ] , \"a\\u003c\" : null } ": `{"b":[1,-0.10e+5],"a<":null}`,
		`"\u003cb\u003e \u00e9 \ud800 \" \\"`:                  `"<b> é \ud800 \" \\"`,
		`["\\u003c", " , "]`:                                   `["\\u003c"," , "]`,
		`true`:                                                 `true`,
	} {
		if got := string(Value(json.RawMessage(raw))); got != want {
			t.Errorf("Value(%s) = %s, want %s", raw, got, want)
		}
	}
}

// Value returns the same JSON value.
func FuzzValue(f *testing.F) {
	f.Add([]byte(`{"a":[1,"\ud800<",null,1e400]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if rawjson.Check(raw) != nil {
			return
		}
		want, err := rawjson.Canonical(raw)
		if err != nil {
			return
		}
		got, err := rawjson.Canonical(Value(raw))
		if err != nil || string(got) != string(want) {
			t.Errorf("Value(%s) = %s (%v)", raw, Value(raw), err)
		}
	})
}

func TestArguments(t *testing.T) {
	for _, test := range []struct{ text, input, problem string }{
		{``, `{}`, ""},
		{" \n", `{}`, ""},
		{`null`, `{}`, ""},
		{` {"a": 1} `, `{"a": 1}`, ""},
		{`{"half": "` + "\xed\xa0\x80" + `"}`, `{"half": "\ud800"}`, ""},
		{`{"a":`, "", "The arguments are not valid JSON: unexpected end of JSON input at byte 5 of 5."},
		{`{"a" 1}`, "", "invalid character '1' after object key at byte 6 of 7."},
		{`{} {}`, "", "invalid character '{' after top-level value at byte 4 of 5."},
		{`{"a":1,"a":2}`, "", `key "a" appears twice in one object`},
		{`{"a":1e401}`, "", "exponent beyond 400"},
		{strings.Repeat(`{"a":`, 200) + "1" + strings.Repeat("}", 200), "", "nested more than 128 deep"},
		{strings.Repeat(`{"a":`, 20_000) + "1" + strings.Repeat("}", 20_000), "", "cannot be taken: nested more than 128 deep"},
		{strings.Repeat(`[`, 20_000), "", "cannot be taken: nested more than 128 deep"},
		{"{\"a\":\"\xff\"}", "", "not valid UTF-8"},
		{`[]`, "", "must be one JSON object, but an array was sent"},
		{`"{}"`, "", "must be one JSON object, but a string was sent"},
	} {
		raw := Quote(test.text)
		if strings.Contains(test.text, "\xff") {
			raw = json.RawMessage(`"` + strings.ReplaceAll(test.text, `"`, `\"`) + `"`)
		}
		n := &Node{reader: &Reader{}, raw: raw}
		input, problem := n.Arguments()
		if string(input) != test.input || !strings.Contains(problem, test.problem) || (problem == "") != (test.problem == "") {
			t.Errorf("arguments %.60q: got %q and %q, want %q and %q", test.text, input, problem, test.input, test.problem)
		}
	}
}

func TestParts(t *testing.T) {
	const data = "iVBORw0KGgo="
	for _, test := range []struct {
		block messages.Block
		want  Part
	}{
		{messages.Block{Type: "text", Text: "x"}, Part{Text: "x"}},
		{messages.Block{Type: "kind_of_the_future", Text: "x"}, Part{Text: "x"}},
		{messages.Block{Type: "kind_of_the_future"}, Part{Text: "[content omitted: kind_of_the_future]"}},
		{messages.Block{Type: "image", MimeType: "image/png", Data: data}, Part{Image: &Image{"png", data}}},
		{messages.Block{Type: "image", MimeType: "IMAGE/JPG", Data: data}, Part{Image: &Image{"jpeg", data}}},
		{messages.Block{Type: "image", MimeType: "image/webp", Data: "iVBO\r\nRw0KGgo="}, Part{Image: &Image{"webp", data}}},
		{messages.Block{Type: "image", MimeType: "image/svg+xml", Data: data}, Part{Text: "[image omitted: image/svg+xml]"}},
		{messages.Block{Type: "image", Data: data}, Part{Text: "[image omitted: of unknown type]"}},
		{messages.Block{Type: "image", MimeType: "image/png"}, Part{Text: "[image omitted: image/png, its data is not valid base64]"}},
		{messages.Block{Type: "image", MimeType: "image/png", Data: "a"}, Part{Text: "[image omitted: image/png, its data is not valid base64]"}},
		{messages.Block{Type: "audio", MimeType: "audio/wav", Data: data}, Part{Text: "[audio omitted: audio/wav]"}},
		{messages.Block{Type: "resource", Resource: &messages.Resource{Text: "body"}}, Part{Text: "body"}},
		{messages.Block{Type: "resource", Resource: &messages.Resource{Blob: data, MimeType: "image/png"}}, Part{Image: &Image{"png", data}}},
		{messages.Block{Type: "resource", Resource: &messages.Resource{Blob: data, MimeType: "application/pdf"}}, Part{Text: "[resource omitted: application/pdf]"}},
		{messages.Block{Type: "resource_link", URI: "file:///a", Name: "a"}, Part{Text: "[resource a file:///a]"}},
	} {
		if diff := cmp.Diff(test.want, part(test.block)); diff != "" {
			t.Errorf("%+v: -want +got\n%s", test.block, diff)
		}
	}
}

func TestRefusalNamesThePlace(t *testing.T) {
	for _, test := range []struct {
		message string
		read    func(root *Node)
		want    string
	}{
		{`"x"`, func(n *Node) { n.Get("a") }, "malformed_message: message: want an object, got a string"},
		{`[1]`, func(n *Node) { n.List()[0].Text() }, "malformed_message: message[0]: want a string, got a number"},
		{`{"a":[{"b":{}}]}`, func(n *Node) { n.Get("a").List()[0].Get("b").Get("c").Text() }, "malformed_message: a[0].b.c: want a string, got nothing"},
		{`{"a":[]}`, func(n *Node) { n.Get("a").First().Get("b").Text() }, "malformed_message: a: is empty"},
		{`{"a":1,"a":1}`, func(n *Node) { n.Get("a").Text() }, `malformed_message: message: key "a" appears twice in one object (byte 10)`},
		{`{"a":{"b":1,"b":1}}`, func(n *Node) { n.Get("a").Get("c") }, `malformed_message: a: key "b" appears twice in one object (byte 10)`},
		{`{"a":["` + "\xff" + `"]}`, func(n *Node) { n.Get("a").List()[0].Text() }, "malformed_message: a[0]: not valid UTF-8"},
		{`{"a":{"b":1e401}}`, func(n *Node) { n.Get("a").Bounded() }, "malformed_message: a: a number with an exponent beyond 400 before byte 10"},
		{`{"a":` + strings.Repeat("[", 1<<20), func(n *Node) { n.Get("a") }, "malformed_message: message: ends in the middle of a value, after 1048581 bytes"},
		{`{"role":7}`, func(n *Node) { n.Role("model") }, "malformed_message: role: want a string, got a number"},
		{`{"a":1,"b":2}`, func(n *Node) { n.Get("b").Text(); n.Get("a").Text() }, "malformed_message: b: want a string, got a number"},
	} {
		r, root := Read(json.RawMessage(test.message))
		test.read(root)
		if _, err := r.Calls(); err == nil || err.Error() != test.want {
			t.Errorf("%s: got %v, want %s", test.message, err, test.want)
		}
	}
}

// Parts of a message that no codec reads may be any JSON, however deep or odd.
func TestWhatIsNotReadCostsNothing(t *testing.T) {
	for _, odd := range []string{
		strings.Repeat("[", 200) + strings.Repeat("]", 200), strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000),
		`{"a":1,"a":2}`, `1e1000000`, "\"\xff\"",
	} {
		r, root := Read(json.RawMessage(`{"odd":` + odd + `,"list":[` + odd + `,{"text":"x","odd":` + odd + `}]}`))
		text := root.Get("list").List()[1].Get("text").Text()
		if _, err := r.Calls(); err != nil || text != "x" {
			t.Errorf("beside %.40s: got %q, %v", odd, text, err)
		}
	}
}
