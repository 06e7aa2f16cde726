package natstest

import (
	"sync"
	"sync/atomic"
	"time"
	_ "unsafe" // for go:linkname

	"github.com/nats-io/nats-server/v2/server/ats"
)

// nats-server keeps one rough clock per process, in its package ats, and expires stored messages by it. The goroutine
// behind it waits on a channel made outside of every bubble: started inside one it would hold the bubble's
// time still, and left outside it would tell a bubble the real time, so that everything in a stream with a MaxAge
// expires at the first look. So this package registers for the clock once, stops that goroutine, and
// keeps the clock itself: by real time outside of bubbles, by simulated time inside one.
//
// A rename in the server shows as a link error here; TestBubbleExpires shows the rest.
//
//go:linkname serverTime github.com/nats-io/nats-server/v2/server/ats.utime
var serverTime atomic.Int64

//go:linkname serverClockDone github.com/nats-io/nats-server/v2/server/ats.done
var serverClockDone chan struct{}

const (
	realTick   = ats.TickInterval
	bubbleTick = time.Second // simulated days go by: rougher is faster
)

// realClock keeps the real time while no bubble runs.
var realClock struct {
	once sync.Once
	mu   sync.Mutex
	stop func() // guarded by mu; nil while a bubble runs
}

// startClock lets real time rule.
func startClock() {
	realClock.mu.Lock()
	defer realClock.mu.Unlock()
	realClock.stop = keepClock(realTick)
}

// stopClock ends the rule of real time. A second bubble at the same time is its test's fault.
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

// keepClock sets the server's clock to the time of the caller's world, now and at every tick, until stop.
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
