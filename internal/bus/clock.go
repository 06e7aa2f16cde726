package bus

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// readAgain is how long a reading of the server's clock is good for.
const readAgain = time.Minute

// serverClock is the server's clock as it was last read. From then on our monotonic clock counts, so that our own
// wall clock may be wrong, and may be set.
type serverClock struct {
	reading atomic.Pointer[reading]
	asking  sync.Mutex // of whoever reads the clock
}

type reading struct {
	said time.Time // by the server
	at   time.Time // by our clock, when we heard it
}

// Now is the time by the server's clock, which is the one that stored messages carry: whether something has outlived
// its time is asked of it, not of ours. It may be behind by as long as the answer of the server took. Where the server
// cannot be asked, the last reading goes on, or our own clock.
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

// Before reports whether something was stored, by the server's clock, before the present connection was made. A
// server that has restarted since may have forgotten how often it delivered such a message.
func (c *Conn) Before(ctx context.Context, stored time.Time) bool {
	return c.Local(ctx, stored).Before(time.Unix(0, c.connectedAt.Load()))
}

// Local is a time of the server's clock by ours.
func (c *Conn) Local(ctx context.Context, t time.Time) time.Time {
	return time.Now().Add(t.Sub(c.Now(ctx)))
}

func (c *Conn) readClock(ctx context.Context) {
	var info struct {
		Time time.Time `json:"ts"`
	}
	err := c.call(ctx, api("STREAM", "INFO", c.names.Stream(Batches)), struct{}{}, &info)
	if err == nil && !info.Time.IsZero() {
		c.clock.reading.Store(&reading{said: info.Time, at: time.Now()})
	}
}
