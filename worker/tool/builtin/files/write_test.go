package files

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/base"
)

func TestWrite(t *testing.T) {
	root := folder(t, map[string]string{"old.sh": "x", "ro": "x", "dir/x": ""})
	old := filepath.Join(root.Dir(), "old.sh")
	if err := errors.Join(os.Chmod(old, 0o755), os.Chmod(filepath.Join(root.Dir(), "ro"), 0o444)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ path, content, want string }{
		{"new.txt", "hello\n", "Created new.txt (6 bytes)."},
		{"new.txt", "", "Overwrote new.txt (0 bytes)."},
		{"a/b/c.txt", "\x00\u2028<&>", "Created a/b/c.txt (7 bytes)."},
		{"./old.sh", "1", "Overwrote old.sh (1 byte)."},
		{root.Dir() + "/abs", strings.Repeat("x", 1234), "Created abs (1,234 bytes)."},
	} {
		if got := text(t, root, "Write", in{"file_path": c.path, "content": c.content}); got != c.want {
			t.Errorf("%s: got %q, want %q", c.path, got, c.want)
		}
		rel, _ := root.Resolve(c.path)
		if got := get(t, root, rel); got != c.content {
			t.Errorf("%s holds %q, want %q", c.path, got, c.content)
		}
	}
	if info, err := os.Stat(old); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("mode is %v, want 0755", info.Mode())
	}
	refused(t, root, "Write", in{"file_path": "dir", "content": ""}, base.CodeNotAFile)
	refused(t, root, "Write", in{"file_path": ".", "content": ""}, base.CodeNotAFile)
	refused(t, root, "Write", in{"file_path": "ro", "content": ""}, base.CodePermissionDenied)
	refused(t, root, "Write", in{"file_path": "x"}, messages.CodeInvalidArguments)
	refused(t, root, "Write", in{"file_path": "x", "content": strings.Repeat("x", maxWrite+1)}, messages.CodeTooLarge)
	wantNoTemps(t, root)
}

// Writers replace a file while readers read it: each reader gets one of the contents, whole.
func TestWriteIsAtomic(t *testing.T) {
	root := folder(t, map[string]string{"f": strings.Repeat("0", 50_000)})
	runner := tools.New(t, "Write", root)
	var writers, readers sync.WaitGroup
	done := make(chan struct{})
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				got, err := os.ReadFile(filepath.Join(root.Dir(), "f"))
				if err != nil || len(got) != 50_000 || strings.Trim(string(got), string(got[:1])) != "" {
					t.Errorf("a reader saw %d bytes, %v", len(got), err)
				}
			}
		})
	}
	for _, c := range "123" {
		call := callOf(t, "Write", in{"file_path": "f", "content": strings.Repeat(string(c), 50_000)})
		writers.Go(func() {
			for range 20 {
				if _, err := runner.Run(t.Context(), call); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	close(done)
	readers.Wait()
	wantNoTemps(t, root)
}

func TestWriteEndsWithItsContext(t *testing.T) {
	root := folder(t, nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	cancel(stop)
	runner := tools.New(t, "Write", root)
	if _, err := runner.Run(ctx, callOf(t, "Write", in{"file_path": "f", "content": ""})); !errors.Is(err, stop) {
		t.Errorf("got %v, want the cause", err)
	}
	if _, err := os.Stat(filepath.Join(root.Dir(), "f")); err == nil {
		t.Error("written after the end")
	}
}

func TestWriteThroughLinks(t *testing.T) {
	root := folder(t, map[string]string{"real/file": "old", "real/deep/x": ""})
	for name, to := range map[string]string{"link": "real/file", "dir": "real/deep", "real/deep/up": "../file", "fresh": "real/new"} {
		if err := os.Symlink(to, filepath.Join(root.Dir(), name)); err != nil {
			t.Fatal(err)
		}
	}
	for i, name := range []string{"link", "dir/up"} {
		want := fmt.Sprint("content ", i)
		text(t, root, "Write", in{"file_path": name, "content": want})
		if got := get(t, root, "real/file"); got != want {
			t.Errorf("through %s: got %q, want %q", name, got, want)
		}
		if info, err := os.Lstat(filepath.Join(root.Dir(), name)); err != nil || info.Mode()&os.ModeSymlink == 0 {
			t.Errorf("%s is no link any more", name)
		}
	}
	text(t, root, "Write", in{"file_path": "fresh", "content": "made"})
	if got := get(t, root, "real/new"); got != "made" {
		t.Errorf("through a dangling link: got %q", got)
	}
}
