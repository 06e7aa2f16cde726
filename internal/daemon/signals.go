package daemon

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
)

// errInterrupted is the cause with which the context ends at a signal.
var errInterrupted = errors.New("interrupted")

// Signals counts SIGINT and SIGTERM. The first signal ends the context of [UntilSignal] for an
// orderly stop. The second signal ends the process with status 1. If [Signals.Patience] was
// called, the second signal asks for a quick stop instead, and the third ends the process.
type Signals struct {
	quickStop    chan struct{} // closed at the second signal
	hasQuickStop atomic.Bool   // Patience was called
	stop         func()
}

// Patience returns a channel that the second signal closes. The caller must then stop quickly.
func (s *Signals) Patience() <-chan struct{} {
	s.hasQuickStop.Store(true)
	return s.quickStop
}

// Stop stops counting and ends the context.
func (s *Signals) Stop() { s.stop() }

// UntilSignal returns a context that ends at the first signal.
func UntilSignal(parent context.Context) (context.Context, *Signals) {
	ctx, cancel := context.WithCancelCause(parent)
	s := &Signals{quickStop: make(chan struct{})}
	came := make(chan os.Signal, 3)
	signal.Notify(came, os.Interrupt, syscall.SIGTERM)
	// If the reader of stdout closes the pipe, SIGPIPE would end the process. It is caught
	// here, so that running work still ends in order.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	s.stop = func() {
		signal.Stop(came)
		close(came)
		cancel(nil)
	}
	go func() {
		if _, open := <-came; !open {
			return
		}
		cancel(errInterrupted)
		if _, open := <-came; !open {
			return
		}
		if s.hasQuickStop.Load() {
			close(s.quickStop)
			if _, open := <-came; !open {
				return
			}
		}
		os.Exit(1)
	}()
	return ctx, s
}
