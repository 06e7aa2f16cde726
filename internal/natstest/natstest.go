// Package natstest gives a test a real NATS server in the test's own process. The server runs
// in real time ([Server]), or in a testing/synctest bubble ([Bubble]). In a bubble, ten
// seconds of waiting take a few milliseconds.
//
// There is no mock of JetStream. A server starts in about 4 ms and needs no port and no
// container. Its data is removed with the test.
package natstest

import (
	"os"
	"runtime/debug"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/devserver"
)

// Tests with servers make much garbage and keep little. With the default setting, a fifth of
// their time would go to garbage collection.
func init() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
}

// Server starts a server that ends with the test. It syncs every message to the disk, as in
// production, unless an option says otherwise.
func Server(tb testing.TB, options ...Option) *devserver.Server {
	tb.Helper()
	var o devserver.Options
	for _, set := range options {
		set(&o)
	}
	if o.Listen == anyPort {
		o.Listen = FreeAddr(tb) // still free after a restart of the server
	}
	if o.DataDir == "" {
		o.DataDir = DataDir(tb)
	}
	srv, err := devserver.Start(o)
	if err != nil {
		tb.Fatalf("start a NATS server: %v", err)
	}
	tb.Cleanup(srv.Shutdown)
	return srv
}

// Option changes the server of a test.
type Option func(*devserver.Options)

// Fast lets the operating system decide when to sync. Use it for tests with many thousand
// messages, unless they are about what survives a crash.
func Fast(o *devserver.Options) { o.SyncInterval = time.Hour }

// Listening opens a port on the loopback interface, for tests with subprocesses. Do not use it
// in a bubble.
func Listening(o *devserver.Options) { o.Listen = anyPort }

const anyPort = "127.0.0.1:0"
