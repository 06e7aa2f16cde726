package search

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/base"
)

func TestGrep(t *testing.T) {
	root := folder(t, map[string]string{
		"a.go": "package a\nfunc One() {}\nfunc Two() {}\n// end\n", "b/c.go": "func Three() {}\n", "b/d.txt": "func\r\nFUNC\r\n",
		".hidden": "func hidden", ".gitignore": "*.log\n", "x.log": "func", ".git/config": "func", "bin": "func\x00", "big": strings.Repeat("func\n", maxGrepFile/5+1), "café.md": "naïve func\n",
		"last": "one\ntwo", "min.js": strings.Repeat("a", 1000) + "func" + strings.Repeat("b", 1000),
	})
	const skipped = "[Skipped: 1 binary file, 1 file over 10 MB.]\n"
	for _, c := range []struct {
		args in
		want string
	}{
		{in{"pattern": "func"}, skipped + ".hidden\na.go\nb/c.go\nb/d.txt\ncafé.md\nmin.js\n"},
		{in{"pattern": "func", "path": "b"}, "b/c.go\nb/d.txt\n"},
		{in{"pattern": "func", "path": "b/d.txt"}, "b/d.txt\n"},
		{in{"pattern": "func", "path": "x.log"}, "x.log\n"},
		{in{"pattern": "func", "path": "bin"}, "[No matches. Skipped: 1 binary file.]\n"},
		{in{"pattern": "func", "glob": "*.go"}, "a.go\nb/c.go\n"},
		{in{"pattern": "func", "glob": "*.{go,txt}", "output_mode": "count"}, "a.go:2\nb/c.go:1\nb/d.txt:1\n"},
		{in{"pattern": "func", "glob": "b/*"}, "b/c.go\nb/d.txt\n"},
		{in{"pattern": "func", "glob": "./b/**"}, "b/c.go\nb/d.txt\n"},
		{in{"pattern": "func", "glob": "!*.go", "path": "b"}, "b/d.txt\n"},
		{in{"pattern": "func", "glob": "c.*", "path": "b"}, "b/c.go\n"},
		{in{"pattern": "^func$", "path": "b", "output_mode": "content"}, "b/d.txt:1:func\n"},
		{in{"pattern": "^func$", "path": "b", "output_mode": "content", "case_insensitive": true}, "b/d.txt:1:func\nb/d.txt:2:FUNC\n"},
		{in{"pattern": "Two", "output_mode": "content", "glob": "*.go", "context": 1}, "a.go-2-func One() {}\na.go:3:func Two() {}\na.go-4-// end\n"},
		{in{"pattern": "Two", "output_mode": "content", "glob": "*.go", "before": 2, "after": 0}, "a.go-1-package a\na.go-2-func One() {}\na.go:3:func Two() {}\n"},
		{in{"pattern": "package|end", "output_mode": "content", "glob": "*.go", "after": 1}, "a.go:1:package a\na.go-2-func One() {}\n--\na.go:4:// end\n"},
		{in{"pattern": "package|Two", "output_mode": "content", "glob": "*.go", "context": 1}, "a.go:1:package a\na.go-2-func One() {}\na.go:3:func Two() {}\na.go-4-// end\n"},
		{in{"pattern": "One.*Two", "glob": "*.go"}, "[No matches. Skipped: 1 path in .gitignore.]\n"},
		{in{"pattern": "One.*?Two", "glob": "*.go", "multiline": true, "output_mode": "content"}, "a.go:2:func One() {}\na.go:3:func Two() {}\n"},
		{in{"pattern": "func", "head_limit": 2}, "[The first 2 files; there are more. Narrow the search or raise head_limit.]\n.hidden\na.go\n"},
		{in{"pattern": "func", "head_limit": 2, "path": "a.go", "output_mode": "content"}, "a.go:2:func One() {}\na.go:3:func Two() {}\n"},
		{in{"pattern": "func", "head_limit": 1, "path": "a.go", "output_mode": "content"}, "[The first 1 line; there are more. Narrow the search or raise head_limit.]\na.go:2:func One() {}\n"},
		{in{"pattern": "ï", "output_mode": "content"}, skipped + "café.md:1:naïve func\n"},
		{in{"pattern": "two$", "path": "last", "output_mode": "content"}, "last:2:two\n"},
		{in{"pattern": "func", "path": "min.js", "output_mode": "content"},
			"min.js:1:[875 bytes] ... " + strings.Repeat("a", 125) + "func" + strings.Repeat("b", 371) + " ... [629 bytes]\n"},
		{in{"pattern": "func", "path": ".git"}, "[No matches.]\n"},
	} {
		if got := text(t, root, "Grep", c.args); got != c.want {
			t.Errorf("%v:\n got %q\nwant %q", c.args, got, c.want)
		}
	}
	for _, c := range []struct {
		args in
		want messages.Code
	}{
		{in{"pattern": "("}, base.CodeInvalidPattern},
		{in{"pattern": `(a)\1`}, base.CodeInvalidPattern},
		{in{"pattern": "(?=a)"}, base.CodeInvalidPattern},
		{in{"pattern": "a", "glob": "{"}, base.CodeInvalidPattern},
		{in{"pattern": strings.Repeat("a", 1001)}, messages.CodeTooLarge},
		{in{"pattern": strings.Repeat("(a{1000})", 30)}, messages.CodeTooLarge},
		{in{"pattern": "a", "path": "gone"}, base.CodeNotFound},
		{in{"pattern": "a", "path": ".."}, base.CodePathOutsideRoot},
		{in{"pattern": "a", "output_mode": "lines"}, messages.CodeInvalidArguments},
		{in{"pattern": "a", "context": 101}, messages.CodeInvalidArguments},
		{in{"pattern": "a", "head_limit": 0}, messages.CodeInvalidArguments},
	} {
		refused(t, root, "Grep", c.args, c.want)
	}
}

// Grep searches files in parallel: its answer is the same in whatever order the files are
// finished.
func TestGrepOrderIsStable(t *testing.T) {
	files := map[string]string{}
	for i := range 500 {
		files[fmt.Sprintf("d%d/f%03d", i%7, i)] = strings.Repeat("filler\n", i*i%300) + "needle\n"
	}
	root := folder(t, files)
	first := text(t, root, "Grep", in{"pattern": "needle", "head_limit": 10_000, "output_mode": "content"})
	if n := strings.Count(first, "\n"); n != 500 {
		t.Fatalf("%d lines, want 500", n)
	}
	for range 5 {
		if again := text(t, root, "Grep", in{"pattern": "needle", "head_limit": 10_000, "output_mode": "content"}); again != first {
			t.Fatal("another answer the second time")
		}
	}
	part := text(t, root, "Grep", in{"pattern": "needle", "head_limit": 130, "output_mode": "content"})
	_, part, _ = strings.Cut(part, "\n")
	if !strings.HasPrefix(first, part) {
		t.Error("the first lines are not the first lines of all")
	}
}

// A search with a slow pattern in a long text ends when its context ends, even in the middle
// of a match.
func TestSlowSearchEndsWithItsContext(t *testing.T) {
	slow, err := newExpression(strings.Repeat("(x+x+)+", 60)+"y", false, false)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	cancel(stop)
	for _, multiline := range []bool{false, true} {
		s := searcher{expression: slow, multiline: multiline}
		if _, err := s.file(ctx, "f", []byte(strings.Repeat("x", maxGrepFile)+"y"), 10); !errors.Is(err, stop) {
			t.Errorf("got %v, want the cause", err)
		}
	}
	if at := slow.find(ctx, []byte(strings.Repeat("x", maxGrepFile))); at != nil {
		t.Errorf("found %v", at)
	}
	root := folder(t, map[string]string{"a/f": "x"})
	for name, args := range map[string]in{"Grep": {"pattern": "x"}, "Glob": {"pattern": "**"}} {
		runner := tools.New(t, name, root)
		if _, err := runner.Run(ctx, callOf(t, name, args)); !errors.Is(err, stop) {
			t.Errorf("%s: got %v, want the cause", name, err)
		}
	}
}

// A search over text in memory and one over a reader find the same.
func TestSlowSearchFindsTheSame(t *testing.T) {
	text := []byte(strings.Repeat("lorem ipsum\n", 1000) + "dolor sit\namet\n")
	for _, pattern := range []string{"dolor", "sit\\namet", "^amet$", "(?i)DOLOR", "nothing", "m\\b"} {
		e, err := newExpression(pattern, false, true)
		if err != nil {
			t.Fatal(err)
		}
		fast := e.find(t.Context(), text)
		e.cost = slowSearch
		if slow := e.find(t.Context(), text); !slices.Equal(fast, slow) {
			t.Errorf("%s: %v by text, %v by reader", pattern, fast, slow)
		}
	}
}

func TestMultilineStartOfText(t *testing.T) {
	root := folder(t, map[string]string{"f": "a\nb\na\n"})
	for pattern, want := range map[string]string{`\Aa`: "f:1:a\n", `^a`: "f:1:a\nf:3:a\n", `\Ab`: "[No matches.]\n", `a\nb`: "f:1:a\nf:2:b\n", `a$`: "f:1:a\nf:3:a\n", `\z`: "f:3:a\n"} {
		if got := text(t, root, "Grep", in{"pattern": pattern, "multiline": true, "output_mode": "content"}); got != want {
			t.Errorf("%s: got %q, want %q", pattern, got, want)
		}
	}
}

// Grep finds the same as the program grep in single lines, and the same as rg, if it is
// installed, in a whole tree.
func TestGrepAgreesWithGrep(t *testing.T) {
	grep, err := exec.LookPath("grep")
	if err != nil {
		t.Skip("no grep here to compare with")
	}
	lines := "alpha beta\nBETA\n\n  indented\nfoo(bar)\nx1y22\nend"
	root := folder(t, map[string]string{"f": lines})
	for _, pattern := range []string{"beta", "a", "e(ta|nd)", "^$", "[0-9]+", "a.*a", "^ +", `\(bar\)$`, "(foo|end)", "."} {
		cmd := exec.Command(grep, "-nE", pattern, filepath.Join(root.Dir(), "f"))
		cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
		want, err := cmd.Output()
		if err != nil {
			t.Fatalf("grep %s: %v", pattern, err)
		}
		got := text(t, root, "Grep", in{"pattern": pattern, "path": "f", "output_mode": "content"})
		if got = strings.ReplaceAll("\n"+got, "\nf:", "\n")[1:]; got != string(want) {
			t.Errorf("%s: got %q, grep says %q", pattern, got, want)
		}
	}
}

func TestGrepAgreesWithRipgrep(t *testing.T) {
	rg, err := exec.LookPath("rg")
	if err != nil {
		t.Skip("no rg here to compare with")
	}
	root := folder(t, map[string]string{".gitignore": "*.log\n/out/\n", "a": "x\n", "b.log": "x\n", "out/c": "x\n", "d/out/e": "x\nx\n", ".h/f": "x\n", "g": "y\n"})
	cmd := exec.Command(rg, "--no-config", "--hidden", "--no-require-git", "--sort=path", "-c", "x", ".")
	cmd.Dir = root.Dir()
	want, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	got := text(t, root, "Grep", in{"pattern": "x", "output_mode": "count"})
	if want := strings.ReplaceAll(string(want), "./", ""); got != want {
		t.Errorf("got %q, rg says %q", got, want)
	}
}
