//go:build unix

package soak

import (
	"context"
	"os"
	"path/filepath"
	"time"
)

// stall is how long the whole machine may pause before a claim can lapse. A worker renews its
// claim after a third of the lease, and kills the tool one grace before the lease ends.
const stall = lease - grace - lease/3 - 300*time.Millisecond

// watchMachine records a fault when the machine stalls: a timer, or a sync of a file on the
// server's disk, takes longer than stall. The fleet's own load can cause that, so the report
// shows the number of stalls.
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
