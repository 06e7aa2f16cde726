package search

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/worker/tool/builtin/base"
)

func TestGlob(t *testing.T) {
	root := folder(t, map[string]string{
		"a.go": "", "b.txt": "", "src/a.go": "", "src/deep/b.go": "", "src/deep/c.ts": "", ".github/ci.yml": "", ".git/HEAD": "",
		".gitignore": "dist/\n", "dist/out.js": "", "src/dist/x.js": "", "odd[1]/{a},b.go": "", "notes/a.md": "",
	})
	if err := os.Symlink("a.go", filepath.Join(root.Dir(), "link.go")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args in
		want string
	}{
		{in{"pattern": "*.go"}, "a.go\nlink.go\n"},
		{in{"pattern": "./*.txt"}, "b.txt\n"},
		{in{"pattern": "**/*.go"}, "a.go\nlink.go\nodd[1]/{a},b.go\nsrc/a.go\nsrc/deep/b.go\n"},
		{in{"pattern": "src/**/*.{go,ts}"}, "src/a.go\nsrc/deep/b.go\nsrc/deep/c.ts\n"},
		{in{"pattern": "{src,notes}/*"}, "notes/a.md\nsrc/a.go\n"},
		{in{"pattern": "*.go", "path": "src"}, "src/a.go\n"},
		{in{"pattern": "**/*.go", "path": "odd[1]"}, "odd[1]/{a},b.go\n"},
		{in{"pattern": "*", "path": root.Dir() + "/src"}, "src/a.go\n"},
		{in{"pattern": "src/a.go"}, "src/a.go\n"},
		{in{"pattern": "**/*.yml"}, ".github/ci.yml\n"},
		{in{"pattern": "dist/*"}, "dist/out.js\n"},
		{in{"pattern": ".git/*"}, "[No files match.]\n"},
		{in{"pattern": "**/*.js"}, "[No files match. 2 paths left out because of .gitignore.]\n"},
		{in{"pattern": "*.ts"}, "[No files match. The pattern looks in one folder only; start it with **/ to look in all below. 1 path left out because of .gitignore.]\n"},
		{in{"pattern": "gone/**"}, "[No files match.]\n"},
		{in{"pattern": "a.go/*"}, "[No files match.]\n"},
	} {
		if got := text(t, root, "Glob", c.args); got != c.want {
			t.Errorf("%v: got %q, want %q", c.args, got, c.want)
		}
	}
	refused(t, root, "Glob", in{"pattern": "["}, base.CodeInvalidPattern)
	refused(t, root, "Glob", in{"pattern": "a\x00"}, base.CodeInvalidPattern)
	refused(t, root, "Glob", in{"pattern": strings.Repeat("a", 1001)}, base.CodeInvalidPattern)
	refused(t, root, "Glob", in{"pattern": "../*"}, base.CodePathOutsideRoot)
	refused(t, root, "Glob", in{"pattern": "a/../../*"}, base.CodePathOutsideRoot)
	// Permission rules see only the argument path, so a pattern that leads elsewhere is
	// refused.
	for _, pattern := range []string{"/etc/*", "//etc/*", ".//etc/*", "/*", root.Dir() + "/src/*.go", root.Dir() + "/notes/*"} {
		refused(t, root, "Glob", in{"pattern": pattern}, base.CodeInvalidPattern)
		refused(t, root, "Glob", in{"pattern": pattern, "path": "src"}, base.CodeInvalidPattern)
	}
	refused(t, root, "Glob", in{"pattern": "*", "path": "/etc"}, base.CodePathOutsideRoot)
	refused(t, root, "Glob", in{"pattern": "*", "path": "gone"}, base.CodeNotFound)
	refused(t, root, "Glob", in{"pattern": "*", "path": "a.go"}, base.CodeNotAFolder)
}

func TestGlobSaysHowManyItLeavesOut(t *testing.T) {
	files := map[string]string{}
	for i := range maxGlobFiles + 700 {
		files[fmt.Sprintf("f%04d", i)] = ""
	}
	got := text(t, folder(t, files), "Glob", in{"pattern": "*"})
	if !strings.HasPrefix(got, "[The first 500 of 1,200 files. Narrow the pattern to see the others.]\nf0000\n") || !strings.HasSuffix(got, "\nf0499\n") {
		t.Errorf("got %.150q ... %q", got, got[len(got)-30:])
	}
}
