package resultread

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

const ref = "0123456789abcdef"

// ask calls the tool on an outcome. It returns the tool's text, or the code of its error.
func ask(t *testing.T, whole messages.Outcome, input string) string {
	t.Helper()
	runner := New(func(_ context.Context, call tool.Call, ref string) (messages.Outcome, error) {
		switch {
		case ref != "0123456789abcdef" || call.Session != "s":
			return messages.Outcome{}, ErrUnknown
		case whole.Err != nil:
			return messages.Outcome{}, errors.New("the store is away")
		}
		return whole, nil
	})
	out, err := runner.Run(t.Context(), tool.Call{Session: "s", Input: json.RawMessage(input)})
	var own *messages.Error
	if errors.As(err, &own) {
		return string(own.Code)
	}
	text, isText := (messages.Outcome{Output: out.Value}).OutputString()
	if err != nil || !isText {
		t.Fatalf("%s: got %s, %v", input, out.Value, err)
	}
	return text
}

func TestRead(t *testing.T) {
	rows := messages.Outcome{Output: json.RawMessage(`{"rows":[{"id":1e400,"name":"ann"},{"id":2,"name":"bob"}],"note":"a\nb"}`)}
	blocks := messages.Outcome{Content: []messages.Block{
		{Type: "text", Text: "one"}, {Type: "image", MimeType: "image/png", Data: "AA=="}, {Type: "resource", Resource: &messages.Resource{Text: "two"}},
	}}
	for _, tt := range []struct {
		whole messages.Outcome
		input string
		want  string
	}{
		{messages.Text("äöü"), ``, "äöü\n[characters 0 to 3 of 3]"},
		{messages.Text("äöü"), `"offset":1,"limit":1`, "ö\n[characters 1 to 2 of 3; go on with offset 2]"},
		{messages.Text("äöü"), `"offset":3`, "\n[characters 3 to 3 of 3]"},
		{messages.Text("äöü"), `"offset":4`, "invalid_arguments"},
		{messages.Text("a\nERROR 1\nb\nERROR 2"), `"grep":"ERROR \\d"`, "2: ERROR 1\n4: ERROR 2\n\n[2 lines match; characters 0 to 22 of 22]"},
		{messages.Text("a"), `"grep":"("`, "invalid_arguments"},
		{messages.Text("a"), `"pointer":"/a"`, "invalid_arguments"},
		{messages.Text(`{"a":5}`), `"pointer":"/a"`, "5\n[characters 0 to 1 of 1]"},
		{rows, `"pointer":"/rows/0/id"`, "1e400\n[characters 0 to 5 of 5]"},
		{rows, `"pointer":"/note"`, "a\nb\n[characters 0 to 3 of 3]"},
		{rows, `"pointer":"/rows","grep":"bob"`, "8:     \"name\": \"bob\"\n\n[1 lines match; characters 0 to 21 of 21]"},
		{rows, `"pointer":"/none"`, "invalid_arguments"},
		{blocks, ``, "one\n[image image/png]\ntwo\n[characters 0 to 25 of 25]"},
		{messages.Failed("x", "y"), ``, "unavailable"},
	} {
		input := `{"ref":"` + ref + `"`
		if tt.input != "" {
			input += "," + tt.input
		}
		if got := ask(t, tt.whole, input+"}"); got != tt.want {
			t.Errorf("%s:\n got %q\nwant %q", input, got, tt.want)
		}
	}
	if got := ask(t, messages.Text("a"), `{"ref":"fedcba9876543210"}`); got != "unknown_ref" {
		t.Errorf("an unknown ref: got %q", got)
	}
}

// A model follows the offsets from page to page: it reads the whole result, and no page is
// cut.
func TestPagesAreWhole(t *testing.T) {
	var whole strings.Builder
	for i := range 4000 {
		fmt.Fprintf(&whole, "line %d ä\n", i)
	}
	for _, grep := range []string{"", ".*"} {
		var read strings.Builder
		for offset, pages := 0, 0; ; pages++ {
			input, _ := json.Marshal(map[string]any{"ref": ref, "offset": offset, "grep": grep})
			if grep == "" {
				input, _ = json.Marshal(map[string]any{"ref": ref, "offset": offset})
			}
			got := ask(t, messages.Text(whole.String()), string(input))
			if len([]rune(got)) > schemas.DefaultMaxOutput || pages > 20 {
				t.Fatalf("page %d has %d characters", pages, len([]rune(got)))
			}
			at := strings.LastIndex(got, "\n[")
			read.WriteString(got[:at])
			_, next, more := strings.Cut(got[at:], "go on with offset ")
			if !more {
				break
			}
			_, _ = fmt.Sscan(next, &offset)
		}
		want := whole.String()
		if grep != "" {
			want = ""
			for i, line := range strings.Split(whole.String(), "\n") {
				want += fmt.Sprintf("%d: %s\n", i+1, line)
			}
		}
		if read.String() != want {
			t.Errorf("grep %q: read %d bytes, want %d", grep, read.Len(), len(want))
		}
	}
}

func TestLongLines(t *testing.T) {
	line := strings.Repeat("x", 100_000) + "HERE" + strings.Repeat("ä", 100_000)
	got := ask(t, messages.Text(line), `{"ref":"`+ref+`","grep":"HERE"}`)
	if !strings.HasPrefix(got, "1: [...] xxx") || !strings.Contains(got, "HEREää") || len(got) > 2*maxLine {
		t.Errorf("got %d bytes: %.200s", len(got), got)
	}
}

func TestWanted(t *testing.T) {
	readable, own := schemas.Tool{Name: "a", Results: schemas.ResultsReadable}, schemas.Tool{Name: Name}
	if !Wanted([]schemas.Tool{readable}) || Wanted([]schemas.Tool{own}) || Wanted([]schemas.Tool{readable, own}) || Wanted(nil) {
		t.Error("want it for a tool with readable results, unless the name is taken")
	}
	if _, err := Promise().WithDefaults(); err != nil {
		t.Error(err)
	}
}
