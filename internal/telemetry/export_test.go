package telemetry

import (
	"testing"
	"time"
)

// FlushAsLongAsItTakes lets a flush take minutes, for tests of what a flush sends or logs. On
// a busy machine even a collector that answers at once may take longer than a process usually
// waits.
func FlushAsLongAsItTakes(t *testing.T) {
	t.Helper()
	before := flushIn
	flushIn = 5 * time.Minute
	t.Cleanup(func() { flushIn = before })
}
