package pull

import (
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/status"
)

const (
	// A puller with two consumers asks the second consumer every asideEvery, and waits for at
	// most asideFor. After a request that got a message, every other pull request goes to the
	// second consumer, for busyAside.
	asideEvery, asideFor, busyAside = 3 * time.Second, 25 * time.Millisecond, 10 * time.Second
	// maxAsidePause limits the pause after a failed request to the second consumer.
	maxAsidePause = 30 * time.Second
)

// aside is the second consumer of a puller. If requests to it fail, the first consumer
// continues, and requests to the second pause for a while. The fields belong to the goroutine
// of Run.
type aside struct {
	consumer          string
	lookedAt, foundAt time.Time     // when it was last asked, and when it last had a message
	pause             time.Duration // pause after a failed request; 0: the last request did not fail
}

// busy reports whether a recent request to the second consumer got a message.
func (a *aside) busy(now time.Time) bool {
	return a.pause == 0 && !a.foundAt.IsZero() && now.Sub(a.foundAt) < busyAside
}

// due reports whether the next request should go to the second consumer.
func (a *aside) due(now time.Time) bool {
	return a.busy(now) || now.Sub(a.lookedAt) >= max(a.pause, asideEvery)
}

func (a *aside) found(now time.Time) { a.foundAt, a.pause = now, 0 }

// failed records that a request to the second consumer failed.
func (a *aside) failed(conn *bus.Conn, err error, now time.Time) {
	a.lookedAt, a.pause = now, min(max(2*a.pause, asideEvery), maxAsidePause)
	conn.Logger().Warn("looking into the second queue failed; the first one is not concerned", "consumer", a.consumer, "err", err, "wait", a.pause)
	reportMissing(conn, err)
}

// takeAside handles a status from the second consumer. Every status except a heartbeat ends
// the request, and frees the slots that wait for it.
func (i *inbox) takeAside(m *nats.Msg, code int) {
	switch code {
	case status.Heartbeat:
		return
	case status.Expired:
		i.p.aside.pause = 0
	default:
		i.p.aside.failed(i.p.conn, refusal(m, code), time.Now())
	}
	i.free(i.aside)
	i.aside = 0
}
