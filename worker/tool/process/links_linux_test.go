package process

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/sandbox"
)

// A command replaces a folder that another command may write to by a link: the sandbox of the
// other command does not open the link's target.
func TestAWritableFolderBecomesALink(t *testing.T) {
	needs(t, "bash")
	for name, bare := range map[string]bool{"with namespaces": false, "without namespaces": true} {
		t.Run(name, func(t *testing.T) {
			g := newGround(t, bare)
			state := filepath.Join(g.root, "a", "state")
			if err := os.MkdirAll(state, 0o755); err != nil {
				t.Fatal(err)
			}
			policy := g.box.Policy
			policy.Write = []string{state}
			m := sandbox.Local()
			if bare {
				m.Namespaces = sandbox.Namespaces{}
			}
			other, err := sandbox.NewOn(policy, m)
			if err != nil {
				t.Fatal(err)
			}
			if r, out := g.run(t, `mv a b && mkdir -p a && ln -s $OUT a/state`); r.ExitCode != 0 {
				t.Fatalf("%s: %s", r.Status(), out)
			}
			g.box = other
			if r, out := g.run(t, `echo x >$OUT/file || echo x >../outside/file || chmod 700 $OUT`); r.ExitCode == 0 && other.Plan.Spaces.Mount {
				t.Errorf("%s: %s", r.Status(), out)
			}
			if text, err := os.ReadFile(filepath.Join(g.outside, "file")); err != nil || string(text) != "untouched" {
				t.Errorf("the file outside: %q, %v", text, err)
			}
		})
	}
}

// A command replaces a folder that may be read by a link: neither the next command nor a
// worker that starts again gets access to the link's target.
func TestAReadablePathBecomesALink(t *testing.T) {
	needs(t, "bash")
	for name, bare := range map[string]bool{"with namespaces": false, "without namespaces": true} {
		t.Run(name, func(t *testing.T) {
			g := newGround(t, bare)
			dir := filepath.Dir(g.root)
			bin, loose, far, by := filepath.Join(g.root, "venv", "bin"), filepath.Join(dir, "loose", "lib"), filepath.Join(dir, "far"), filepath.Join(dir, "by")
			for _, name := range []string{bin, loose, far} {
				if err := os.MkdirAll(name, 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(name, "data"), []byte("to read"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			for link, to := range map[string]string{by: far, filepath.Join(dir, "into"): filepath.Dir(bin)} {
				if err := os.Symlink(to, link); err != nil {
					t.Fatal(err)
				}
			}
			policy, m := g.box.Policy, sandbox.Local()
			policy.Read = append(policy.Read, bin, loose, by, filepath.Join(dir, "into", "bin"))
			policy.Loose = []string{filepath.Dir(loose)}
			if bare {
				m.Namespaces = sandbox.Namespaces{}
			}
			begin := func() {
				t.Helper()
				box, err := sandbox.NewOn(policy, m)
				if err != nil {
					t.Fatal(err)
				}
				g.box = box
			}
			begin()
			if r, out := g.run(t, `cat venv/bin/data ../loose/lib/data ../far/data ../by/data && mv venv v && mkdir venv && ln -s $OUT venv/bin`); r.ExitCode != 0 {
				t.Fatalf("%s: %s", r.Status(), out)
			}
			if err := errors.Join(os.Rename(loose, loose+"2"), os.Symlink(g.outside, loose)); err != nil {
				t.Fatal(err)
			}
			const attack = `grep -q untouched $OUT/file && echo won; ls $OUT/ && echo won`
			if _, out := g.run(t, attack); strings.Contains(out, "won") {
				t.Errorf("the next command: %s", out)
			}
			begin()
			if _, out := g.run(t, attack); strings.Contains(out, "won") {
				t.Errorf("after a restart: %s", out)
			}
			if r, out := g.run(t, `cat ../by/data`); r.ExitCode != 0 {
				t.Errorf("a link that no command can change: %s, %s", r.Status(), out)
			}
		})
	}
}

// A hidden file is inside a writable folder: it stays hidden, because no folder above it can
// be renamed.
func TestAKeyInAWritableFolderStaysHidden(t *testing.T) {
	needs(t, "bash")
	if n := sandbox.Local().Namespaces; !n.Mount {
		t.Skipf("this machine has no namespaces: %s", sandbox.Local().WhyNot)
	}
	g := newGround(t, false)
	key := filepath.Join(g.root, "a", "b", "key")
	if err := errors.Join(os.MkdirAll(filepath.Dir(key), 0o755), os.WriteFile(key, []byte(canary), 0o644)); err != nil {
		t.Fatal(err)
	}
	policy := g.box.Policy
	policy.Hide = append(policy.Hide, key)
	box, err := sandbox.New(policy)
	if err != nil {
		t.Fatal(err)
	}
	g.box = box
	for range 2 {
		if _, out := g.run(t, `mv a/b/key k; mv a/b c; mv a d; echo x >a/free; grep -rq cnry . && echo won; [ -e a/free ] || echo cannot write`); strings.Contains(out, "won") || strings.Contains(out, "cannot write") {
			t.Error(out)
		}
	}
}
