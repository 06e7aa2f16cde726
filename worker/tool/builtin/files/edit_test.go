package files

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/base"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/rootdir"
)

func TestEdit(t *testing.T) {
	root := folder(t, map[string]string{"a.go": "package a\n\nfunc one() {\n\treturn 1\n}\n\nfunc two() {\n\treturn 2\n}\n"})
	got := text(t, root, "Edit", in{"file_path": "a.go", "old_string": "return 1", "new_string": "return 10"})
	want := "Edited a.go: 1 replacement. The file now reads:\n     1\tpackage a\n     2\t\n     3\tfunc one() {\n     4\t\treturn 10\n     5\t}\n     6\t\n     7\tfunc two() {\n"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	text(t, root, "Edit", in{"file_path": "a.go", "old_string": "return", "new_string": "panic", "replace_all": true})
	if got, want := get(t, root, "a.go"), "package a\n\nfunc one() {\n\tpanic 10\n}\n\nfunc two() {\n\tpanic 2\n}\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	text(t, root, "Edit", in{"file_path": "a.go", "old_string": get(t, root, "a.go"), "new_string": ""})
	if got := get(t, root, "a.go"); got != "" {
		t.Errorf("got %q, want an empty file", got)
	}
}

func TestEditRefuses(t *testing.T) {
	files := map[string]string{
		"a": "one\n\tindented line\nTwo\none\n", "mixed": "a\r\nb\nc\r\n", "many": strings.Repeat("x\n", 30), "over": "aaa",
		"block": "if a {\n\tb()\n}\n", "ro": "x",
	}
	root := folder(t, files)
	if err := os.Chmod(filepath.Join(root.Dir(), "ro"), 0o444); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		file, old, fresh string
		code             messages.Code
		says             string
	}{
		{"gone", "a", "b", base.CodeNotFound, "does not exist"},
		{"a", "one", "one", base.CodeNoChange, "same"},
		{"a", "one", "x", base.CodeAmbiguous, "2 times, at lines 1, 4."},
		{"many", "x", "y", base.CodeAmbiguous, "30 times, at lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, ..."},
		{"over", "aa", "b", base.CodeAmbiguous, "overlap, from line 1 on"},
		{"a", "    indented line", "x", base.CodeNoMatch, "only in white space starts at line 2"},
		{"block", "if a {\n  b()\n}", "x", base.CodeNoMatch, "only in white space starts at line 1"},
		{"a", "two", "x", base.CodeNoMatch, "upper and lower case starts at line 3"},
		{"mixed", "a\nb", "x", base.CodeNoMatch, "CRLF or LF) starts at line 1"},
		{"a", "     2\t\tindented line", "x", base.CodeNoMatch, "without the line numbers"},
		{"a", "Two\nthree", "x", base.CodeNoMatch, "first line is at line 3"},
		{"a", "nothing like it", "x", base.CodeNoMatch, "Not even its first line"},
		{"a", " \n \n", "x", base.CodeNoMatch, "Not even"},
		{"a", "", "x", messages.CodeInvalidArguments, "not be empty"},
		{"ro", "x", "y", base.CodePermissionDenied, "read-only"},
	} {
		told := refused(t, root, "Edit", in{"file_path": c.file, "old_string": c.old, "new_string": c.fresh}, c.code)
		if !strings.Contains(told.Message, c.says) {
			t.Errorf("%s %q: got %q, want it to say %q", c.file, c.old, told.Message, c.says)
		}
	}
	for name, want := range files {
		if got := get(t, root, name); got != want {
			t.Errorf("%s is now %q", name, got)
		}
	}
}

func TestEditKeepsLineEndsAndMode(t *testing.T) {
	root := folder(t, map[string]string{"crlf": "a\r\nb\r\nc\r\n", "mixed": "a\r\nb\nc\n"})
	name := filepath.Join(root.Dir(), "crlf")
	if err := os.Chmod(name, 0o751); err != nil {
		t.Fatal(err)
	}
	text(t, root, "Edit", in{"file_path": "crlf", "old_string": "a\nb\n", "new_string": "x\ny\nz\n"})
	if got, want := get(t, root, "crlf"), "x\r\ny\r\nz\r\nc\r\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	text(t, root, "Edit", in{"file_path": "crlf", "old_string": "x\r\ny", "new_string": "one"})
	if got, want := get(t, root, "crlf"), "one\r\nz\r\nc\r\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	text(t, root, "Edit", in{"file_path": "mixed", "old_string": "b\nc", "new_string": "d"})
	if got, want := get(t, root, "mixed"), "a\r\nd\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o751 {
		t.Errorf("mode is %v, want 0751", info.Mode())
	}
}

func TestEditNoticesAChangeByOthers(t *testing.T) {
	root := folder(t, map[string]string{"a": "one"})
	plan, err := editor{root}.plan(callOf(t, "Edit", in{"file_path": "a", "old_string": "one", "new_string": "two"}))
	if err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(root.Dir(), "a"), "one and more")
	_, err = root.Replace(plan.name, plan.rel, []byte(plan.apply()), plan.was)
	var told *messages.Error
	if !errors.As(err, &told) || told.Code != base.CodeChanged || !told.Retryable {
		t.Errorf("got %v, want %s, retryable", err, base.CodeChanged)
	}
	if got := get(t, root, "a"); got != "one and more" {
		t.Errorf("got %q", got)
	}
	wantNoTemps(t, root)
}

// Edit agrees with strings.Replace on random texts.
func TestEditAgreesWithReplace(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	pick := func(most int) string {
		var s strings.Builder
		for range random.IntN(most) {
			s.WriteString([]string{"a", "b", "\n", "é", " "}[random.IntN(5)])
		}
		return s.String()
	}
	done := 0
	for range 100_000 {
		text, old, fresh, all := pick(20), pick(4), pick(4), random.IntN(2) == 0
		if old != "" && checkEdit(t, text, old, fresh, all) {
			done++
		}
	}
	t.Logf("%d edits made", done)
}

// checkEdit compares one edit with strings.Replace, on a text with LF and on the same text
// with CRLF. It reports whether Edit made the edit.
func checkEdit(t testing.TB, text, old, fresh string, all bool) bool {
	t.Helper()
	n := 1
	if all {
		n = -1
	}
	want := strings.Replace(text, old, fresh, n)
	e, err := replaceText(text, old, fresh, all)
	times := strings.Count(text, old)
	switch {
	case err == nil:
		if got := e.apply(); got != want || len(got) != e.size() {
			t.Fatalf("%q, %q -> %q, all %v: got %q, want %q", text, old, fresh, all, got, want)
		}
		if !all && strings.Index(text, old) != strings.LastIndex(text, old) {
			t.Fatalf("%q, %q -> %q: made although ambiguous", text, old, fresh)
		}
		e.snippet(e.apply())
	case old == fresh, times == 0:
	case all || strings.Index(text, old) == strings.LastIndex(text, old):
		t.Fatalf("%q, %q -> %q, all %v: refused with %v", text, old, fresh, all, err)
	}
	if strings.Contains(text, "\n") && !strings.Contains(text+old+fresh, "\r") {
		c, crlfErr := replaceText(toCRLF(text), old, fresh, all)
		if fmt.Sprint(err) != fmt.Sprint(crlfErr) || err == nil && c.apply() != toCRLF(want) {
			t.Fatalf("%q with CRLF, %q -> %q: got %q, %v; with LF %v", text, old, fresh, c.apply(), crlfErr, err)
		}
	}
	return err == nil
}

func FuzzEdit(f *testing.F) {
	f.Add("a\nb\n", "a\n", "c", false)
	f.Add("a\r\nb\r\n", "\r", "", true)
	f.Add("     1\tx", "1\tx", "y", false)
	f.Fuzz(func(t *testing.T, text, old, fresh string, all bool) {
		if old == "" || crlfOnly(text) {
			return
		}
		checkEdit(t, text, old, fresh, all)
	})
}

// Many goroutines edit one file at once: in the end the file has every edit.
func TestConcurrentEditsAreAllMade(t *testing.T) {
	root := folder(t, map[string]string{"list": "end\n"})
	runner := tools.New(t, "Edit", root)
	var wg sync.WaitGroup
	for i := range 40 {
		call := callOf(t, "Edit", in{"file_path": "list", "old_string": "end\n", "new_string": fmt.Sprintf("line %d.\nend\n", i)})
		wg.Go(func() {
			if _, err := runner.Run(t.Context(), call); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	got := get(t, root, "list")
	for i := range 40 {
		if !strings.Contains(got, fmt.Sprintf("line %d.\n", i)) {
			t.Errorf("line %d is lost", i)
		}
	}
	wantNoTemps(t, root)
}

// wantNoTemps fails the test if temporary files are left.
func wantNoTemps(t testing.TB, root *rootdir.Root) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(root.Dir(), rootdir.TempPrefix+"*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}
