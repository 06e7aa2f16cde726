//go:build unix

package devserver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// lock makes this process the only user of dir. The lock ends when the process ends, even
// after a crash.
func lock(dir string) (unlock func() error, err error) {
	f, err := os.OpenFile(filepath.Join(dir, "toolfleet.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the data directory: %w; --data names another", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return f.Close, nil
	}
	_ = f.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, fmt.Errorf("data directory %s is in use by another toolfleet: stop that one, "+
			"connect to it with --nats, or choose another directory with --data", dir)
	}
	return nil, fmt.Errorf("lock the data directory %s: %w", dir, err)
}
