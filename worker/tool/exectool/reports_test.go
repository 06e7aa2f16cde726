package exectool

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/messages"
)

func TestReportLines(t *testing.T) {
	for _, test := range []struct {
		line string
		want messages.Progress
		ok   bool
	}{
		{`{"fraction":0.4,"text":"two of five"}`, messages.Progress{Fraction: 0.4, Text: "two of five"}, true},
		{`  {"fraction":1}` + "\r", messages.Progress{Fraction: 1}, true},
		{`{"text":"halfway","eta":"soon"}`, messages.Progress{Text: "halfway"}, true},
		{"reading the table", messages.Progress{Text: "reading the table"}, true},
		{"40%", messages.Progress{Text: "40%"}, true},
		{"caf\xe9", messages.Progress{Text: "caf\uFFFD"}, true},
		{"", messages.Progress{}, false},
		{" \t", messages.Progress{}, false},
		{`{}`, messages.Progress{}, false},
		{`{"fraction":0}`, messages.Progress{}, false},
		{`{"fraction":-0.1}`, messages.Progress{}, false},
		{`{"fraction":1.1,"text":"more than all"}`, messages.Progress{}, false},
		{`{"fraction":"0.4"}`, messages.Progress{}, false},
		{`{"fraction":1e999}`, messages.Progress{}, false},
		{`{"fraction":0.4`, messages.Progress{}, false},
		{`{"fraction":0.4} {"fraction":0.5}`, messages.Progress{}, false},
		{"{\"text\":\"\xff\"}", messages.Progress{}, false},
	} {
		got, ok := report([]byte(test.line))
		if ok != test.ok || ok && got != test.want {
			t.Errorf("report(%q): got %+v, %v; want %+v, %v", test.line, got, ok, test.want, test.ok)
		}
	}
}

// A program writes very many progress lines: only the last ones are read, each of them whole.
func TestReportsOfAFlood(t *testing.T) {
	var got []string
	r := newReports(func(p messages.Progress) { got = append(got, p.Text) })
	r.Add([]byte("begins"))
	var flood strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&flood, " %d\n", i)
	}
	r.Add([]byte(flood.String() + "the next"))
	r.Add([]byte(" line\n"))
	var want []string
	for i := range linesAtOnce {
		want = append(want, fmt.Sprint(10_000-linesAtOnce+i))
	}
	if diff := cmp.Diff(append(want, "the next line"), got); diff != "" {
		t.Error(diff)
	}
	got = nil
	r.Add([]byte("as many\n" + strings.Repeat("x\n", linesAtOnce-1)))
	if len(got) != linesAtOnce || got[0] != "as many" {
		t.Errorf("of %d lines %d were read, the first %q", linesAtOnce, len(got), got[0])
	}
}

func FuzzReports(f *testing.F) {
	f.Add([]byte("{\"fraction\":0.4}\nwords\n"), 3)
	f.Add(bytes.Repeat([]byte("x"), 3*maxReport), 100)
	f.Fuzz(func(t *testing.T, written []byte, size int) {
		size = max(1, min(size, 1<<10))
		lines := bytes.Count(written, []byte("\n")) + 1
		r := newReports(func(p messages.Progress) {
			if math.IsNaN(p.Fraction) || p.Fraction < 0 || p.Fraction > 1 || len(p.Text) > 3*maxReport {
				t.Errorf("got the report %+v, which is out of bounds", p)
			}
			lines--
		})
		for part := range slicesOf(written, size) {
			r.Add(part)
			if len(r.line) > maxReport {
				t.Fatalf("%d bytes are held of a line", len(r.line))
			}
		}
		r.Flush()
		if lines < 0 {
			t.Error("there are more reports than lines")
		}
	})
}

// slicesOf yields b in pieces of at most size bytes.
func slicesOf(b []byte, size int) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(b) > 0 {
			n := min(size, len(b))
			if !yield(b[:n]) {
				return
			}
			b = b[n:]
		}
	}
}

// Progress lines arrive in pieces that end anywhere, and the last line may have no line break:
// each line is read whole.
func TestReportsInPieces(t *testing.T) {
	written := "{\"fraction\":0.5}\nhalfway\n\n" + strings.Repeat("x", maxReport+1) + "\n" + strings.Repeat("y", maxReport) + "\nthe rest"
	want := []messages.Progress{{Fraction: 0.5}, {Text: "halfway"}, {Text: strings.Repeat("y", maxReport)}, {Text: "the rest"}}
	for _, size := range []int{1, 7, 4096, len(written)} {
		var got []messages.Progress
		r := newReports(func(p messages.Progress) { got = append(got, p) })
		for part := range slicesOf([]byte(written), size) {
			r.Add(part)
		}
		r.Flush()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("in pieces of %d bytes:\n%s", size, diff)
		}
	}
}

// runScript runs a script and returns its progress reports beside its output.
func runScript(t *testing.T, body string) (reports []messages.Progress, output string) {
	t.Helper()
	c := call(`{}`)
	c.Progress = func(p messages.Progress) { reports = append(reports, p) }
	out, err := script(t, body, nil).Run(t.Context(), c)
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return reports, string(out.Value)
}

func TestProgressOfAProgram(t *testing.T) {
	for _, test := range []struct {
		body string
		want []messages.Progress
	}{
		{`echo '{"fraction":0.5,"text":"half"}' >&$TOOLFLEET_PROGRESS_FD`, []messages.Progress{{Fraction: 0.5, Text: "half"}}},
		{`printf 'no end' >&3`, []messages.Progress{{Text: "no end"}}},
		{`true`, nil},
		{`exec 3>&-; true`, nil},
		{`echo nothing >/dev/null 3>&-`, nil},
		// The program writes far more than a pipe holds: a slow reader does not block it.
		{`head -c 1000000 /dev/zero | tr '\000' x >&3; echo >&3; echo end >&3`, []messages.Progress{{Text: "end"}}},
		// The call ends although a process in the background still holds the descriptor.
		{`sleep 1000 & echo last >&3`, []messages.Progress{{Text: "last"}}},
		{`setsid sh -c 'exec </dev/null >/dev/null 2>&1; sleep 1000' & echo last >&3`, []messages.Progress{{Text: "last"}}},
	} {
		reports, output := runScript(t, test.body+"\nprintf out")
		if diff := cmp.Diff(test.want, reports); diff != "" || output != `"out"` {
			t.Errorf("%s: printed %s\n%s", test.body, output, diff)
		}
	}
}

func TestProgressLeavesNoDescriptorOpen(t *testing.T) {
	open := func() int {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip("no /proc here")
		}
		return len(fds)
	}
	runScript(t, "echo one >&3")
	before := open()
	for range 20 {
		runScript(t, "echo one >&3")
	}
	if after := open(); after > before {
		t.Errorf("%d descriptors are open, %d were before", after, before)
	}
}
