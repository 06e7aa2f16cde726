package packages

import (
	"bytes"
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// language says how programs of a language are started, with our package from its source.
type language struct {
	name    string
	program func(testing.TB) string // returns the path of the interpreter
	tools   string
	client  string
	env     func(testing.TB) []string
}

var languages = []language{
	{"typescript", node, "tools.mjs", "live.mjs", func(t testing.TB) []string { return nil }},
	{"python", python, "tools.py", "live.py", func(t testing.TB) []string { return []string{"PYTHONDONTWRITEBYTECODE=1"} }},
}

// folder returns a folder with the programs of testdata and our two packages, so that the
// programs find them.
func folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.CopyFS(dir, os.DirFS("testdata")))
	must(t, os.CopyFS(filepath.Join(dir, "node_modules", "toolfleet"), os.DirFS("../../../clients/typescript")))
	must(t, os.CopyFS(filepath.Join(dir, "toolfleet"), os.DirFS("../../../clients/python/toolfleet")))
	return dir
}

// withNATS returns a folder as folder does, and adds the NATS client from packages.
func withNATS(t *testing.T, packages string) string {
	t.Helper()
	dir := folder(t)
	must(t, os.Symlink(filepath.Join(packages, "node_modules", "@nats-io"), filepath.Join(dir, "node_modules", "@nats-io")))
	return dir
}

// A client program and tools in the same language run with a real fleet. Calls that are sent
// together keep their order, and reads among them run together. A client that is killed and
// started again gets the result of the one run. With TOOLFLEET_ROUNDS=200 the test repeats the
// check of the order.
func TestLive(t *testing.T) {
	for _, l := range languages {
		t.Run(l.name, func(t *testing.T) {
			program, dir := l.program(t), folder(t)
			f := startFleet(t, "hold", program, filepath.Join(dir, l.tools))
			f.checkClient(t, program, append(l.env(t), "TOOLFLEET_URL="+f.url), filepath.Join(dir, l.client))
		})
	}
}

// The client program of TestLive works over NATS too, and each method of its client is called
// once.
func TestLiveOverNATS(t *testing.T) {
	dir := withNATS(t, installed(t))
	f := startFleet(t, "hold", node(t), filepath.Join(dir, "tools.mjs"))
	env := []string{"NATS_URL=" + f.nats}
	f.checkClient(t, node(t), env, filepath.Join(dir, "live.mjs"))
	must(t, os.Remove(filepath.Join(f.dir, "open")))
	cmd := exec.CommandContext(t.Context(), node(t), filepath.Join(dir, "nats.mjs"))
	cmd.Env, cmd.Stderr = append(os.Environ(), env...), t.Output()
	if out, err := cmd.Output(); err != nil || string(out) != "ok\n" {
		t.Errorf("%v\n%s", err, out)
	}
}

// checkClient runs a client program with the fleet and checks what it prints.
func (f fleet) checkClient(t *testing.T, program string, env []string, file string) {
	t.Helper()
	client := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), program, append([]string{file}, args...)...)
		cmd.Env, cmd.Stderr = append(os.Environ(), env...), t.Output()
		return cmd
	}
	rounds := cmp.Or(os.Getenv("TOOLFLEET_ROUNDS"), "5")
	for _, of := range []struct {
		args []string
		want string
	}{{[]string{"reads"}, "met,met,met"}, {[]string{"order", rounds}, rounds}} {
		out, err := client(of.args...).Output()
		if got := strings.TrimSpace(string(out)); err != nil || got != of.want {
			t.Errorf("%v: got %q and %v, want %q", of.args, got, err, of.want)
		}
	}
	runs := func() string { body, _ := os.ReadFile(filepath.Join(f.dir, "runs")); return string(body) }
	first := client("hold")
	must(t, first.Start())
	until(t, "the write runs", func() bool { return runs() != "" })
	must(t, first.Process.Kill())
	_ = first.Wait()
	var out bytes.Buffer
	second := client("hold")
	second.Stdout = &out
	must(t, second.Start())
	must(t, os.WriteFile(filepath.Join(f.dir, "open"), nil, 0o600))
	must(t, second.Wait())
	if got := strings.TrimSpace(out.String()); got != "held" {
		t.Errorf("the second client got %q", got)
	}
	if got := strings.Count(runs(), "\n"); got != 1 {
		t.Errorf("the write ran %d times", got)
	}
}

// The tests of our packages, in their own languages, pass.
func TestPackages(t *testing.T) {
	for _, of := range []struct {
		program func(testing.TB) string
		dir     string
		args    []string
	}{
		{node, "typescript", []string{"--test", "test/client.test.js", "test/repeat.test.js", "test/testing.test.js", "test/worker.test.js"}},
		{python, "python", []string{"-B", "-m", "unittest", "discover", "-s", "tests"}},
	} {
		t.Run(of.dir, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), of.program(t), of.args...)
			cmd.Dir = filepath.Join("../../../clients", of.dir)
			cmd.Env = append(os.Environ(), "PYTHONPATH=.")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
