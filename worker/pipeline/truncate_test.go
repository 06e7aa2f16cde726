package pipeline

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

func TestCut(t *testing.T) {
	lines := func(from, to int) (s string) {
		for i := from; i <= to; i++ {
			s += fmt.Sprintf("line %d\n", i)
		}
		return s
	}
	for _, tt := range []struct {
		name  string
		s     string
		limit int
		keep  schemas.Truncate
		want  string
	}{
		{"9,999 of 10,000", strings.Repeat("x", 9999), 10000, "", strings.Repeat("x", 9999)},
		{"the limit", strings.Repeat("ä", 10000), 10000, "", strings.Repeat("ä", 10000)},
		{"10,001", strings.Repeat("x", 10001), 10000, "", strings.Repeat("x", 10000) + "\n[truncated - 0 more lines, 1 characters]"},
		{"characters, not bytes", "äöüäöü", 4, schemas.TruncateHead, "äöüä\n[truncated - 0 more lines, 2 characters]"},
		{"head", lines(1, 5), 16, schemas.TruncateHead, "line 1\nline 2\n[truncated - 3 more lines, 21 characters]"},
		{"tail", lines(1, 5), 16, schemas.TruncateTail, "[truncated - 3 more lines, 21 characters]\nline 4\nline 5\n"},
		{"middle", lines(1, 5), 16, schemas.TruncateMiddle, "line 1\n[truncated - 3 more lines, 21 characters]\nline 5\n"},
		{"last line without its end", lines(1, 5) + "error", 8, schemas.TruncateTail, "[truncated - 4 more lines, 32 characters]\n 5\nerror"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, _ := cut(tt.s, tt.limit, tt.keep); got != tt.want {
				t.Errorf("cut(%.40q, %d, %q)\n got %q\nwant %q", tt.s, tt.limit, tt.keep, got, tt.want)
			}
		})
	}
}

var marker = regexp.MustCompile(`\[truncated - (\d+) more lines, (\d+) characters\]`)

// A text is cut: the kept parts are its own start and end, within the limit, and the counts in
// the marker are right.
func FuzzCut(f *testing.F) {
	f.Add("line 1\nline 2\nline 3\n", 10, 0)
	f.Add("äöü\n\xff\n🙂🙂🙂", 3, 2)
	f.Add("a", 0, 1)
	f.Fuzz(func(t *testing.T, s string, limit, mode int) {
		if limit < 0 || strings.Contains(s, "[truncated") {
			return
		}
		keep := []schemas.Truncate{schemas.TruncateHead, schemas.TruncateMiddle, schemas.TruncateTail}[uint(mode)%3]
		got, missing := cut(s, limit, keep)
		if utf8.ValidString(s) && !utf8.ValidString(got) {
			t.Fatalf("%q became invalid: %q", s, got)
		}
		at := marker.FindStringSubmatchIndex(got)
		if missing == (messages.Cut{}) {
			if got != s || utf8.RuneCountInString(s) > limit {
				t.Fatalf("%q of limit %d was left as %q", s, limit, got)
			}
			return
		}
		head, tail := got[:at[0]], got[at[1]:]
		if !strings.HasPrefix(s, head) {
			head = strings.TrimSuffix(head, "\n")
		}
		if !strings.HasSuffix(s, tail) {
			tail = strings.TrimPrefix(tail, "\n")
		}
		for _, trim := range []bool{false, true} { // a line break beside the marker may belong to the marker or to the text
			h, l := head, tail
			if trim {
				l = strings.TrimPrefix(tail, "\n")
			}
			for _, h := range []string{h, strings.TrimSuffix(h, "\n")} {
				chars := utf8.RuneCountInString(h) + utf8.RuneCountInString(l)
				if strings.HasPrefix(s, h) && strings.HasSuffix(s, l) && chars <= limit && len(h)+len(l) < len(s) {
					left := s[len(h) : len(s)-len(l)]
					if utf8.RuneCountInString(left) == missing.Chars && strings.Count(left, "\n") == missing.Lines &&
						got[at[2]:at[3]] == strconv.Itoa(missing.Lines) && got[at[4]:at[5]] == strconv.Itoa(missing.Chars) {
						return
					}
				}
			}
		}
		t.Fatalf("cut(%q, %d, %s) = %q, %+v: not the text's ends with the right counts", s, limit, keep, got, missing)
	})
}

// A JSON value is too long: it becomes an object that says so, names the whole value, and has
// its beginning.
func TestTruncateJSON(t *testing.T) {
	for name, value := range map[string]any{
		"a long member": map[string]any{"stdout": strings.Repeat("x", 5000), "exit_code": 7},
		"many rows":     slices.Repeat([]any{map[string]any{"id": "ä", "name": "row"}}, 500),
		"escapes":       []string{strings.Repeat("\x01", 3000)},
	} {
		for _, ref := range []string{"", "0123456789abcdef"} {
			const limit = 2000
			raw := rawjson.MustMarshal(value)
			got, missing := truncate(messages.Outcome{Output: raw}, limit, schemas.TruncateTail, ref)
			var object struct {
				Truncated  bool
				Characters int
				Ref, Head  string
			}
			if err := json.Unmarshal(got.Output, &object); err != nil || rawjson.Check(got.Output) != nil {
				t.Fatalf("%s: %v\n%s", name, err, got.Output)
			}
			total, head := utf8.RuneCount(raw), utf8.RuneCountInString(object.Head)
			if !object.Truncated || object.Characters != total || object.Ref != ref || !strings.HasPrefix(string(raw), object.Head) {
				t.Errorf("%s: got %s", name, got.Output)
			}
			if n := utf8.RuneCount(got.Output); n > limit || n < limit/2 || missing.Chars != total-head || missing.Ref != ref {
				t.Errorf("%s: %d characters of %d left, %d of them of the value, missing %+v", name, n, total, head, missing)
			}
		}
	}
}

// Each block is cut by itself. Short blocks stay whole, and media are not cut.
func TestTruncateBlocks(t *testing.T) {
	long := strings.Repeat("x", 900)
	text := func(s string) messages.Block { return messages.Block{Type: "text", Text: s} }
	blocks := []messages.Block{
		text("first"), {Type: "image", Data: long}, text(long),
		{Type: "resource", Resource: &messages.Resource{URI: "u", Text: long}}, text("last"),
	}
	o, missing := truncate(messages.Outcome{Content: blocks}, 609, schemas.TruncateTail, "0123456789abcdef")
	cut := "[truncated - 0 more lines, 600 characters; ref 0123456789abcdef]\n" + long[:300]
	want := []messages.Block{text("first"), blocks[1], text(cut), {Type: "resource", Resource: &messages.Resource{URI: "u", Text: cut}}, text("last")}
	if diff := cmp.Diff(want, o.Content); diff != "" {
		t.Errorf("blocks (-want +got):\n%s", diff)
	}
	if want := (messages.Cut{Chars: 1200, Ref: "0123456789abcdef"}); *missing != want {
		t.Errorf("missing %+v, want %+v", *missing, want)
	}
	if blocks[2].Text != long || blocks[3].Resource.Text != long {
		t.Error("the tool's own blocks were changed")
	}
	many, missing := truncate(messages.Outcome{Content: slices.Repeat(blocks[2:3], 100)}, 450, "", "")
	if last := many.Content[len(many.Content)-1].Text; len(many.Content) != 3 || last != "[truncated - 98 more blocks, 88200 characters]" || missing.Chars != 90_000-450 {
		t.Errorf("got %d blocks, the last is %q, missing %+v", len(many.Content), last, missing)
	}
	small := slices.Repeat([]messages.Block{text("12345")}, 5000)
	if many, missing = truncate(messages.Outcome{Content: small}, 10_000, "", ""); len(many.Content) != 2001 || missing.Chars != 15_000 {
		t.Errorf("got %d small blocks, missing %+v", len(many.Content), missing)
	}
}

// A cut output is no longer than the limit and its markers. An output within the limit stays
// as it is.
func FuzzTruncate(f *testing.F) {
	f.Add([]byte(`{"a":["x",1e5,{"b":null}],"[truncated]":"é"}`), "a\nb", 20, 0)
	f.Add([]byte(`"text"`), "\xff", 3, 2)
	f.Fuzz(func(t *testing.T, raw []byte, text string, limit, mode int) {
		if rawjson.Check(raw) != nil || limit < 1 || limit > 1<<20 {
			return
		}
		keep := []schemas.Truncate{schemas.TruncateHead, schemas.TruncateMiddle, schemas.TruncateTail}[uint(mode)%3]
		blocks := []messages.Block{{Type: "text", Text: text}, {Type: "text", Text: string(raw)}}
		for _, o := range []messages.Outcome{{Output: raw}, {Content: blocks}} {
			if fits(o, limit) {
				continue
			}
			got, missing := truncate(o, limit, keep, "")
			if missing.Chars == 0 {
				t.Fatalf("truncate(%q, %d) = %q: nothing is missing", raw, limit, got.Output)
			}
			if got.Output != nil && rawjson.Check(got.Output) != nil {
				t.Fatalf("truncate(%q, %d) = %q", raw, limit, got.Output)
			}
			kept := textOf(got.Output)
			for _, b := range got.Content {
				kept += b.Text
			}
			if n := utf8.RuneCountInString(kept); n > limit+3*80 {
				t.Fatalf("truncate(%q, %q, %d) left %d characters", raw, text, limit, n)
			}
		}
	})
}

func TestFits(t *testing.T) {
	for _, o := range []messages.Outcome{
		messages.Text(strings.Repeat("\"", 100)), messages.Text(strings.Repeat("ä", 100)), {Output: json.RawMessage(`[1,2]`)},
		{Content: []messages.Block{{Type: "text", Text: strings.Repeat("ä", 100)}, {Type: "image", Data: strings.Repeat("A", 500)}}},
	} {
		if !fits(o, 100) {
			t.Errorf("%s %v does not fit", o.Output, o.Content)
		}
	}
	for _, o := range []messages.Outcome{
		messages.Text(strings.Repeat("x", 101)), {Output: json.RawMessage(`[` + strings.Repeat("1,", 50) + `1]`)},
		{Content: []messages.Block{{Type: "text", Text: strings.Repeat("x", 60)}, {Type: "text", Text: strings.Repeat("x", 60)}}},
	} {
		if fits(o, 100) {
			t.Errorf("%s %v fits", o.Output, o.Content)
		}
	}
}
