package bus

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// readAgain is how long a reading of the server's clock is used.
const readAgain = time.Minute

// serverClock is the last reading of the server's clock. Our monotonic clock counts on from it, so
// our wall clock may be wrong, and may be set.
type serverClock struct {
	reading atomic.Pointer[reading]
	asking  sync.Mutex // held while the clock is read; other goroutines use the last reading
}

type reading struct {
	said time.Time // by the server's clock
	at   time.Time // by our clock, when the answer arrived
}

// Now returns the time by the server's clock, which stored messages carry: use it, not our clock,
// to decide whether a message has outlived its time. It may be late by as long as the server's
// answer took. When the server cannot be asked, Now continues from the last reading, or uses our
// own clock if there is none.
func (c *Conn) Now(ctx context.Context) time.Time {
	last := c.clock.reading.Load()
	if (last == nil || time.Since(last.at) > readAgain) && c.clock.asking.TryLock() {
		c.readClock(ctx)
		c.clock.asking.Unlock()
		last = c.clock.reading.Load()
	}
	if last == nil {
		return time.Now()
	}
	return last.said.Add(time.Since(last.at))
}

// Before reports whether a message was stored, by the server's clock, before the present connection
// was made. A server that has restarted since may have forgotten how often it delivered such a
// message.
func (c *Conn) Before(ctx context.Context, stored time.Time) bool {
	return c.Local(ctx, stored).Before(time.Unix(0, c.connectedAt.Load()))
}

// Local converts a time of the server's clock into a time of ours.
func (c *Conn) Local(ctx context.Context, t time.Time) time.Time {
	return time.Now().Add(t.Sub(c.Now(ctx)))
}

// readClock reads the server's clock from the time stamp of a stream info. On an error the last
// reading stays in use.
func (c *Conn) readClock(ctx context.Context) {
	var info struct {
		Time time.Time `json:"ts"`
	}
	err := c.Call(ctx, api("STREAM", "INFO", c.names.Stream(Batches)), struct{}{}, &info)
	if err == nil && !info.Time.IsZero() {
		c.clock.reading.Store(&reading{said: info.Time, at: time.Now()})
	}
}
