package search

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/worker/tool/builtin/rootdir"
)

// gitFiles returns the files that git would list as new in the folder.
func gitFiles(t testing.TB, dir string) []string {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("no git here to compare with")
	}
	git := func(args ...string) string {
		cmd := exec.Command("git", append([]string{"-C", dir, "-c", "core.excludesFile="}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_NOSYSTEM=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	if _, err := os.Stat(filepath.Join(dir, ".git")); err != nil {
		git("init", "-q")
	}
	files := strings.Split(strings.TrimSuffix(git("ls-files", "-z", "--others", "--exclude-standard"), "\x00"), "\x00")
	slices.Sort(files)
	return files
}

// walked returns the files that the walker visits.
func walked(t testing.TB, root *rootdir.Root, start string) []string {
	t.Helper()
	var files []string
	w := walker{root: root, visit: func(file string) error {
		files = append(files, file)
		return nil
	}}
	if err := w.walk(t.Context(), start); err != nil {
		t.Fatal(err)
	}
	slices.Sort(files)
	return files
}

func TestWalkHonoursGitignoreLikeGit(t *testing.T) {
	root := folder(t, map[string]string{
		".gitignore": "\uFEFF*.log\r\n!keep.log\n# comment\n\\#hash\n\\!bang\nbuild/\n/only-top\ndocs/*.md\n**/cache/**\ntrail \nspace\\ \n" +
			"a/**/z\n[abc].txt\n[!x]?.dat\nq\\*\n{x,y}.js\nnode_modules\n!node_modules/keep\n/deep/*\n!/deep/keep\nbad[\n*/mid\n\\\\back\nfoo**bar\n",
		"x.log": "", "keep.log": "", "#hash": "", "!bang": "", "build/a": "", "sub/build/b": "", "buildfile/build": "",
		"only-top": "", "sub/only-top": "", "docs/a.md": "", "docs/sub/a.md": "", "cache/x": "", "s/cache/y/z": "", "s/cachex": "",
		"trail": "", "space ": "", "space": "", "a/z": "", "a/b/c/z": "", "a/bz": "", "a.txt": "", "d.txt": "", "ab.dat": "", "xb.dat": "",
		"q*": "", "qq": "", "x.js": "", "{x,y}.js": "", "node_modules/keep": "", "deep/gone/f": "", "deep/keep/f": "", "bad[": "", "mid": "", "m/mid": "", "m/m/mid": "",
		"\\back": "", "fooxbar": "", "foo/bar": "", "é.txt": "", ".hidden": "", ".github/x.yml": "",
		"nested/.gitignore": "!*.log\nlocal\n/anchored\n", "nested/x.log": "", "nested/local": "", "nested/s/local": "", "nested/anchored": "", "nested/s/anchored": "", "local": "",
		"nested/s/.gitignore": "*\n!.gitignore\n!x.log\n", "nested/s/x.log": "", "nested/s/other": "", "nested/s/t/x.log": "",
	})
	if diff := cmp.Diff(gitFiles(t, root.Dir()), walked(t, root, ".")); diff != "" {
		t.Errorf("git (-) and the walk (+) differ:\n%s", diff)
	}
}

// In random trees with random .gitignore files, the walker visits the same files that git
// lists.
func TestGitignoreAgreesWithGit(t *testing.T) {
	pieces := []string{"a", "b", "c", "*", "?", "/", "**", "[ab]", "[!a]", "a*", "*b", "/**/", "**/", "\\a", "ab", "{a,b}", "."}
	names := []string{"a", "b", "c", "ab", "ba", "abc", ".a", "{a,b}"}
	random := rand.New(rand.NewPCG(3, 4))
	lines, files := 0, 0
	for round := range 60 {
		tree := map[string]string{}
		for range 60 {
			var parts []string
			for range 1 + random.IntN(4) {
				parts = append(parts, names[random.IntN(len(names))])
			}
			tree[strings.Join(parts, "/")+"/f"+fmt.Sprint(random.IntN(3))] = ""
			tree[strings.Join(parts, "/")+"/"+names[random.IntN(len(names))]+"x"] = ""
		}
		for range 4 {
			var text strings.Builder
			for range 1 + random.IntN(5) {
				if random.IntN(3) == 0 {
					text.WriteString("!")
				}
				for range 1 + random.IntN(4) {
					text.WriteString(pieces[random.IntN(len(pieces))])
				}
				text.WriteString("\n")
				lines++
			}
			dir := ""
			for range random.IntN(3) {
				dir += names[random.IntN(len(names))] + "/"
			}
			tree[dir+".gitignore"] = text.String()
		}
		root := folder(t, tree)
		want, got := gitFiles(t, root.Dir()), walked(t, root, ".")
		if len(want) == 1 && want[0] == "" {
			want = nil
		}
		if diff := cmp.Diff(want, got); diff != "" {
			for name, text := range tree {
				if strings.HasSuffix(name, ".gitignore") {
					t.Logf("%s:\n%s", name, text)
				}
			}
			t.Fatalf("round %d: git (-) and the walk (+) differ:\n%s", round, diff)
		}
		files += len(tree)
	}
	t.Logf("%d lines over %d files: git agrees", lines, files)
}

func TestWalkLooksIntoWhatIsNamed(t *testing.T) {
	root := folder(t, map[string]string{".gitignore": "vendor/\n*.tmp\n", "vendor/a": "", "vendor/b.tmp": "", "c": "", ".git/config": "", "sub/.git": "", rootdir.TempPrefix + "x": ""})
	if got, want := walked(t, root, "."), []string{".gitignore", "c"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := walked(t, root, "vendor"), []string{"vendor/a"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := walked(t, root, ".git"); got != nil {
		t.Errorf("got %q of .git", got)
	}
}
