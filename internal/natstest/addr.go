package natstest

import "testing"

// FreeAddr is an address on the loopback interface that is this test's until it ends: for a server in another process, or one
// that goes down and comes back. Nobody else who asks the system for any port is given it, not even while nothing listens there.
func FreeAddr(tb testing.TB) string {
	tb.Helper()
	addr, release, err := HoldAddr()
	if err != nil {
		tb.Fatalf("find a free port: %v", err)
	}
	tb.Cleanup(release)
	return addr
}
