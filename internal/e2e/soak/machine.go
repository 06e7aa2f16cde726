//go:build unix

package soak

import (
	"context"
	"os"
	"path/filepath"
	"time"
)

// A claim is renewed at a third of its lease, and its tool is killed at the lease less the grace. Who stands still
// for longer than what lies between may lose a claim without anybody's fault.
const stall = lease - grace - lease/3 - 300*time.Millisecond

// watchMachine notes when the machine does not do what takes milliseconds: to wake us up, and to sync a file on the
// disk that the server uses. What the fleet does to the machine by itself would count too, so it is told in the
// report.
func (f *fleet) watchMachine(ctx context.Context) {
	file, err := os.Create(filepath.Join(f.dir, "probe"))
	if err != nil {
		return
	}
	defer file.Close()
	for ctx.Err() == nil {
		at := time.Now()
		pause(ctx, 100*time.Millisecond)
		if _, err := file.WriteAt([]byte{1}, 0); err == nil {
			_ = file.Sync()
		}
		if until := time.Now(); until.Sub(at) > stall {
			f.log.add(Fault{Member: "machine", Process: "machine", Act: Stall, At: at, Until: until})
		}
	}
}
