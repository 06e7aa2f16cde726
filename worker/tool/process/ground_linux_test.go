package process

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/sandbox"
)

// ground is where attacks happen: a sandbox with a working folder, and a folder outside of it
// with a key.
type ground struct {
	root, outside, key string
	tcp, unix          string // addresses that a command must not reach
	box                *sandbox.Box
	bare               bool // there is no namespace for process ids
}

const canary = "cnry-of-the-worker"

// newGround returns a ground. If bare, it behaves as on a machine that refuses namespaces.
func newGround(t *testing.T, bare bool) *ground {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	g := &ground{root: filepath.Join(dir, "root"), outside: filepath.Join(dir, "outside"), key: filepath.Join(dir, "outside", "worker.nk")}
	for _, name := range []string{filepath.Join(g.root, ".git", "hooks"), g.outside, filepath.Join(dir, "temp")} {
		if err := os.MkdirAll(name, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{g.key: canary, filepath.Join(g.outside, "file"): "untouched", filepath.Join(g.root, ".git", "config"): "untouched", filepath.Join(g.root, ".bashrc"): "untouched"} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	short, err := os.MkdirTemp("", "tf") // the path of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(short) })
	for _, l := range []struct {
		network, address string
		to               *string
	}{{"tcp", "127.0.0.1:0", &g.tcp}, {"unix", filepath.Join(short, "s"), &g.unix}} {
		listener, err := net.Listen(l.network, l.address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { listener.Close() })
		*l.to = listener.Addr().String()
		go func() {
			for {
				c, err := listener.Accept()
				if err != nil {
					return
				}
				t.Errorf("a command connected to %s", l.network)
				c.Close()
			}
		}()
	}
	m := sandbox.Local()
	if m.Landlock < 6 || !m.Seccomp {
		t.Skipf("this machine has Landlock with ABI %d, and seccomp: %v", m.Landlock, m.Seccomp)
	}
	g.bare = bare || !m.Namespaces.PID
	if bare {
		m.Namespaces, m.WhyNot = sandbox.Namespaces{}, "refused by the test"
	}
	policy := sandbox.Policy{
		Read: sandbox.SystemPaths(os.Getenv("HOME"), os.Getenv("PATH")), Write: []string{g.root}, Temp: filepath.Join(dir, "temp"), Hide: []string{g.key},
		Limit: sandbox.Bounds{Memory: 256 << 20, Processes: 200, FileSize: 8 << 20, Disk: 64 << 20},
	}
	for _, name := range sandbox.ProtectedPaths {
		policy.Protect = append(policy.Protect, filepath.Join(g.root, name))
	}
	if g.box, err = sandbox.NewOn(policy, m); err != nil {
		t.Fatal(err)
	}
	return g
}

// run runs a script in the sandbox. The script's environment variables say what to attack.
func (g *ground) run(t *testing.T, script string) (Result, string) {
	t.Helper()
	return g.runUntil(t, script, "")
}

// runUntil runs a script in the sandbox. It stops the script once it has printed enough; if
// enough is "", the script runs to its end.
func (g *ground) runUntil(t *testing.T, script, enough string) (Result, string) {
	t.Helper()
	ctx, stop := context.WithCancelCause(t.Context())
	defer stop(nil)
	var printed []byte
	t.Helper()
	host, port, _ := net.SplitHostPort(g.tcp)
	worker := os.Getpid()
	if !g.bare && worker < 1000 {
		worker = 1 << 22 // with its own process ids, a command may have the same low id as the worker
	}
	r, err := Run(ctx, Command{
		Args: []string{"bash", "-c", script}, Dir: g.root, Merge: true, Sandbox: g.box,
		OnStdout: func(chunk []byte) {
			if printed = append(printed, chunk...); enough != "" && strings.Contains(string(printed), enough) {
				stop(errStop)
			}
		},
		Env: []string{
			"PATH=/usr/bin:/bin:/usr/sbin:/sbin", "HOME=" + os.Getenv("HOME"), "OUT=" + g.outside, "KEY=" + g.key, "WORKER=" + fmt.Sprint(worker),
			"HOST=" + host, "PORT=" + port, "SOCKET=" + g.unix, "GIT_CONFIG_GLOBAL=/dev/null",
		},
	})
	if err != nil && !errors.Is(err, errStop) {
		t.Fatalf("%s: %v", script, err)
	}
	return r, string(printed)
}

// neighbour runs another call of the worker beside the attacks, with its own secret. The
// function that it returns ends this call, and fails the test if an attack has disturbed it.
func (g *ground) neighbour(t *testing.T) (unharmed func()) {
	t.Helper()
	dir := t.TempDir()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	policy := g.box.Policy
	policy.Write, policy.Temp, policy.Protect = []string{dir}, filepath.Join(dir, "temp"), nil
	m := sandbox.Local()
	if g.bare {
		m.Namespaces, m.WhyNot = sandbox.Namespaces{}, "refused by the test"
	}
	box, err := sandbox.NewOn(policy, m)
	if err != nil {
		t.Fatal(err)
	}
	started, ended := make(chan struct{}, 1), make(chan struct{})
	var result Result
	go func() {
		defer close(ended)
		result, err = Run(t.Context(), Command{
			Args: []string{"bash", "-c", `echo begun; read line; echo "got $line"`}, Dir: dir, StdinFile: r, Sandbox: box,
			Env: []string{"PATH=/usr/bin:/bin", "ANOTHER_TOOLS_SECRET=" + canary},
			OnStdout: func([]byte) {
				select {
				case started <- struct{}{}:
				default:
				}
			},
		})
	}()
	<-started
	return func() {
		fmt.Fprintln(w, "the end")
		w.Close()
		<-ended
		if out := string(result.Stdout.Bytes()); err != nil || out != "begun\ngot the end\n" {
			t.Errorf("another call of the worker: %s, %v, %q", result.Status(), err, out)
		}
	}
}

// names reports whether the plan lists something that is missing for a property.
func (g *ground) names(p sandbox.Property) bool {
	for _, m := range g.box.Plan.Missing {
		if m.Property == p {
			return true
		}
	}
	return false
}
