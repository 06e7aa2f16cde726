package bus

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/bus/status"
)

// quietFor is how long Audience relies on the server's report that nobody listens to a
// subject.
const quietFor = time.Second

// Audience publishes messages that are only for subscribers who listen at this moment. When
// the server has reported that nobody listens to a subject, Audience does not publish the
// messages of this subject for quietFor.
//
// The first message of a subject asks for such a report, and then one message in every
// quietFor. This message has a reply subject, on which the server reports if nobody listens.
// Until a report comes, Audience publishes every message. So a subscriber who was there before
// the first message misses nothing. A subscriber who comes later misses at most the messages
// of one quietFor.
//
// A server before NATS 2.12 does not name the subject in its reports. With such a server,
// Audience publishes every message.
type Audience struct {
	conn  *Conn
	inbox string

	mu sync.Mutex
	// topics has the subjects that were used since began. before has those that were used in
	// the quietFor before began. Guarded by mu.
	topics, before map[string]*topic
	began          time.Time
	listening      bool // whether reports arrive here; guarded by mu
}

// topic is what is known about the subscribers of one subject.
type topic struct {
	asked time.Time // when a message last asked for a report; zero: never
	quiet time.Time // the time that the newest report is about; zero: no report has come
}

// NewAudience returns an Audience. It publishes every message before Listen is called.
func NewAudience(conn *Conn) *Audience {
	return &Audience{conn: conn, inbox: conn.nc.NewInbox(), topics: map[string]*topic{}, before: map[string]*topic{}}
}

// Listen subscribes to the server's reports until stop is called.
func (a *Audience) Listen() (stop func(), err error) {
	sub, err := a.conn.nc.Subscribe(a.inbox+".*", func(m *nats.Msg) {
		if status.Of(m) == status.NoResponders {
			a.reported(m.Header.Get("Nats-Subject"), strings.TrimPrefix(m.Subject, a.inbox+"."))
		}
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", a.inbox, ClientError(err))
	}
	a.listens(true)
	return func() {
		a.listens(false)
		_ = sub.Unsubscribe()
	}, nil
}

func (a *Audience) listens(now bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.listening = now
}

// reported handles a report that nobody listened to a subject. number is the number of the
// message that asked for the report. The report is out of date, and is ignored, if a newer
// message has asked since.
func (a *Audience) reported(subject, number string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if t := a.topic(subject, time.Now()); number == t.number() {
		t.quiet = t.asked
	}
}

// number returns the number of the newest message that asked for a report.
func (t *topic) number() string { return strconv.FormatInt(t.asked.UnixNano(), 36) }

// Quiet tells the Audience that another process found nobody listening to the subject at this
// time. The report that the other process had may be up to quietFor older. A time in the
// future counts as now, because the clocks of two machines may differ.
func (a *Audience) Quiet(subject string, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if at.After(now) {
		at = now
	}
	if t := a.topic(subject, now); at.After(t.quiet) {
		t.quiet = at
	}
}

// Has reports whether a subject may have subscribers. It returns false if a recent report says
// that the subject has none.
func (a *Audience) Has(subject string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	return !a.topic(subject, now).isQuiet(now)
}

func (t *topic) isQuiet(now time.Time) bool { return !t.quiet.IsZero() && now.Sub(t.quiet) < quietFor }

// Publish publishes a message, unless a recent report says that nobody listens to the subject.
// In that case it does not call data.
func (a *Audience) Publish(subject string, h Header, data func() []byte) error {
	ask, quiet := a.ask(subject, time.Now())
	if quiet {
		return nil
	}
	m := outgoing(subject, h, data())
	if ask != "" {
		m.Reply = a.inbox + "." + ask
	}
	if err := a.conn.nc.PublishMsg(m); err != nil {
		return fmt.Errorf("publish %s: %w", subject, ClientError(err))
	}
	return nil
}

// ask returns the number with which the next message of a subject asks for a report, or "" if
// the message does not ask. quiet means that the message must not be published.
func (a *Audience) ask(subject string, now time.Time) (number string, quiet bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.topic(subject, now)
	if t.isQuiet(now) {
		return "", true
	}
	if !a.listening || now.Sub(t.asked) < quietFor {
		return "", false
	}
	t.asked = now
	return t.number(), false
}

// topic returns the entry of a subject. It drops entries that were not used for quietFor, so
// that the maps stay small. The caller holds mu.
func (a *Audience) topic(subject string, now time.Time) *topic {
	if now.Sub(a.began) >= quietFor {
		a.before, a.topics, a.began = a.topics, map[string]*topic{}, now
	}
	t := a.topics[subject]
	if t == nil {
		if t = a.before[subject]; t == nil {
			t = &topic{}
		}
		a.topics[subject] = t
	}
	return t
}
