package approval

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/rawjson"
)

func TestLine(t *testing.T) {
	for _, tt := range []struct{ name, tool, input, want string }{
		{"sorted", "issue_refund", `{"order": "A-1001", "amount": 149.990}`, `issue_refund amount=149.990 order="A-1001"`},
		{"no arguments", "ping", `{}`, `ping`},
		{"every kind of value", "t", `{"a":[1,{"z":true,"b":null}],"n":-1e2,"o":{}}`, `t a=[1,{"b":null,"z":true}] n=-1e2 o={}`},
		{"digits are kept", "t", `{"n":9007199254740993.10}`, `t n=9007199254740993.10`},
		{"other writing systems", "t", `{"s":"Größe 東京 שלום привет नमस्ते 🎉"}`, `t s="Größe 東京 שלום привет नमस्ते 🎉"`},
		{"escapes that say nothing", "t", `{"s":"\u0041\/"}`, `t s="A/"`},
		{"another field", "t", `{"a":"1\" amount=\"5"}`, `t a="1\" amount=\"5"`},
		{"another field in a name", "t", `{"a=\"1\" b":2,"":3}`, `t ""=3 "a=\"1\" b"=2`},
		{"a name of digits keeps its direction", "t", `{"a":"ש","5":6}`, `t "\u0035"=6 a="ש"`},
		{"a name that starts with a quotation mark", "t", `{"\"5":6}`, `t "\u00225"=6`},
		{"names inside", "t", `{"a":{"5":"ש","b c":1}}`, `t a={"\u0035":"ש","b c":1}`},
		{"quotation marks that only look so", "t", `{"a":"1” b=“2"}`, `t a="1\u201d b=\u201c2"`},
		{"control", "t", "{\"a\":\"\\u0000\\u001b[2J\\n\\r\\t\\u007f\\u009b\"}", `t a="\u0000\u001b[2J\n\r\t\u007f\u009b"`},
		{"bidi", "t", "{\"a\":\"\u202eabc\u202c\u2066\u2069\u200e\u200f\u061c\"}", `t a="\u202eabc\u202c\u2066\u2069\u200e\u200f\u061c"`},
		{"unseen", "t", "{\"a\":\"x\u200b\u200d\ufeff\u00ad\u3164\u034f\ufe0f\u2800\U000e0041y\"}", `t a="x\u200b\u200d\ufeff\u00ad\u3164\u034f\ufe0f\u2800\udb40\udc41y"`},
		{"line separators", "t", "{\"a\":\"\u2028\u2029\u0085\u00a0\"}", `t a="\u2028\u2029\u0085\u00a0"`},
		{"halves of a pair", "t", `{"a":"\ud800x\udc00","b":"\ud83d\ude00","c":"\ufffd"}`, `t a="\ud800x\udc00" b="😀" c="\ufffd"`},
		{"combining marks", "t", "{\"a\":\"e\u0301\u0301\u0301\u0301 \u0338=1\u0338\"}", "t a=\"e\u0301\u0301\u0301\\u0301 \\u0338=1\\u0338\""},
		{"combining mark first", "t", "{\"a\":\"\u0338x\"}", `t a="\u0338x"`},
		{"a strange tool", "a b\n", `{}`, `"a b\n"`},
		{"no object", "t", `[1]`, `t (arguments that cannot be read: "[1]")`},
		{"no JSON", "t", "{\"a\n", `t (arguments that cannot be read: "{\"a\n")`},
		{"no UTF-8", "t", "{\"a\xff\":1}", `t (arguments that cannot be read: "{\"a\xff\":1}")`},
		{"twice", "t", `{"a":1,"a":2}`, `t (arguments that cannot be read: "{\"a\":1,\"a\":2}")`},
	} {
		if got := Line(tt.tool, json.RawMessage(tt.input)); got != tt.want {
			t.Errorf("%s: got\n%s\nwant\n%s", tt.name, got, tt.want)
		}
	}
}

// The note about left-out text stands outside the quotation marks, so no text in an argument
// can imitate it.
func TestLineLeavesOutTheMiddle(t *testing.T) {
	long := strings.Repeat("a", 500) + "END"
	got := Line("t", rawjson.MustMarshal(map[string]any{"s": long, "z": 1}))
	if want := `t s="` + long[:80] + `"...(343 characters left out)..."` + long[423:] + `" z=1`; got != want {
		t.Errorf("a long text: got\n%s\nwant\n%s", got, want)
	}
	got = Line("t", json.RawMessage(`{"n":`+strings.Repeat("9", 400)+`}`))
	if !strings.Contains(got, "99...(240 characters left out)...99") {
		t.Errorf("a long number: got %s", got)
	}
	got = Line("t", json.RawMessage(`{"list":[1`+strings.Repeat(",7", 1000)+`,2],"z":true}`))
	if !strings.HasPrefix(got, "t list=[1,7,") || !strings.Contains(got, "characters left out)...") || !strings.HasSuffix(got, ",7,2] z=true") {
		t.Errorf("a long list: got %s", got)
	}
	got = Line("t", json.RawMessage(`{"deep":`+strings.Repeat("[", 100)+"7"+strings.Repeat("]", 100)+`}`))
	if want := "t deep=[[[[[[...(189 characters left out)...]]]]]]"; got != want {
		t.Errorf("a deep list: got %s, want %s", got, want)
	}
	many := map[string]string{"a_first": "1", "z_last": "2"}
	for i := range 300 {
		many["m"+strings.Repeat("x", i%50)+string(rune('a'+i%26))] = long
	}
	got = Line("t", rawjson.MustMarshal(many))
	if !strings.HasPrefix(got, `t a_first="1" m`) || !strings.HasSuffix(got, ` z_last="2"`) || utf8.RuneCountInString(got) > 2*maxLine {
		t.Errorf("many arguments: got %d characters: %s", utf8.RuneCountInString(got), got)
	}
	if got := Line("t", json.RawMessage(`{"a":"x\"...(5 characters left out)...\"y"}`)); !strings.Contains(got, `x\"...(5`) {
		t.Errorf("a text that pretends: got %s", got)
	}
}

func FuzzLine(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":"\ud800\u202e"}`, "{\"\u202e\":1}", `{"a":[[[{"b":"c"}]]]}`, "\xff", `{"a":"` + strings.Repeat("x\u0301", 300) + `"}`} {
		f.Add("tool", []byte(s))
	}
	f.Fuzz(func(t *testing.T, tool string, input []byte) {
		got := Line(tool, input)
		if n := utf8.RuneCountInString(got); n > 2*maxLine {
			t.Errorf("Line(%q, %q) has %d characters", tool, input, n)
		}
		if !utf8.ValidString(got) {
			t.Errorf("Line(%q, %q) = %q is no UTF-8", tool, input, got)
		}
		for _, r := range got {
			if unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Variation_Selector) {
				t.Errorf("Line(%q, %q) = %q holds %U", tool, input, got, r)
			}
		}
		if again := Line(tool, input); again != got {
			t.Errorf("Line(%q, %q) = %q, and then %q", tool, input, got, again)
		}
		if bare := outside(got); strings.ContainsAny(bare, "\\<>;") {
			t.Errorf("Line(%q, %q) = %q: %q is outside of its quotes", tool, input, got, bare)
		}
	})
}

// outside returns a line without the text between quotation marks.
func outside(line string) string {
	var b strings.Builder
	in := false
	for i := 0; i < len(line); i++ {
		switch {
		case line[i] == '"':
			in = !in
		case in && line[i] == '\\':
			i++
		case !in:
			b.WriteByte(line[i])
		}
	}
	return b.String()
}

// BenchmarkLine shows inputs of a megabyte that are as expensive as possible, and a small one.
func BenchmarkLine(b *testing.B) {
	for name, input := range map[string]string{
		"small": `{"order":"A-1001","amount":149.99}`,
		"text":  `{"a":"` + strings.Repeat("\u202e", 1<<20/6) + `"}`,
		"deep":  `{"a":` + strings.Repeat("[", 100) + `"` + strings.Repeat("x", 1<<20) + `"` + strings.Repeat("]", 100) + `}`,
		"wide":  `{"a":[` + strings.Repeat("{},", 1<<20/3) + `1]}`,
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				Line("t", json.RawMessage(input))
			}
		})
	}
}
