package natstest

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/devserver"
)

// Intruder is a plain NATS client with the key of an identity. Unlike toolfleet, it may use
// any subject, any reply subject and any header. It ends with the test.
type Intruder struct {
	tb    testing.TB
	nc    *nats.Conn
	inbox string

	mu       sync.Mutex
	received []Intercepted // guarded by mu
	refused  int           // guarded by mu
}

// Intercepted is a message that an intruder received.
type Intercepted struct {
	Subscription, Subject, Reply string
	Data                         []byte
}

// Intruder connects to the server with the identity who. The test then tries things that this
// identity may not do.
func (ids *Identities) Intruder(srv *devserver.Server, who string) *Intruder {
	ids.tb.Helper()
	i := &Intruder{tb: ids.tb, inbox: ids.Inbox(who)}
	seed, err := nats.NkeyOptionFromSeed(ids.Seed(who))
	if err != nil {
		ids.tb.Fatal(err)
	}
	i.nc, err = nats.Connect("", nats.InProcessServer(srv), seed, nats.CustomInboxPrefix(i.inbox), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.refused++
	}))
	if err != nil {
		ids.tb.Fatalf("connect as %s: %v", who, err)
	}
	ids.tb.Cleanup(i.nc.Close)
	return i
}

// Inbox returns a reply subject to which the intruder may subscribe.
func (i *Intruder) Inbox() string { return i.inbox + ".any" }

// Publish publishes a message. If the client itself refuses the message, nothing happens.
func (i *Intruder) Publish(subject, reply string, header map[string][]string, data []byte) {
	_ = i.nc.PublishMsg(&nats.Msg{Subject: subject, Reply: reply, Header: header, Data: data})
}

// Subscribe tries to subscribe. It skips a subject with ">" in the middle, because the server
// would close the connection.
func (i *Intruder) Subscribe(subject string) {
	if strings.Contains(subject, ">.") {
		return
	}
	_, _ = i.nc.Subscribe(subject, func(m *nats.Msg) {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.received = append(i.received, Intercepted{subject, m.Subject, m.Reply, m.Data})
	})
}

// Flush returns when the server has processed everything that was published.
func (i *Intruder) Flush() {
	i.tb.Helper()
	if err := i.nc.FlushTimeout(time.Minute); err != nil {
		i.tb.Errorf("an intruder cannot go on: %v, %v", err, i.nc.LastError())
	}
}

// Received returns the messages that the intruder received.
func (i *Intruder) Received() []Intercepted {
	i.mu.Lock()
	defer i.mu.Unlock()
	return append([]Intercepted(nil), i.received...)
}

// Refused returns how many requests of the intruder the server has refused.
func (i *Intruder) Refused() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.refused
}
