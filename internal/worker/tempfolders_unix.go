//go:build unix

package worker

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// unusedTemp is how long a folder for temporary files stays without a worker that uses it. A
// probe looks there for what the run of a lost worker wrote. The time is therefore longer than
// any batch can take.
const unusedTemp = 7 * 24 * time.Hour

var (
	heldMu sync.Mutex
	held   = map[string]*os.File{} // locks of this process, until it ends; guarded by heldMu
)

// holdTemp marks a folder for temporary files as used by this process. The mark is a lock on a
// file beside the folder, which no command can reach. holdTemp also removes folders of other
// configurations that no process has used for unusedTemp.
func holdTemp(name string, now time.Time) error {
	heldMu.Lock()
	defer heldMu.Unlock()
	if held[name] != nil {
		return nil
	}
	f, err := os.OpenFile(name+lockEnding, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("folder for temporary files: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH); err != nil {
		f.Close()
		return fmt.Errorf("folder for temporary files: lock %s: %w", f.Name(), err)
	}
	_ = os.Chtimes(f.Name(), now, now) // if this fails, the lock still holds
	held[name] = f
	sweepTemps(filepath.Dir(name), now)
	return nil
}

const lockEnding = ".lock"

// sweepTemps removes the folders below base that no process uses. It skips a folder that it
// cannot remove.
func sweepTemps(base string, now time.Time) {
	entries, err := os.ReadDir(base)
	if err != nil {
		return
	}
	for _, e := range entries {
		folder, ok := strings.CutSuffix(e.Name(), lockEnding)
		info, err := e.Info()
		if !ok || err != nil || now.Sub(info.ModTime()) < unusedTemp {
			continue
		}
		f, err := os.OpenFile(filepath.Join(base, e.Name()), os.O_RDWR, 0)
		if err != nil {
			continue
		}
		// The lock file stays, because another worker may be waiting for it.
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(filepath.Join(base, folder))
		}
		f.Close()
	}
}
