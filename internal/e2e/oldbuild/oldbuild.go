// Package oldbuild builds the command toolfleet as it was at an earlier commit. Tests use it to mix
// two builds in one fleet, and to start the new build on the data of the old one.
package oldbuild

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Commit is the last commit before a session's batches overlapped and a worker's jobs came by its
// toolset. Both changed the protocol.
const Commit = "48baf01c1193b3fb68601c0fbb04da808ef14d7e"

// ErrNoHistory says that the repository does not hold [Commit]: it is a shallow clone or no
// repository.
var ErrNoHistory = errors.New("the history of the repository does not hold the old build")

// Build builds the command of [Commit] into the existing folder dir, under the name toolfleet.
func Build(dir string) error {
	root, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoHistory, err)
	}
	top := strings.TrimSpace(string(root))
	if err := exec.Command("git", "-C", top, "cat-file", "-e", Commit+"^{commit}").Run(); err != nil {
		return fmt.Errorf("%w: no commit %s", ErrNoHistory, Commit)
	}
	source, err := os.MkdirTemp("", "toolfleet-old-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(source)
	archive := filepath.Join(source, "source.tar")
	for _, command := range [][]string{
		{"git", "-C", top, "archive", "--output", archive, Commit},
		{"tar", "-xf", archive, "-C", source},
		{"go", "-C", source, "build", "-o", filepath.Join(dir, "toolfleet"), "./cmd/toolfleet"},
	} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("build the old command: %s: %w\n%s", strings.Join(command, " "), err, out)
		}
	}
	return nil
}
