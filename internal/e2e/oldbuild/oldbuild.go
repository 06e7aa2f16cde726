//go:build unix

// Package oldbuild builds the command toolfleet of an earlier commit. Tests use it to mix two
// builds in one fleet, and to start the new build on the data of the old one.
package oldbuild

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Commit is the last commit of the old protocol. In it, the batches of a session do not
// overlap, and a worker's jobs do not come through a queue of its toolset.
const Commit = "48baf01c1193b3fb68601c0fbb04da808ef14d7e"

// ErrNoHistory means that the repository does not hold [Commit]: it is a shallow clone or no
// repository.
var ErrNoHistory = errors.New("the history of the repository does not hold the old build")

// Build builds the command of [Commit] into the existing folder dir, under the name toolfleet.
// It keeps the source in one folder in go's cache, for all callers: go compiles the source
// once, and finds the result again while the source is in the same place.
func Build(dir string) error {
	root, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoHistory, err)
	}
	top := strings.TrimSpace(string(root))
	if err := exec.Command("git", "-C", top, "cat-file", "-e", Commit+"^{commit}").Run(); err != nil {
		return fmt.Errorf("%w: no commit %s", ErrNoHistory, Commit)
	}
	cache, err := exec.Command("go", "env", "GOCACHE").Output()
	if err != nil {
		return fmt.Errorf("find the cache of go: %w", err)
	}
	old := filepath.Join(strings.TrimSpace(string(cache)), "toolfleet-old")
	if err := os.MkdirAll(old, 0o755); err != nil {
		return err
	}
	// The lock keeps callers from compiling everything at the same time.
	lock, err := os.OpenFile(filepath.Join(old, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock the old source: %w", err)
	}
	source := filepath.Join(old, Commit)
	if _, err := os.Stat(source); errors.Is(err, fs.ErrNotExist) {
		if err := unpack(top, source); err != nil {
			return err
		}
	}
	return run("go", "-C", source, "build", "-o", filepath.Join(dir, "toolfleet"), "./cmd/toolfleet")
}

// unpack writes the source of [Commit] into a new folder, completely or not at all.
func unpack(top, source string) error {
	part, err := os.MkdirTemp(filepath.Dir(source), "part-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(part)
	archive := part + ".tar"
	defer os.Remove(archive)
	if err := run("git", "-C", top, "archive", "--output", archive, Commit); err != nil {
		return err
	}
	if err := run("tar", "-xf", archive, "-C", part); err != nil {
		return err
	}
	return os.Rename(part, source)
}

func run(command ...string) error {
	if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("build the old command: %s: %w\n%s", strings.Join(command, " "), err, out)
	}
	return nil
}
