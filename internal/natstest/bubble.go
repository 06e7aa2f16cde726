package natstest

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolfleet/toolfleet/internal/devserver"
)

// Lifetime is how much simulated time a bubble may take. A server's tickers keep the clock moving,
// so synctest does not notice a lost wake-up; without this bound such a test would spin until
// go test kills it.
const Lifetime = 7 * 24 * time.Hour

// Bubble runs test with a real server inside a testing/synctest bubble, where time passes only
// while every goroutine waits.
//
//   - No t.Parallel: one bubble at a time per process, and no other NATS client beside it. Parallel
//     tests without a bubble do no harm: go test runs them after all others of the package.
//   - No sockets: connect through srv.InProcessConn, and use net.Pipe for the rest.
//   - The clock stands still while a subprocess runs, and while a mutex is held across a sleep.
//   - Shut down everything that was started before test returns, or in t.Cleanup. A left-over
//     goroutine fails the test, so every bubble is a test for leaks.
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
		// Last of all: a server may flush a file for a millisecond after its end, and nats.go
		// checks every 100 ms whether a subscription is drained, also after its connection was
		// closed. A goroutine that sleeps when the bubble ends fails the test.
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

// emptyPools drops the used timers that nats.go keeps: a timer from a bubble crashes a program
// outside of it, and the other way round. A sync.Pool is empty after two collections.
func emptyPools() {
	runtime.GC()
	runtime.GC()
}
