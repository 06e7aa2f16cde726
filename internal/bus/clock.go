package bus

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// readAgain is how long a reading of the server's clock is used.
const readAgain = time.Minute

// serverClock is the last reading of the server's clock. The monotonic clock of the process
// measures the time since that reading. So a wrong wall clock does no harm, even if it is
// corrected in between.
type serverClock struct {
	reading atomic.Pointer[reading]
	asking  sync.Mutex // held while a goroutine reads the clock; others use the last reading
}

type reading struct {
	said time.Time // the time by the server's clock
	at   time.Time // when the answer arrived, by this process's clock
}

// Now returns the time by the server's clock, which also stamps stored messages. Use it, and
// not this process's clock, to decide whether a message is too old. The result may be behind
// by the time that the server's answer took. If the server does not answer, Now continues from
// the last reading, or returns this process's time if there was no reading.
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

// Before reports whether a message was stored before the present connection was made. A server
// that has restarted since then may have lost the delivery count of such a message.
func (c *Conn) Before(ctx context.Context, stored time.Time) bool {
	return c.Local(ctx, stored).Before(time.Unix(0, c.connectedAt.Load()))
}

// Local converts a time by the server's clock to this process's clock.
func (c *Conn) Local(ctx context.Context, t time.Time) time.Time {
	return time.Now().Add(t.Sub(c.Now(ctx)))
}

// readClock takes the server's time from the time stamp of a stream info. After an error, the
// last reading stays in use.
func (c *Conn) readClock(ctx context.Context) {
	var info struct {
		Time time.Time `json:"ts"`
	}
	err := c.Call(ctx, api("STREAM", "INFO", c.names.Stream(Batches)), struct{}{}, &info)
	if err == nil && !info.Time.IsZero() {
		c.clock.reading.Store(&reading{said: info.Time, at: time.Now()})
	}
}
