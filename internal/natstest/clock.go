package natstest

import (
	"sync"
	"sync/atomic"
	"time"
	_ "unsafe" // for go:linkname

	"github.com/nats-io/nats-server/v2/server/ats"
)

// nats-server keeps one rough clock per process, in its package ats. It expires stored
// messages by this clock. A goroutine drives the clock and waits on a channel. If the
// goroutine were started inside a bubble, the bubble's time would stand still. If it runs
// outside of bubbles, the server in a bubble gets the real time, and every message in a stream
// with a MaxAge expires at the first check. Therefore this package registers for the clock
// once, stops that goroutine, and sets the clock itself: to the real time outside of bubbles,
// to the simulated time inside a bubble.
//
// If nats-server renames these variables, the link fails. TestBubbleExpires finds any other
// change.
//
//go:linkname serverTime github.com/nats-io/nats-server/v2/server/ats.utime
var serverTime atomic.Int64

//go:linkname serverClockDone github.com/nats-io/nats-server/v2/server/ats.done
var serverClockDone chan struct{}

const (
	realTick = ats.TickInterval
	// Simulated days pass in a test. A rougher tick makes them pass faster.
	bubbleTick = time.Second
)

// realClock sets the server's clock to the real time while no bubble runs.
var realClock struct {
	once sync.Once
	mu   sync.Mutex
	stop func() // guarded by mu; nil while a bubble runs
}

// startClock sets the server's clock to the real time until stopClock.
func startClock() {
	realClock.mu.Lock()
	defer realClock.mu.Unlock()
	realClock.stop = keepClock(realTick)
}

// stopClock stops the real clock, so that a bubble can set the server's clock. It panics if
// another bubble runs, because a test has called t.Parallel.
func stopClock() {
	realClock.once.Do(func() {
		ats.Register()
		serverClockDone <- struct{}{}
		startClock()
	})
	realClock.mu.Lock()
	defer realClock.mu.Unlock()
	if realClock.stop == nil {
		panic("natstest: two bubbles at the same time (t.Parallel?)")
	}
	realClock.stop()
	realClock.stop = nil
}

// keepClock sets the server's clock to the caller's time (real or simulated), at once and at
// every tick, until stop is called.
func keepClock(tick time.Duration) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	serverTime.Store(time.Now().UnixNano())
	go func() {
		defer close(ended)
		ticker := time.NewTicker(tick)
		defer ticker.Stop()
		for {
			select {
			case now := <-ticker.C:
				serverTime.Store(now.UnixNano())
			case <-done:
				return
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}
