package pipeline

import (
	"encoding/json"
	"fmt"
	"regexp"
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

// The kept parts are the text's own start and end, within the limit, and the counts are right.
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
		for _, trim := range []bool{false, true} { // a line break beside the marker belongs to the marker or to the text
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

func TestShrink(t *testing.T) {
	long := strings.Repeat("x", 5000)
	rows := func(n int) (rows []any) {
		for i := range n {
			rows = append(rows, map[string]any{"id": i, "name": "row"})
		}
		return rows
	}
	for _, tt := range []struct {
		name  string
		value any
		keep  schemas.Truncate
		has   []string // in the JSON that is left
	}{
		{"a long string leaves the rest alone", map[string]any{"stdout": long, "exit_code": 7}, "", []string{`"exit_code":7`, "[truncated - 0 more lines,"}},
		{"tail of a string", map[string]any{"a": long + "END"}, schemas.TruncateTail, []string{`END"`}},
		{"many rows", rows(500), "", []string{`[{"id":0,`, "more elements]"}},
		{"the last rows", rows(500), schemas.TruncateTail, []string{`"id":499,`, `["[truncated - `}},
		{"rows inside", map[string]any{"rows": rows(500), "total": 500}, "", []string{`"total":500`, "more elements]"}},
		{"two long strings share", []string{long, long}, "", []string{`["xxx`, `","xxx`}},
		{"many members", func() map[string]int {
			m := map[string]int{}
			for i := range 500 {
				m[fmt.Sprint("key", i)] = i
			}
			return m
		}(), "", []string{`"[truncated]":"`, ` members"`}},
		{"escapes", []string{strings.Repeat("\x01", 3000)}, "", []string{"[truncated - 0 more lines,"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const limit = 2000
			raw := rawjson.MustMarshal(tt.value)
			got, missing := shrink(raw, limit, tt.keep)
			if err := rawjson.Check(got); err != nil {
				t.Fatalf("the cut value is not JSON: %v\n%s", err, got)
			}
			if n := utf8.RuneCount(got); n > limit || n < limit/3 || missing.Chars == 0 || missing.Chars > len(raw) {
				t.Errorf("%d characters of %d left, %+v missing, limit %d", n, len(raw), missing, limit)
			}
			for _, want := range tt.has {
				if !strings.Contains(string(got), want) {
					t.Errorf("%q is not in\n%s", want, got)
				}
			}
		})
	}
}

// Whatever the value, what is left is JSON of the same type, and a value under the limit is
// untouched.
func FuzzShrink(f *testing.F) {
	f.Add([]byte(`{"a":["x",1e5,{"b":null}],"[truncated]":"é"}`), 20, 0)
	f.Add([]byte(`[[[[[["deep"]]]]]]`), 3, 2)
	f.Fuzz(func(t *testing.T, raw []byte, limit, mode int) {
		if rawjson.Check(raw) != nil || limit < 1 || limit > 1<<20 {
			return
		}
		keep := []schemas.Truncate{schemas.TruncateHead, schemas.TruncateMiddle, schemas.TruncateTail}[uint(mode)%3]
		got, missing := shrink(raw, limit, keep)
		if err := rawjson.Check(got); err != nil || rawjson.TypeOf(got) != rawjson.TypeOf(raw) {
			t.Fatalf("shrink(%q, %d) = %q: %v", raw, limit, got, err)
		}
		compact, err := rawjson.Canonical(raw)
		if err != nil {
			t.Fatal(err)
		}
		if utf8.RuneCount(compact) <= limit && (string(got) != string(raw) || missing.Chars != 0) {
			t.Fatalf("shrink(%q, %d) = %q, %+v: the value was within the limit, want it unchanged", raw, limit, got, missing)
		}
		// Numbers are not cut, and each marker adds at most 80 characters to the limit.
		if n := utf8.RuneCount(got); n > limit+rawjson.MaxDigits+80*(2+strings.Count(string(got), "[truncated")) {
			t.Fatalf("shrink(%.100q, %d) left %d characters: %q", raw, limit, n, got)
		}
	})
}

func TestTruncateBlocks(t *testing.T) {
	blocks := []messages.Block{
		{Type: "text", Text: "first\n"}, {Type: "image", Data: strings.Repeat("A", 100)}, {Type: "text", Text: "second\n"},
		{Type: "resource", Resource: &messages.Resource{URI: "u", Text: "third\n"}}, {Type: "text", Text: "fourth"},
	}
	o, missing := truncate(schemas.Tool{MaxOutput: 10, Truncate: schemas.TruncateTail}, messages.Outcome{Content: blocks})
	want := []messages.Block{
		{Type: "text", Text: "[truncated - 2 more lines, 15 characters]"}, blocks[1],
		{Type: "resource", Resource: &messages.Resource{URI: "u", Text: "rd\n"}}, blocks[4],
	}
	want[2].Resource.Text = "ird\n"
	if diff := cmp.Diff(want, o.Content); diff != "" {
		t.Errorf("blocks (-want +got):\n%s", diff)
	}
	if missing == nil || missing.Lines != 2 || missing.Chars != 15 {
		t.Errorf("missing %+v", missing)
	}
	if blocks[0].Text != "first\n" || blocks[3].Resource.Text != "third\n" {
		t.Error("the tool's own blocks were changed")
	}
}

func TestTruncateOutcome(t *testing.T) {
	limited := schemas.Tool{MaxOutput: 100}
	for _, o := range []messages.Outcome{messages.Text(strings.Repeat("\"", 100)), {Output: json.RawMessage(`[1,2]`)}} {
		if got, missing := truncate(limited, o); missing != nil || string(got.Output) != string(o.Output) {
			t.Errorf("%s was cut to %s", o.Output, got.Output)
		}
	}
	long := messages.Text(strings.Repeat("x", 1<<20))
	if got, missing := truncate(schemas.Tool{}, long); missing != nil || len(got.Output) != len(long.Output) {
		t.Error("cut without a limit")
	}
	if got, missing := truncate(limited, long); missing == nil || missing.Chars != 1<<20-100 || len(got.Output) > 200 {
		t.Errorf("cut to %d bytes, missing %+v", len(got.Output), missing)
	}
}
