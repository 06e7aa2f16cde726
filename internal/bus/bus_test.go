package bus_test

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/bustest"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/wire"
)

func TestHeadersKeepTheirCaseAndAreFoundInAny(t *testing.T) {
	c := bustest.Connect(t, natstest.Server(t))
	got := make(chan bus.Msg, 1)
	stop, err := c.Subscribe("a.*", "", func(m bus.Msg) { got <- m })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	h := bus.Header{}
	h.Set("traceparent", "00-1")
	h.Set("Toolfleet-Event", "start")
	if err := c.Publish("a.b", h, []byte("x")); err != nil {
		t.Fatal(err)
	}
	m := bustest.Receive(t, got)
	for name, want := range map[string]string{"traceparent": "00-1", "Traceparent": "00-1", "TRACEPARENT": "00-1", "toolfleet-event": "start", "other": ""} {
		if v := m.Header.Get(name); v != want {
			t.Errorf("Get(%q) = %q, want %q", name, v, want)
		}
	}
	if _, ok := m.Header["traceparent"]; !ok {
		t.Errorf("the name was respelt on the wire: %v", m.Header)
	}
	if v := bus.Header(nil).Get("x"); v != "" {
		t.Errorf("no headers at all: %q", v)
	}
}

func TestRequest(t *testing.T) {
	c := bustest.Connect(t, natstest.Server(t))
	stop, err := c.Subscribe("echo", "q", func(m bus.Msg) {
		if err := c.Respond(m, bus.Header{"Seen": {"yes"}}, m.Data); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	m, err := c.Request(t.Context(), "echo", nil, []byte("hello"))
	if err != nil || string(m.Data) != "hello" || m.Header.Get("seen") != "yes" {
		t.Fatalf("got %+v, %v", m, err)
	}
	if err := c.Respond(bus.Msg{}, nil, nil); err != nil {
		t.Errorf("an answer that nobody wants: %v", err)
	}
	stop()
	if _, err := c.Request(t.Context(), "echo", nil, nil); !errors.Is(err, bus.ErrNoResponders) {
		t.Errorf("nobody there: %v", err)
	}
	if _, err := c.Request(t.Context(), "echo", nil, make([]byte, c.MaxPayload()+1)); !errors.Is(err, bus.ErrTooLarge) || !bus.IsTerminal(err) {
		t.Errorf("too large: %v", err)
	}
	if _, err := c.Subscribe("a..b", "", func(bus.Msg) {}); !bus.IsTerminal(err) {
		t.Errorf("subject without a middle: %v", err)
	}
}

func TestStreamOfAnswers(t *testing.T) {
	c := bustest.Connect(t, natstest.Server(t))
	stop, err := c.Subscribe("count", "", func(m bus.Msg) {
		for _, n := range []string{"1", "2", "3", "4"} {
			_ = c.Respond(m, nil, []byte(n))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	var got string
	err = c.Stream(t.Context(), "count", nil, nil, func(m bus.Msg) bool {
		got += string(m.Data)
		return string(m.Data) != "3"
	})
	if err != nil || got != "123" {
		t.Errorf("got %q, %v", got, err)
	}
	err = c.Stream(t.Context(), "nobody", nil, nil, func(bus.Msg) bool { return true })
	if !errors.Is(err, bus.ErrNoResponders) {
		t.Errorf("nobody there: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err = c.Stream(ctx, "count", nil, nil, func(m bus.Msg) bool {
		if string(m.Data) == "4" {
			cancel()
		}
		return true
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestConnectErrorsSayWhatToDo(t *testing.T) {
	_, err := bus.Connect(t.Context(), bus.Options{URL: "nats://127.0.0.1:1", Timeout: time.Nanosecond})
	if err == nil || !strings.Contains(err.Error(), "toolfleet nats") || !strings.Contains(err.Error(), "NATS_URL") {
		t.Errorf("nobody listens: %v", err)
	}
	missing := filepath.Join(t.TempDir(), "missing.creds")
	for _, o := range []bus.Options{
		{NKey: missing}, {TLSCA: missing}, {TLSCert: missing, TLSKey: missing}, {Creds: missing},
	} {
		o.InProcess = natstest.Server(t)
		if c, err := bus.Connect(t.Context(), o); err == nil {
			if o.Creds == "" { // the client reads credentials only if the server requires a user
				t.Errorf("connected with a missing file: %+v", o)
			}
			c.Close()
		} else if !strings.Contains(err.Error(), "missing.creds") {
			t.Errorf("the error does not name the file: %v", err)
		}
	}
}

func TestDisconnectedWritesFailAtOnceAndAreNotStoredLater(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		c := bustest.Connect(t, srv)
		bustest.Provision(t, c)
		back := make(chan struct{}, 10)
		remove := c.OnReconnect(func() { back <- struct{}{} })
		subject := c.Names().Of(wire.VerbFinal, bustest.Key("s", "b"))

		srv.Stop()
		for c.Connected() {
			time.Sleep(time.Millisecond)
		}
		before := time.Now()
		if _, err := c.Append(t.Context(), subject, nil, nil); !errors.Is(err, bus.ErrDisconnected) || bus.IsTerminal(err) {
			t.Errorf("append: %v", err)
		}
		if err := c.Send(subject, nil, nil); !errors.Is(err, bus.ErrDisconnected) {
			t.Errorf("send: %v", err)
		}
		if waited := time.Since(before); waited != 0 {
			t.Errorf("the answer took %v", waited)
		}
		time.Sleep(time.Hour)
		if err := srv.Restart(); err != nil {
			t.Fatal(err)
		}
		bustest.Receive(t, back)
		if _, err := c.Last(t.Context(), c.Names().Stream(bus.Replies), subject); !errors.Is(err, bus.ErrNotFound) {
			t.Errorf("stored after all: %v", err)
		}
		remove()
		if err := srv.Restart(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if !c.Connected() || len(back) != 0 {
			t.Errorf("connected %v, %d calls after remove", c.Connected(), len(back))
		}
	})
}

// A handler is too slow, so the client drops messages: Losses counts them.
func TestDroppedMessagesAreLosses(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		c, other := bustest.Connect(t, srv), bustest.Connect(t, srv)
		open := make(chan struct{})
		stop, err := c.Subscribe("flood", "", func(bus.Msg) { <-open })
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		time.Sleep(time.Second)
		if n := c.Losses(); n != 0 {
			t.Errorf("%d losses before there is any", n)
		}
		for range 150 { // 75 MB: more than a subscription holds
			if err := other.Publish("flood", nil, make([]byte, 1<<19)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		if n := c.Losses(); n != 1 {
			t.Errorf("%d losses, want 1", n)
		}
		close(open)
	})
}

func TestAnUnansweredWriteIsUnknown(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		c := bustest.Connect(t, srv)
		stop, err := c.Subscribe("silent", "", func(bus.Msg) {})
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		before := time.Now()
		_, err = c.CompareAndSet(t.Context(), "silent", nil, nil, 0)
		if !errors.Is(err, bus.ErrUnknown) || bus.IsTerminal(err) {
			t.Errorf("got %v, want ErrUnknown", err)
		}
		if waited := time.Since(before); waited > 10*time.Second {
			t.Errorf("waited %v without a deadline of the caller's", waited)
		}
	})
}

func TestCloseLetsHandlersFinish(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		c := bustest.Connect(t, srv)
		var finished atomic.Bool
		started := make(chan struct{})
		if _, err := c.Subscribe("slow", "", func(bus.Msg) {
			close(started)
			time.Sleep(3 * time.Second)
			finished.Store(true)
		}); err != nil {
			t.Fatal(err)
		}
		if err := c.Publish("slow", nil, nil); err != nil {
			t.Fatal(err)
		}
		bustest.Receive(t, started)
		c.Close()
		c.Close()
		if !finished.Load() {
			t.Error("closed under the hands of a handler")
		}
		if err := c.Publish("slow", nil, nil); err == nil || !bus.IsTerminal(err) {
			t.Errorf("publish on a closed connection: %v", err)
		}
	})
}

// The server refuses a publish, and its caller gets no error: the log has a line about the
// refusal.
func TestRefusedPublishesAreLogged(t *testing.T) {
	srv := restricted(t)
	log := make(chan string, 10)
	c, err := bus.Connect(t.Context(), bus.Options{URL: srv, User: "agent", Password: "secret", Logger: slog.New(handler(log))})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Publish("forbidden", nil, nil); err != nil {
		t.Fatal(err)
	}
	if line := bustest.Receive(t, log); !strings.Contains(line, "forbidden") {
		t.Errorf("logged %q", line)
	}
	_, err = bus.Connect(t.Context(), bus.Options{URL: srv, User: "agent", Password: "wrong"})
	if !bus.IsTerminal(err) || !strings.Contains(err.Error(), "--creds") {
		t.Errorf("wrong password: %v", err)
	}
}

// handler sends each line of a log to a channel.
func handler(to chan<- string) slog.Handler {
	return slog.NewTextHandler(writer(func(line []byte) { to <- string(line) }), nil)
}

type writer func([]byte)

func (w writer) Write(b []byte) (int, error) { w(b); return len(b), nil }

func TestSyncMode(t *testing.T) {
	for want, option := range map[string]natstest.Option{
		bus.SyncAlways:   func(*devserver.Options) {},
		bus.SyncInterval: natstest.Fast,
	} {
		srv := natstest.Server(t, option, natstest.Listening)
		if got := bustest.Connect(t, srv).SyncMode(t.Context()); got != want {
			t.Errorf("in the process: %s, want %s", got, want)
		}
		c, err := bus.Connect(t.Context(), bus.Options{URL: srv.URL()})
		if err != nil {
			t.Fatal(err)
		}
		if got := c.SyncMode(t.Context()); got != want {
			t.Errorf("over the port: %s, want %s", got, want)
		}
		c.Close()
	}
	c, err := bus.Connect(t.Context(), bus.Options{URL: restricted(t), User: "agent", Password: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := c.SyncMode(t.Context()); got != bus.SyncUnknown {
		t.Errorf("a server that does not tell: %s", got)
	}
}
