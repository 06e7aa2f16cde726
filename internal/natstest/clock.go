package natstest

import (
	"sync"
	"sync/atomic"
	"time"
	_ "unsafe" // for go:linkname

	"github.com/nats-io/nats-server/v2/server/ats"
)

// nats-server keeps one rough clock per process, in its package ats, and expires stored messages by
// it. The goroutine behind it waits on a channel. If it were started inside a bubble, it would stop
// the bubble's time. Outside of bubbles it gives the real time to a bubble, so that every message
// in a stream with a MaxAge expires at the first check. So this package registers for the clock
// once, stops that goroutine, and sets the clock itself: by real time outside of bubbles, by
// simulated time inside one.
//
// A rename in the server is a link error here; TestBubbleExpires finds any other change.
//
//go:linkname serverTime github.com/nats-io/nats-server/v2/server/ats.utime
var serverTime atomic.Int64

//go:linkname serverClockDone github.com/nats-io/nats-server/v2/server/ats.done
var serverClockDone chan struct{}

const (
	realTick = ats.TickInterval
	// Simulated days pass in a test, and a rougher tick makes them faster.
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

// stopClock hands the clock over to a bubble. It panics when another bubble runs: a test called
// t.Parallel.
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

// keepClock sets the server's clock to the caller's time (real or simulated), now and at every
// tick, until stop.
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
