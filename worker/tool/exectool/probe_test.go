package exectool

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// asks returns a probe whose program is this shell script, and the path of the script.
func asks(t *testing.T, body string, timeout time.Duration, env ...string) (*Probe, string) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "probe")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body), 0o700); err != nil {
		t.Fatal(err)
	}
	p, err := NewProbe(Config{Command: []string{"./probe"}, Dir: dir, Env: env}, timeout)
	if err != nil {
		t.Fatal(err)
	}
	return p, path
}

func TestProbeAnswers(t *testing.T) {
	half := strings.Repeat("1", maxOutput/2)
	for _, test := range []struct {
		body    string
		applied bool
		output  string // "": the answer is that it is not known
	}{
		{`echo not_done`, false, ""},
		{`printf not_done`, false, ""},
		{`echo not_done; echo more`, false, ""},
		{`echo done`, true, ""},
		{`printf done`, true, ""},
		{`printf 'done\r\n'`, true, ""},
		{`echo done; echo words >&2`, true, ""},
		{`printf 'done\n{"id":9007199254740993}\n'`, true, `{"id":9007199254740993}`},
		{`printf 'done\nplain text\n'`, true, `"plain text\n"`},
		{`printf 'done\n\n'`, true, `"\n"`},
		{`echo done; cat`, true, `{"n":1}`},
		{fmt.Sprintf(`echo done; head -c %d /dev/zero | tr '\000' 1`, maxOutput),
			true, fmt.Sprintf(`"%s\n[... 5 bytes left out ...]\n%s"`, half[5:], half)},
	} {
		p, _ := asks(t, test.body, time.Minute)
		got, err := p.Probe(t.Context(), call(`{"n":1}`))
		if err != nil || got.Applied != test.applied || string(got.Output.Value) != test.output {
			t.Errorf("%s: got %v %.200s, %v", test.body, got.Applied, got.Output.Value, err)
		}
	}
}

func TestProbeThatDoesNotKnow(t *testing.T) {
	for _, test := range []struct{ body, want string }{
		{`true`, `probe ./probe: its first line is ""; want done or not_done`},
		{`echo; echo done`, `probe ./probe: its first line is ""; want done or not_done`},
		{`echo maybe`, `probe ./probe: its first line is "maybe"; want done or not_done`},
		{`echo done deal`, `probe ./probe: its first line is "done deal"; want done or not_done`},
		{`echo DONE`, `probe ./probe: its first line is "DONE"; want done or not_done`},
		{`head -c 6000000 /dev/zero | tr '\000' x`, `probe ./probe: its first line is "` + strings.Repeat("x", 80) + `"; want done or not_done`},
		{`echo done; exit 1`, `probe ./probe: exit status 1`},
		{`echo not_done; echo no database >&2; exit 75`, `probe ./probe: exit status 75 no database`},
		{`echo done; kill -KILL $$`, `probe ./probe: signal: killed`},
	} {
		p, _ := asks(t, test.body, time.Minute)
		got, err := p.Probe(t.Context(), call(`{}`))
		if err == nil || err.Error() != test.want || got.Applied {
			t.Errorf("%s: got %+v, %v, want %s", test.body, got, err, test.want)
		}
	}
}

// A probe is asked about a run, so it gets the same input and environment as the run. It
// cannot report progress.
func TestProbeSeesWhatTheRunSaw(t *testing.T) {
	t.Setenv("DB_URL", "db")
	const body = `printf 'done\n'; cat; pwd; env | grep -v -e TOOLFLEET_PROCESS_TREE -e TOOLFLEET_PROGRESS_FD -e '^_=' | sort`
	c := call(`{"n":1}`)
	c.Index, c.Attempt, c.Fence, c.IdempotencyKey = 3, 2, 77, "key"
	if p, _ := asks(t, `[ -z "$TOOLFLEET_PROGRESS_FD" ] && [ ! -e /proc/self/fd/3 ] && echo done || echo not_done`, time.Minute); p != nil {
		if got, err := p.Probe(t.Context(), c); err != nil || !got.Applied {
			t.Errorf("a probe was given a descriptor for progress: %+v, %v", got, err)
		}
	}
	p, path := asks(t, body, time.Minute, "DB_URL")
	probed, err := p.Probe(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	run, err := New(Config{Command: []string{"sh", "-c", strings.TrimPrefix(body, `printf 'done\n'; `)}, Dir: filepath.Dir(path), Env: []string{"DB_URL"}})
	if err != nil {
		t.Fatal(err)
	}
	ran, err := run.Run(t.Context(), c)
	if err != nil || !strings.Contains(string(ran.Value), "TOOLFLEET_FENCE=77") {
		t.Fatalf("got %s, %v", ran.Value, err)
	}
	if diff := cmp.Diff(string(ran.Value), string(probed.Output.Value)); diff != "" {
		t.Error(diff)
	}
}

func TestProbeEndsInItsTime(t *testing.T) {
	p, _ := asks(t, `echo done; sleep 1000`, 20*time.Millisecond)
	got, err := p.Probe(t.Context(), call(`{}`))
	if err == nil || err.Error() != "probe ./probe: it did not end in 20ms" || got.Applied {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestProbeThatIsMissing(t *testing.T) {
	if _, err := NewProbe(Config{Command: []string{"./gone"}, Dir: t.TempDir()}, time.Minute); err == nil || err.Error() != "exec: program ./gone: no such file" {
		t.Errorf("got %v", err)
	}
	p, path := asks(t, `echo done`, time.Minute)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if got, err := p.Probe(t.Context(), call(`{}`)); err == nil || !strings.Contains(err.Error(), "no such file") || got.Applied {
		t.Errorf("got %+v, %v", got, err)
	}
}
