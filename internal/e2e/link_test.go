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
	"github.com/toolfleet/toolfleet/worker"
)

// weather is what a link does to what goes over it in one direction.
type weather struct {
	silent bool          // nothing arrives, and nobody is told
	delay  time.Duration // from when something is said to when it is heard
	rate   int           // bytes a second; 0: any
}

// link is the connection of one party to the server. It can go wrong in each direction on its own.
type link struct {
	srv *devserver.Server

	mu       sync.Mutex
	up, down weather       // what the party says, and what it hears; guarded by mu
	calm     chan struct{} // closed while nothing is silent; guarded by mu
	ends     []net.Conn    // guarded by mu
	// A link with a fuse breaks once, at the first piece that holds these words: so much of it arrives.
	fuse   string  // guarded by mu
	passes float64 // guarded by mu
	blown  bool    // guarded by mu
	// The server's clock is ahead of the party's by so many hours: every time that is said or heard is changed.
	ahead int
}

var errSilent = errors.New("the link is silent")

// newLink is a link to a server that works. It ends with the test.
func newLink(t *testing.T, srv *devserver.Server) *link {
	l := &link{srv: srv, calm: make(chan struct{})}
	close(l.calm)
	t.Cleanup(l.close)
	return l
}

func (l *link) close() {
	l.set(weather{}, weather{})
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, end := range l.ends {
		_ = end.Close()
	}
}

func (l *link) set(up, down weather) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.up.silent || l.down.silent
	l.up, l.down = up, down
	if is := up.silent || down.silent; was && !is {
		close(l.calm)
	} else if is && !was {
		l.calm = make(chan struct{})
	}
}

// InProcessConn makes a connection to the server over the link. Who waits for the first words of a server holds the lock of its
// connection, and whoever wants that lock stops simulated time. So while the link is silent it makes none, at once; and
// the two greet each other in any weather.
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

// pass carries one direction, of which the given words end the greeting. The end of one side is heard of at the other once the link is
// not silent. It takes what is said at once, however slow the link is: who writes may hold a lock, and then no simulated time would pass.
func (l *link) pass(from, to net.Conn, now *weather, last string, hours int) {
	pieces := make(chan piece, 1<<16)
	go l.carry(pieces, to, now)
	defer close(pieces)
	for greeting := true; ; {
		said := make([]byte, 64<<10)
		n, err := from.Read(said)
		l.mu.Lock()
		silent, calm, delay := now.silent, l.calm, now.delay
		blows := !l.blown && l.fuse != "" && bytes.Contains(said[:n], []byte(l.fuse))
		if blows {
			l.blown, n = true, int(float64(n)*l.passes)
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
		p := piece{said: later(said[:n], hours), greeting: greeting}
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
	nanoseconds = regexp.MustCompile(`\b946[67]\d{14}\b`) // of that day, in the subject of an ack
)

// later moves the times in a text by whole hours. They stay as long as they are, so that nothing else has to change.
func later(said []byte, hours int) []byte {
	if hours == 0 {
		return said
	}
	said = hourOfDay.ReplaceAllFunc(said, func(at []byte) []byte {
		var h int
		_, _ = fmt.Sscanf(string(at), "2000-01-01T%d:", &h)
		return fmt.Appendf(nil, "2000-01-01T%02d:", h+hours)
	})
	return nanoseconds.ReplaceAllFunc(said, func(at []byte) []byte {
		n, _ := strconv.ParseInt(string(at), 10, 64)
		return strconv.AppendInt(nil, n+int64(hours)*int64(time.Hour), 10)
	})
}

// piece is something that was said, and when it is heard at the earliest.
type piece struct {
	said     []byte
	at       time.Time
	greeting bool
}

func (l *link) carry(pieces <-chan piece, to net.Conn, now *weather) {
	defer to.Close()
	for p := range pieces {
		time.Sleep(time.Until(p.at))
		l.mu.Lock()
		rate := now.rate
		l.mu.Unlock()
		if rate > 0 && !p.greeting {
			time.Sleep(time.Duration(len(p.said)) * time.Second / time.Duration(rate))
		}
		if _, err := to.Write(p.said); err != nil {
			for range pieces { // until the other side has heard of it
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

// workerOver and coordinatorOver are daemons whose connection is the link.
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
