//go:build unix

package soak

import (
	"context"
	"os"
	"path/filepath"
	"time"
)

// A worker renews a claim at a third of its lease, and kills the tool one grace before the lease
// ends. A machine that stalls for longer than the time between may lose a claim without another
// fault.
const stall = lease - grace - lease/3 - 300*time.Millisecond

// watchMachine records a fault when the machine stalls: when a timer, or a sync of a file on the
// server's disk, takes much longer than milliseconds. Load from the fleet itself can cause this
// too, so the report shows the count.
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
