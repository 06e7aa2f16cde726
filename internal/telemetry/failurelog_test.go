package telemetry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestComplaintsAreRare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said strings.Builder
		log, _ := Logger(&said, "info", "json", false)
		c := &failureLog{log: log}
		for range 10 * 60 {
			c.logFailure(errors.New("connection refused"))
			time.Sleep(time.Second)
		}
		if lines := strings.Count(said.String(), "\n"); lines != 10 {
			t.Errorf("%d lines in ten minutes:\n%s", lines, &said)
		}
		if !strings.Contains(said.String(), `"failures_since_last_line":59`) {
			t.Errorf("does not say how many failures it left out:\n%s", &said)
		}
	})
}

// The log describes the answer of a collector only in words of this package, whatever the
// answer says.
func TestWhatHappened(t *testing.T) {
	for text, want := range map[string]string{
		"traces export: failed to send to http://host/token-canary: 401 Unauthorized canary (body: canary)":                  "HTTP status 401",
		"traces export: failed to send to http://host/: 200 (body: rpc error: code = Internal desc = canary)":                "HTTP status 200",
		"traces export: context deadline exceeded: retry-able request failure: body: canary":                                 "HTTP status 429, 502, 503 or 504",
		"traces export: rpc error: code = Unauthenticated desc = canary":                                                     "gRPC code Unauthenticated",
		"traces export: context deadline exceeded: rpc error: code = Unavailable desc = rpc error: code = Internal desc = x": "gRPC code Unavailable",
		"traces export: rpc error: code = canary desc = ":                                                                    "connection or answer broken",
		"traces export: OTLP partial success: canary (1 spans rejected)":                                                     "the collector has taken a part of them",
		`traces export: Post "http://host/canary": EOF`:                                                                      "connection or answer broken",
	} {
		if got := describeFailure(errors.New(text)); got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
	for want, err := range map[string]error{
		"connection refused":                 &net.OpError{Op: "canary", Err: syscall.ECONNREFUSED},
		"no such host":                       &net.DNSError{Name: "canary", IsTimeout: true},
		"timeout":                            context.DeadlineExceeded,
		"given up at the end of the process": context.Canceled,
	} {
		if got := describeFailure(fmt.Errorf("canary: %w", err)); got != want {
			t.Errorf("%v: got %q, want %q", err, got, want)
		}
	}
}
