package builtin

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/glob"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/rootdir"
)

// corpus returns a folder of public test data beside the checkout. If it is not there, the
// test is skipped.
func corpus(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join("..", "..", "..", "..", "shared", "corpora", name)
	if _, err := os.Stat(dir); err != nil {
		t.Skipf("corpus %s is not here", name)
	}
	return dir
}

// pathPayloads returns every line of the path corpora, without repetitions.
func pathPayloads(t *testing.T) []string {
	t.Helper()
	base := corpus(t, "payloads-all-the-things")
	var lines []string
	seen := map[string]bool{}
	for _, kind := range []string{"Directory Traversal", "File Inclusion"} {
		err := filepath.WalkDir(filepath.Join(base, kind), func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			f, err := os.Open(name)
			if err != nil {
				return err
			}
			defer f.Close()
			in := bufio.NewScanner(f)
			in.Buffer(nil, 1<<20)
			for in.Scan() {
				if line := in.Text(); line != "" && !seen[line] {
					seen[line] = true
					lines = append(lines, line)
				}
			}
			return in.Err()
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return lines
}

var long = flag.Bool("long", false, "try every line of the corpora, not each tenth")

// sample returns every tenth line, or all lines with the flag -long.
func sample(lines []string) []string {
	if *long {
		return lines
	}
	var some []string
	for i := 0; i < len(lines); i += 10 {
		some = append(some, lines[i])
	}
	return some
}

// Each line of the corpora is tried as the path of every file tool, in a folder whose parents
// have the files that such paths aim at: none of them is reached.
func TestPathPayloadsStayInside(t *testing.T) {
	lines := sample(pathPayloads(t))
	total := tally{refusals: map[messages.Code]int{}}
	t.Run("lines", func(t *testing.T) {
		const shards = 4
		for shard := range shards {
			t.Run(fmt.Sprint(shard), func(t *testing.T) {
				t.Parallel()
				tryPayloads(t, lines[shard*len(lines)/shards:(shard+1)*len(lines)/shards], &total)
			})
		}
	})
	// Only text that the tools wrote counts: other programs may change the file during the
	// test, such as the installation of a package.
	if text, err := os.ReadFile("/etc/passwd"); err == nil && (bytes.Contains(text, []byte("WRITTEN")) || bytes.Contains(text, []byte("EDITED"))) {
		total.escapes++
		t.Error("/etc/passwd was changed")
	}
	t.Logf("%d lines, %d calls, %d escapes, refusals %v", len(lines), total.calls, total.escapes, total.refusals)
}

// tally counts what became of the calls.
type tally struct {
	mu             sync.Mutex
	calls, escapes int                   // guarded by mu
	refusals       map[messages.Code]int // guarded by mu
}

func tryPayloads(t *testing.T, lines []string, total *tally) {
	const canary = "CANARY-51c2"
	top := inMemory(t)
	for _, name := range []string{"etc/passwd", "passwd", "boot.ini", "windows/win.ini", "a/etc/passwd", "a/b/boot.ini", "a/b/etc/passwd"} {
		put(t, filepath.Join(top, name), canary)
	}
	dir := filepath.Join(top, "a", "b", "root")
	before := tree(t, top, dir)
	var root *rootdir.Root
	for i, line := range lines {
		if i%50 == 0 { // a fresh folder every 50 lines: plain file names fill it up
			root = reopened(t, root, dir)
		}
		// Bytes that are not UTF-8 cannot be in a call: JSON has U+FFFD instead.
		line = strings.ToValidUTF8(line, "\uFFFD")
		for _, c := range everyFileTool(line) {
			out, err := run(t, root, c.tool, c.args)
			var told *messages.Error
			if err != nil && !errors.As(err, &told) {
				t.Errorf("%s %.200q: an error without a code: %v", c.tool, line, err)
			}
			if told != nil && len(told.Message) > 1200 {
				t.Errorf("%s %.200q: an error of %d bytes", c.tool, line, len(told.Message))
			}
			said := string(out.Value) + fmt.Sprint(err)
			escaped := strings.Contains(said, canary) || strings.Contains(said, "root:x:0")
			if escaped {
				t.Errorf("%s %.200q escapes: %.200s", c.tool, line, said)
			}
			total.add(told, escaped)
		}
	}
	root.Close()
	if after := tree(t, top, dir); after != before {
		total.add(nil, true)
		t.Errorf("outside the root there was\n%s\nand now there is\n%s", before, after)
	}
}

// inMemory returns a folder in memory, if the system has one. Write and Edit wait until a file
// is on the disk, which for ten thousand calls would take most of the time.
func inMemory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "toolfleet-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (l *tally) add(told *messages.Error, escaped bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	if told != nil {
		l.refusals[told.Code]++
	}
	if escaped {
		l.escapes++
	}
}

// reopened empties a folder and returns a new root on it.
func reopened(t *testing.T, old *rootdir.Root, dir string) *rootdir.Root {
	t.Helper()
	if old != nil {
		old.Close()
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, "inside.txt"), "inside")
	root, err := rootdir.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// tree returns every file under dir and its content, except the files in skip.
func tree(t *testing.T, dir, skip string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case name == skip:
			return fs.SkipDir
		case d.IsDir():
			return nil
		}
		text, err := os.ReadFile(name)
		fmt.Fprintf(&out, "%s: %s\n", name, text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// Each naughty string is tried as a path, as the content of a file, as a search pattern and as
// the text to edit.
func TestNaughtyStrings(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(corpus(t, "naughty-strings"), "blns.json"))
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	if err := json.Unmarshal(raw, &all); err != nil {
		t.Fatal(err)
	}
	root := reopened(t, nil, filepath.Join(inMemory(t), "root"))
	t.Cleanup(func() { root.Close() })
	written, found := 0, 0
	for _, s := range all {
		for _, c := range everyFileTool(s) {
			if _, err := run(t, root, c.tool, c.args); err != nil {
				if _, ok := err.(*messages.Error); !ok {
					t.Errorf("%s %.100q: an error without a code: %v", c.tool, s, err)
				}
			}
		}
		text(t, root, "Write", in{"file_path": "content", "content": s})
		if got := get(t, root, "content"); got != s {
			t.Errorf("wrote %q, the file holds %q", s, got)
		}
		text(t, root, "Read", in{"file_path": "content"})
		if _, err := run(t, root, "Write", in{"file_path": "dir/" + s + ".txt", "content": "x"}); err == nil {
			written++
			if rel, _ := root.Resolve("dir/" + s + ".txt"); text(t, root, "Glob", in{"pattern": glob.Escape(rel)}) == rel+"\n" {
				found++
			} else {
				t.Errorf("wrote %q, Glob does not find it", rel)
			}
		}
		if s != "" && utf8.ValidString(s) {
			text(t, root, "Write", in{"file_path": "content", "content": "before " + s + " after"})
			text(t, root, "Edit", in{"file_path": "content", "old_string": "before " + s, "new_string": s + " edited"})
			if got, want := get(t, root, "content"), s+" edited after"; got != want {
				t.Errorf("edited to %q, want %q", got, want)
			}
		}
	}
	t.Logf("%d strings, %d of them fit for a path, %d of these found by Glob", len(all), written, found)
}
