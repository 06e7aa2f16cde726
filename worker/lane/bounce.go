package lane

import (
	"context"
	"math/rand/v2"
	"time"
)

// bounceHold is how long a job that is not served here keeps its slot. It bounds the cost of jobs
// that no worker serves: a worker bounces at most 100 of them a second for each slot.
const bounceHold = 10 * time.Millisecond

// bounce gives up a job that is not served here. Another worker of its pool may serve it and be
// idle, so the job is offered again within 50 ms of its delivery, however often it was bounced
// before. A bounce is not an attempt of its call.
func (a *attempt) bounce(ctx context.Context) error {
	a.log.Debug("let go: the tool is not served here under this definition")
	hold := time.NewTimer(bounceHold)
	defer hold.Stop()
	select {
	case <-hold.C:
	case <-ctx.Done():
	}
	return a.letGo("not served here", offerAgain(), a.runs-1)(a.delivery())
}

// offerAgain is how long the coordinator waits before it publishes a bounced job again: 25 to 40
// ms. The server takes the job out of the queue in that time, and the jitter spreads the jobs out.
func offerAgain() time.Duration {
	return time.Duration(25+rand.N(16)) * time.Millisecond
}
