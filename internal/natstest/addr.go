package natstest

import "testing"

// FreeAddr returns an address on the loopback interface that belongs to the test until it ends: for
// a server in another process, or one that stops and restarts. On Linux no other program that asks
// the system for any free port gets it, even while no server listens there. On other systems it was
// free a moment ago.
func FreeAddr(tb testing.TB) string {
	tb.Helper()
	addr, release, err := HoldAddr()
	if err != nil {
		tb.Fatalf("find a free port: %v", err)
	}
	tb.Cleanup(release)
	return addr
}
