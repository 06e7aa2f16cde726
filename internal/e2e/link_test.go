package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/worker"
)

// conditions is what a link does to the bytes that go in one direction.
type conditions struct {
	silent bool          // bytes are lost without an error
	delay  time.Duration // from sending to arrival
	rate   int           // bytes a second; 0: unlimited
}

// link is the connection of one client to the server. It can fail in each direction
// separately.
type link struct {
	srv *devserver.Server

	mu        sync.Mutex
	up, down  conditions    // client to server, and server to client; guarded by mu
	notSilent chan struct{} // closed while no direction is silent; guarded by mu
	ends      []net.Conn    // guarded by mu
	// If breakText is set, the link breaks once, at the first chunk that contains this text.
	// The fraction breakPart of that chunk still arrives.
	breakText string  // guarded by mu
	breakPart float64 // guarded by mu
	broken    bool    // guarded by mu
	// The server's clock is this many hours ahead of the client's clock. The link shifts every
	// time that it carries, in both directions.
	ahead int
}

var errSilent = errors.New("the link is silent")

// newLink returns a working link to a server. It is closed when the test ends.
func newLink(t *testing.T, srv *devserver.Server) *link {
	l := &link{srv: srv, notSilent: make(chan struct{})}
	close(l.notSilent)
	t.Cleanup(l.close)
	return l
}

func (l *link) close() {
	l.set(conditions{}, conditions{})
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, end := range l.ends {
		_ = end.Close()
	}
}

func (l *link) set(up, down conditions) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.up.silent || l.down.silent
	l.up, l.down = up, down
	if is := up.silent || down.silent; was && !is {
		close(l.notSilent)
	} else if is && !was {
		l.notSilent = make(chan struct{})
	}
}

// InProcessConn opens a connection to the server over the link. A silent link refuses the
// connection at once, and the server's greeting passes undisturbed in all conditions. The
// reason is simulated time: a client holds its connection's lock while it waits for the
// greeting, and a goroutine that waits for that lock stops the time.
func (l *link) InProcessConn() (net.Conn, error) {
	l.mu.Lock()
	silent := l.up.silent || l.down.silent
	l.mu.Unlock()
	if silent {
		return nil, errSilent
	}
	far, err := l.srv.InProcessConn()
	if err != nil {
		return nil, err
	}
	near, middle := net.Pipe()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ends = append(l.ends, far, middle)
	go l.pass(middle, far, &l.up, "PING\r\n", -l.ahead)
	go l.pass(far, middle, &l.down, "PONG\r\n", l.ahead)
	return near, nil
}

// pass carries one direction of a connection. The word last ends the greeting of that
// direction. After one side closes, pass closes the other side, but only while the link is not
// silent. However slow the link is, pass reads without delay: a writer that blocks may hold a
// lock, which would stop simulated time.
func (l *link) pass(from, to net.Conn, now *conditions, last string, hours int) {
	pieces := make(chan piece, 1<<16)
	go l.carry(pieces, to, now)
	defer close(pieces)
	for greeting := true; ; {
		said := make([]byte, 64<<10)
		n, err := from.Read(said)
		l.mu.Lock()
		silent, calm, delay := now.silent, l.notSilent, now.delay
		blows := !l.broken && l.breakText != "" && bytes.Contains(said[:n], []byte(l.breakText))
		if blows {
			l.broken, n = true, int(float64(n)*l.breakPart)
		}
		l.mu.Unlock()
		switch {
		case err != nil:
			if !greeting {
				<-calm
			}
			return
		case silent && !greeting:
			continue
		}
		p := piece{data: shiftTimes(said[:n], hours), greeting: greeting}
		if !greeting {
			p.at = time.Now().Add(delay)
		}
		pieces <- p
		greeting = greeting && !bytes.Contains(said[:n], []byte(last))
		if blows {
			_ = from.Close()
			return
		}
	}
}

var (
	hourOfDay   = regexp.MustCompile(`2000-01-01T\d\d:`)
	nanoseconds = regexp.MustCompile(`\b946[67]\d{14}\b`) // in an ack's subject
)

// shiftTimes shifts the times in a text by whole hours. A shifted time has as many digits, so
// that no length field changes.
func shiftTimes(data []byte, hours int) []byte {
	if hours == 0 {
		return data
	}
	data = hourOfDay.ReplaceAllFunc(data, func(at []byte) []byte {
		var h int
		_, _ = fmt.Sscanf(string(at), "2000-01-01T%d:", &h)
		return fmt.Appendf(nil, "2000-01-01T%02d:", h+hours)
	})
	return nanoseconds.ReplaceAllFunc(data, func(at []byte) []byte {
		n, _ := strconv.ParseInt(string(at), 10, 64)
		return strconv.AppendInt(nil, n+int64(hours)*int64(time.Hour), 10)
	})
}

// piece is a chunk of bytes, with the earliest time at which it may arrive.
type piece struct {
	data     []byte
	at       time.Time
	greeting bool
}

// carry delivers the chunks of one direction, delayed and slowed down by the conditions.
func (l *link) carry(pieces <-chan piece, to net.Conn, now *conditions) {
	defer to.Close()
	for p := range pieces {
		time.Sleep(time.Until(p.at))
		l.mu.Lock()
		rate := now.rate
		l.mu.Unlock()
		if rate > 0 && !p.greeting {
			time.Sleep(time.Duration(len(p.data)) * time.Second / time.Duration(rate))
		}
		if _, err := to.Write(p.data); err != nil {
			for range pieces { // drop the rest until pass ends
			}
			return
		}
	}
}

func (l *link) connect(f *fleet, name string) *bus.Conn {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := bus.Connect(ctx, bus.Options{InProcess: l, Name: name, Logger: f.log, Timeout: time.Minute})
	if err != nil {
		f.t.Fatal(err)
	}
	return conn
}

// workerOver starts a worker whose connection is the link.
func (f *fleet) workerOver(l *link, cfg worker.Config) {
	f.t.Helper()
	cfg.Logger = f.log
	conn := l.connect(f, "worker")
	w, err := worker.New(conn, f.tools, cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	f.start(conn, w.Run)
}

// coordinatorOver starts a coordinator whose connection is the link, and waits until it is
// ready.
func (f *fleet) coordinatorOver(l *link) {
	f.t.Helper()
	conn := l.connect(f, "coordinator")
	c, err := coordinator.New(conn, coordinator.Config{Logger: f.log})
	if err != nil {
		f.t.Fatal(err)
	}
	f.start(conn, c.Run)
	f.until("the coordinator is ready", c.Ready)
}
