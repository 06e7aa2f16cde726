package natstest

import "testing"

// FreeAddr returns an address on the loopback interface that belongs to the test until the
// test ends. It is for a server in another process, and for a server that stops and restarts.
// On Linux, no other program that asks for any free port gets this port, even while no server
// listens there. On other systems, the port was free at the time of the call.
func FreeAddr(tb testing.TB) string {
	tb.Helper()
	addr, release, err := HoldAddr()
	if err != nil {
		tb.Fatalf("find a free port: %v", err)
	}
	tb.Cleanup(release)
	return addr
}
