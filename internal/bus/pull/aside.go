package pull

import (
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/status"
)

const (
	// A puller with two consumers looks at the second one every asideEvery, for at most asideFor.
	// For busyAside after a look that found a message, every other pull request is a look.
	asideEvery, asideFor, busyAside = 3 * time.Second, 25 * time.Millisecond, 10 * time.Second
	// maxAsidePause bounds the pause after a look that failed.
	maxAsidePause = 30 * time.Second
)

// aside is the second consumer of a puller. If it cannot be asked, the first one goes on, and looks
// pause for a while. Its fields are owned by Run's goroutine.
type aside struct {
	consumer          string
	lookedAt, foundAt time.Time     // when it was last asked, and when it last had a message
	pause             time.Duration // between looks after failures; 0: the last look did not fail
}

// busy reports whether a look found a message a moment ago.
func (a *aside) busy(now time.Time) bool {
	return a.pause == 0 && !a.foundAt.IsZero() && now.Sub(a.foundAt) < busyAside
}

// due reports whether it is time for a look.
func (a *aside) due(now time.Time) bool {
	return a.busy(now) || now.Sub(a.lookedAt) >= max(a.pause, asideEvery)
}

func (a *aside) found(now time.Time) { a.foundAt, a.pause = now, 0 }

// failed records that a look failed.
func (a *aside) failed(conn *bus.Conn, err error, now time.Time) {
	a.lookedAt, a.pause = now, min(max(2*a.pause, asideEvery), maxAsidePause)
	conn.Logger().Warn("looking into the second queue failed; the first one is not concerned", "consumer", a.consumer, "err", err, "wait", a.pause)
	reportMissing(conn, err)
}

// takeAside handles a status that answers a look. Every status except a heartbeat ends the look,
// and frees the slots that still wait for it.
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
