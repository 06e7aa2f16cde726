package builtin

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/toolfleet/toolfleet/worker/tool/builtin/base"
)

// Each trick to leave the folder is tried with every tool: no tool shows or changes a file
// outside.
func TestNothingOutsideIsReached(t *testing.T) {
	root := folder(t, map[string]string{"in.txt": "inside\n", "sub/x.txt": "x\n"})
	outside := t.TempDir()
	const canary = "CANARY-7f3a"
	put(t, filepath.Join(outside, "secret.txt"), canary)
	at := func(name string) string { return filepath.Join(root.Dir(), name) }
	up, err := filepath.Rel(root.Dir(), outside)
	if err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{
		"abs":       outside + "/secret.txt",
		"rel":       up + "/secret.txt",
		"dir":       outside,
		"reldir":    up,
		"chain":     "rel",
		"sub/chain": "../dir",
		"new":       outside + "/new.txt",
		"dangling":  up + "/created.txt",
		"loop":      "loop",
		"selfabs":   at("in.txt"),
	} {
		if err := os.Symlink(to, at(name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{
		"abs", "rel", "dir/secret.txt", "reldir/secret.txt", "chain", "sub/chain/secret.txt", "new", "dangling", "dir/new.txt", "loop",
		"dir/../secret.txt", "sub/chain/../secret.txt", "dir", outside + "/secret.txt", up + "/secret.txt", "selfabs",
	} {
		for _, c := range everyFileTool(name) {
			out, err := run(t, root, c.tool, c.args)
			if strings.Contains(string(out.Value), canary) || err != nil && strings.Contains(err.Error(), canary) {
				t.Errorf("%s %q shows what is outside: %s %v", c.tool, name, out.Value, err)
			}
		}
	}
	if out := text(t, root, "Grep", in{"pattern": "CANARY"}); strings.Contains(out, "secret") {
		t.Errorf("Grep walks out: %s", out)
	}
	// This test wrote the two files secret.txt inside: ".." in a path removes the component
	// before it, without following links.
	if got, want := text(t, root, "Glob", in{"pattern": "**"}), "in.txt\nsecret.txt\nsub/secret.txt\nsub/x.txt\n"; got != want {
		t.Errorf("Glob: got %q, want %q", got, want)
	}
	wantUntouched(t, outside, canary)
}

type toolArgs struct {
	tool string
	args in
}

// everyFileTool returns one call of each file tool with this path.
func everyFileTool(name string) []toolArgs {
	return []toolArgs{
		{"Read", in{"file_path": name}},
		{"Glob", in{"pattern": "*", "path": name}},
		{"Glob", in{"pattern": name}},
		{"Grep", in{"pattern": "CANARY.*", "path": name, "output_mode": "content"}},
		{"Grep", in{"pattern": "CANARY.*", "glob": name, "output_mode": "content"}},
		{"Edit", in{"file_path": name, "old_string": "CANARY", "new_string": "EDITED"}},
		{"Write", in{"file_path": name, "content": "WRITTEN"}},
	}
}

func wantUntouched(t testing.TB, outside, canary string) {
	t.Helper()
	entries, err := os.ReadDir(outside)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 {
		t.Errorf("there are %d files outside, want 1: %v", len(entries), entries)
	}
	if got, err := os.ReadFile(filepath.Join(outside, "secret.txt")); err != nil || string(got) != canary {
		t.Errorf("the file outside is %q, %v", got, err)
	}
}

func TestOnlyFilesAreOpened(t *testing.T) {
	root := folder(t, map[string]string{"sub/a": "a", "file": "x"})
	pipe := filepath.Join(root.Dir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o666); err != nil {
		t.Skipf("no pipes here: %v", err)
	}
	if err := os.Symlink("pipe", filepath.Join(root.Dir(), "link")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pipe", "link", "sub"} {
		refused(t, root, "Read", in{"file_path": name}, base.CodeNotAFile)
		refused(t, root, "Write", in{"file_path": name, "content": "x"}, base.CodeNotAFile)
		refused(t, root, "Edit", in{"file_path": name, "old_string": "a", "new_string": "b"}, base.CodeNotAFile)
	}
	for _, name := range []string{"pipe", "link"} {
		refused(t, root, "Grep", in{"pattern": "a", "path": name}, base.CodeNotAFile)
		refused(t, root, "Glob", in{"pattern": "*", "path": name}, base.CodeNotAFolder)
	}
	refused(t, root, "Write", in{"file_path": "file/below", "content": "x"}, base.CodeNotAFolder)
	refused(t, root, "Write", in{"file_path": "file/far/below", "content": "x"}, base.CodeNotAFolder)
	refused(t, root, "Read", in{"file_path": "file/below"}, base.CodeNotFound)
	if got, want := text(t, root, "Grep", in{"pattern": "."}), "file\nsub/a\n"; got != want {
		t.Errorf("Grep: got %q, want %q", got, want)
	}
	if got, want := text(t, root, "Glob", in{"pattern": "**"}), "file\nsub/a\n"; got != want {
		t.Errorf("Glob: got %q, want %q", got, want)
	}
	if info, err := os.Lstat(pipe); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		t.Errorf("the pipe is gone: %v %v", info, err)
	}
}

func TestLongPathsAndNames(t *testing.T) {
	root := folder(t, map[string]string{"a": "x"})
	deep := strings.Repeat("d/", 255) + "f"
	if got := text(t, root, "Write", in{"file_path": deep, "content": "deep"}); !strings.HasPrefix(got, "Created") {
		t.Errorf("got %.100q", got)
	}
	if got := text(t, root, "Read", in{"file_path": deep}); got != "     1\tdeep\n" {
		t.Errorf("got %q", got)
	}
	for _, c := range everyFileTool(strings.Repeat("n", 300)) {
		_, err := run(t, root, c.tool, c.args)
		if err != nil && len(err.Error()) > 600 {
			t.Errorf("%s: an error of %d bytes", c.tool, len(err.Error()))
		}
	}
	for _, c := range everyFileTool(strings.Repeat("../", 3000)) {
		if c.args["glob"] != nil {
			continue // name is a filter here, not a path
		}
		_, err := run(t, root, c.tool, c.args)
		if err == nil || len(err.Error()) > 600 {
			t.Errorf("%s: got %.700v", c.tool, err)
		}
	}
}

// A file is a hard link to a file outside: Write replaces the link, and the file outside stays
// as it was.
func TestHardLinkOutsideIsNotWrittenThrough(t *testing.T) {
	root := folder(t, nil)
	outside := t.TempDir()
	put(t, filepath.Join(outside, "secret.txt"), "keep")
	if err := os.Link(filepath.Join(outside, "secret.txt"), filepath.Join(root.Dir(), "hard")); err != nil {
		t.Skipf("no hard links here: %v", err)
	}
	text(t, root, "Edit", in{"file_path": "hard", "old_string": "keep", "new_string": "gone"})
	text(t, root, "Write", in{"file_path": "hard", "content": "gone too"})
	wantUntouched(t, outside, "keep")
}

// Write and Edit refuse to change a protected file, however its path is written.
func TestProtectedPathsAreNotWritten(t *testing.T) {
	root := folder(t, map[string]string{
		".git/config": "keep", ".git/hooks/x": "keep", "sub/.git/config": "keep", ".github/w/ci.yml": "keep", "deep/tools.yaml": "keep", "free": "keep",
	})
	at := func(name string) string { return filepath.Join(root.Dir(), name) }
	root.Protect([]string{at(".github"), at(".mcp.json"), at(".claude"), at("deep/tools.yaml"), at(".git/config"), filepath.Dir(root.Dir())})
	for name, to := range map[string]string{"git": ".git", "leaf": "deep/tools.yaml", "dir": "deep", "sub/up": "..", "sub/hub": "../.github/w", "soon": ".mcp.json", "around": "sub/../.git"} {
		if err := os.Symlink(to, at(name)); err != nil {
			t.Fatal(err)
		}
	}
	before := text(t, root, "Glob", in{"pattern": "**"})
	for _, name := range []string{
		".git/config", ".git/config.worktree", ".git/new/x", ".git/hooks/x", "sub/.git/config", ".github/w/ci.yml", ".github/new", ".mcp.json", ".claude/settings.json",
		"deep/tools.yaml", "git/config", "git/new", "leaf", "dir/tools.yaml", "sub/up/.mcp.json", "sub/hub/ci.yml", "sub/hub/new", "soon", "around/config", ".GIT/config", at(".git/config"),
	} {
		refused(t, root, "Write", in{"file_path": name, "content": "WRITTEN"}, base.CodePermissionDenied)
	}
	for _, name := range []string{".git/config", ".git/hooks/x", "sub/.git/config", ".github/w/ci.yml", "deep/tools.yaml", "git/config", "leaf", "dir/tools.yaml", "sub/hub/ci.yml"} {
		refused(t, root, "Edit", in{"file_path": name, "old_string": "keep", "new_string": "EDITED"}, base.CodePermissionDenied)
		if got := text(t, root, "Read", in{"file_path": name}); !strings.Contains(got, "keep") {
			t.Errorf("%s is %q", name, got)
		}
	}
	if after := text(t, root, "Glob", in{"pattern": "**"}); after != before {
		t.Errorf("there are %q, want %q", after, before)
	}
	for _, name := range []string{"free", ".gitignore", "deep/other", "dir/third", "sub/up/fourth", ".config"} {
		text(t, root, "Write", in{"file_path": name, "content": "ok"})
	}
	if got := get(t, root, "fourth") + get(t, root, "deep/third"); got != "okok" {
		t.Errorf("got %q", got)
	}
}
