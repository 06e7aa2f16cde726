package rootdir

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/base"
)

func TestResolve(t *testing.T) {
	real := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(real, link); err != nil {
		t.Fatal(err)
	}
	root, err := Open(link)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if root.Dir() != real {
		t.Errorf("dir is %s, want %s", root.Dir(), real)
	}
	for name, want := range map[string]string{
		"a": "a", "./a": "a", "a//b/": "a/b", "a/../b": "b", ".": ".", "...": "...", "..a": "..a", "~": "~",
		real: ".", real + "/a": "a", real + "/": ".", link + "/x/../a": "a", "%20%": "%20%", "50%": "50%", "a%2eb": "a%2eb", `a\b`: `a\b`,
	} {
		if got, err := root.Resolve(name); err != nil || got != want {
			t.Errorf("resolve %q: got %q, %v, want %q", name, got, err, want)
		}
	}
	for name, want := range map[string]messages.Code{
		"":                        base.CodeInvalidPath,
		"a\x00b":                  base.CodeInvalidPath,
		strings.Repeat("a", 4097): base.CodeInvalidPath,
		strings.Repeat("a/", 300): base.CodeInvalidPath,
		"..":                      base.CodePathOutsideRoot,
		"../a":                    base.CodePathOutsideRoot,
		"a/../../b":               base.CodePathOutsideRoot,
		"/":                       base.CodePathOutsideRoot,
		"/etc/passwd":             base.CodePathOutsideRoot,
		real + "2/a":              base.CodePathOutsideRoot,
		real + "/../x":            base.CodePathOutsideRoot,
		"~/.ssh/id_rsa":           base.CodePathOutsideRoot,
		`..\..\a`:                 base.CodePathOutsideRoot,
		"%2e%2e/a":                base.CodePathOutsideRoot,
		"..%2fa":                  base.CodePathOutsideRoot,
		"%252e%252e%252fa":        base.CodePathOutsideRoot,
		`..%5c..%5ca`:             base.CodePathOutsideRoot,
	} {
		_, err := root.Resolve(name)
		var told *messages.Error
		if !errors.As(err, &told) || told.Code != want {
			t.Errorf("resolve %.50q: got %v, want %s", name, err, want)
		} else if len(told.Message) > 600 {
			t.Errorf("resolve %.50q: the error is %d bytes long", name, len(told.Message))
		}
	}
}

// A folder becomes a link between the check of a path and the write: nothing is written
// through the link.
func TestAWriteEntersNoLink(t *testing.T) {
	root, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, name := range []string{".git", "sub/free"} {
		if err := os.MkdirAll(filepath.Join(root.Dir(), name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{"git": ".git", "sub/link": "free"} {
		if err := os.Symlink(to, filepath.Join(root.Dir(), name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"git/config", "sub/link/x", "sub/link/new/x"} {
		dir, err := root.folder(path, path)
		var told *messages.Error
		if !errors.As(err, &told) || told.Code != base.CodeChanged || !told.Retryable {
			t.Errorf("%s: got %v, %v", path, dir, err)
		}
	}
}
