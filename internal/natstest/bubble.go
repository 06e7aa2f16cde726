package natstest

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolfleet/toolfleet/internal/devserver"
)

// Lifetime is how much simulated time a bubble may take. The tickers of a server keep the
// simulated clock moving, so synctest does not notice when a test waits for ever. Without this
// limit, such a test would run until go test kills it.
const Lifetime = 7 * 24 * time.Hour

// Bubble runs test with a real server inside a testing/synctest bubble. Inside a bubble, time
// passes only while every goroutine waits.
//
//   - Do not call t.Parallel. A process may have one bubble at a time, and no other NATS client
//     beside it. Parallel tests without a bubble do no harm: go test runs them after all other
//     tests of the package.
//   - Do not use sockets. Connect through srv.InProcessConn, and use net.Pipe otherwise.
//   - The clock stands still while a subprocess runs, and while a mutex is held across a sleep.
//   - Shut down everything that the test has started before test returns, or in t.Cleanup. A
//     goroutine that still runs fails the test, so every bubble is a test for leaks.
//   - Put a deadline on every wait.
//
// The server ends after test and its cleanups.
func Bubble(t *testing.T, test func(t *testing.T, srv *devserver.Server), options ...Option) {
	t.Helper()
	stopClock()
	defer startClock()
	emptyPools()
	defer emptyPools()
	synctest.Test(t, func(t *testing.T) {
		// This cleanup runs last. A server may flush a file for a millisecond after its end.
		// nats.go checks every 100 ms whether a subscription is drained, even after its
		// connection was closed. A goroutine that sleeps when the bubble ends fails the test.
		t.Cleanup(func() { time.Sleep(250 * time.Millisecond) })
		clock := keepClock(bubbleTick)
		t.Cleanup(clock)
		end := time.AfterFunc(Lifetime, func() {
			panic(fmt.Sprintf("%s: still waiting for something after %v of simulated time", t.Name(), Lifetime))
		})
		t.Cleanup(func() { end.Stop() })
		test(t, Server(t, options...))
	})
}

// emptyPools drops the timers that nats.go keeps for reuse. A timer from inside a bubble
// crashes a program outside of it, and a timer from outside crashes a bubble. A sync.Pool is
// empty after two garbage collections.
func emptyPools() {
	runtime.GC()
	runtime.GC()
}
