package process

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/toolfleet/toolfleet/messages"
)

// A batch is watched during its run and afterwards through the binary: with toolfleet watch,
// with an external progress bar, and as the picture that docs/events.md shows.
func TestWatchingABatch(t *testing.T) {
	t.Parallel()
	dependOn(t, "../../../cmd", "../../../examples")
	p := newProcesses(t)
	p.ready("coordinator")
	p.ready("worker", "--tools", "../../../examples/tools.yaml")
	c := p.client()
	if _, err := c.Run(t.Context(), canonical("s", "before")); err != nil {
		t.Fatal(err)
	}
	lines, events := p.watcher("watch", "s", "--since", "1h"), p.watcher("watch", "s", "--since", "1h", "-o", "json")
	p.until("the watchers show the earlier batch, so they watch", func() bool {
		return strings.Contains(lines.out.String(), "before  completed") && strings.Contains(events.out.String(), `"reply"`)
	})
	// A watcher first reads the timeline of a new batch, which has no progress, and misses the
	// progress reports of that time. The import takes two seconds, so that later reports come.
	b := canonical("s", "turn-7", call{"lookup_order", `{"order_id":"A-1001"}`}, call{"import", `{"rows":10,"row_ms":200}`}, call{"nope", ""})
	if err := c.Submit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	bar := exec.Command("go", "run", "../../../examples/progress-bar", "s", "turn-7")
	bar.Env = append(bar.Environ(), "NATS_URL="+p.url)
	shown, err := bar.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, shown)
	}
	if last := "\r[" + strings.Repeat("#", 30) + "] completed\n"; !strings.HasSuffix(string(shown), last) {
		t.Errorf("the bar ends with %q, want %q", shown, last)
	}
	p.until("the watchers have seen the end", func() bool {
		return strings.Contains(lines.out.String(), "  ✗   2  nope: unknown_tool") && strings.Count(events.out.String(), `"reply"`) >= 2
	})
	for _, w := range []*watcher{lines, events} {
		if err := w.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if err := w.Wait(); err != nil {
			t.Errorf("after Ctrl-C: %v\n%s", err, w.talk)
		}
	}
	for _, want := range []string{"turn-7  call 1 import: running\n", "✗ turn-7  completed: 3 calls, 1 of them not ok", "  ✗   2  nope: unknown_tool"} {
		if !strings.Contains(lines.out.String(), want) {
			t.Errorf("without %q:\n%s", want, lines.out)
		}
	}
	var told []messages.Event
	for decoder := json.NewDecoder(bytes.NewReader([]byte(events.out.String()))); decoder.More(); {
		var e messages.Event
		if err := decoder.Decode(&e); err != nil {
			t.Fatal(err)
		}
		if e.Batch == b.ID {
			told = append(told, e)
		}
	}
	checkFeed(t, told, 3)
	var fractions []float64
	for _, e := range told {
		if e.Type == messages.EventProgress && e.Index == 1 {
			fractions = append(fractions, e.Progress.Fraction)
		}
	}
	if len(fractions) == 0 || fractions[len(fractions)-1] != 1 || !slices.IsSorted(fractions) {
		t.Errorf("the import told %v", fractions)
	}

	picture, stderr, code := p.exec("batch", "get", "turn-7", "--session", "s", "--timeline")
	if code != 0 {
		t.Fatal(stderr)
	}
	docs, err := os.ReadFile("../../../docs/events.md")
	if err != nil {
		t.Fatal(err)
	}
	_, shownInDocs, _ := strings.Cut(string(docs), "```\nbatch turn-7")
	shownInDocs, _, _ = strings.Cut(shownInDocs, "```")
	if got, want := shape(picture), shape("batch turn-7"+shownInDocs); got != want {
		t.Errorf("docs/events.md shows a picture of another shape than\n%s\nwhich is\n%s\nit has\n%s", picture, got, want)
	}
}

// watcher is a command that watches a session until it is stopped.
type watcher struct {
	*exec.Cmd
	out, talk *lockedBuffer
}

func (p *processes) watcher(args ...string) *watcher {
	p.t.Helper()
	path := binary(p.t)
	w := &watcher{exec.Command(path, args...), &lockedBuffer{}, &lockedBuffer{}}
	w.Env = append(w.Environ(), "NATS_URL="+p.url, "TOOLFLEET_CONFIG=none")
	w.Stdout, w.Stderr = w.out, w.talk
	if err := w.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = w.Process.Kill() })
	p.until("the watcher watches", func() bool { return strings.Contains(w.talk.String(), "watching session") })
	return w
}

var (
	bars     = regexp.MustCompile(`\|[ .?=0-9]*\|`)
	runs     = regexp.MustCompile(`[0-9a-f]{32}|[0-9]+(\.[0-9]+)?`)
	blanks   = regexp.MustCompile(` +`)
	workers  = regexp.MustCompile(`\bon \S+`)
	sessions = regexp.MustCompile(`of session \S+:`)
)

// shape removes from a picture the parts that differ from run to run.
func shape(picture string) string {
	for _, r := range []struct {
		re *regexp.Regexp
		to string
	}{{bars, "|bar|"}, {sessions, "of session S:"}, {workers, "on WORKER"}, {runs, "N"}, {regexp.MustCompile(`N (ms|s)\b`), "T"}, {regexp.MustCompile(`, trace N`), ""}, {blanks, " "}} {
		picture = r.re.ReplaceAllString(picture, r.to)
	}
	return strings.TrimSpace(picture)
}
