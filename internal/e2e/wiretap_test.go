package e2e

import (
	"bytes"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/toolfleet/toolfleet/internal/devserver"
)

// wiretap records the subjects that each identity publishes and subscribes to.
type wiretap struct {
	mu       sync.Mutex
	subjects map[string]bool // "worker publish toolfleet.call.acme.s.b.0"; guarded by mu
}

func (w *wiretap) record(who, what, subject string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.subjects == nil {
		w.subjects = map[string]bool{}
	}
	w.subjects[who+" "+what+" "+subject] = true
}

// subjectsOf returns the sorted subjects that an identity used. what is "publish" or
// "subscribe".
func (w *wiretap) subjectsOf(who, what string) (subjects []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for line := range w.subjects {
		if subject, ok := strings.CutPrefix(line, who+" "+what+" "); ok {
			subjects = append(subjects, subject)
		}
	}
	slices.Sort(subjects)
	return subjects
}

// tapped is a server whose connections a wiretap records.
type tapped struct {
	srv *devserver.Server
	tap *wiretap
	who string
}

func (s tapped) InProcessConn() (net.Conn, error) {
	c, err := s.srv.InProcessConn()
	if err != nil {
		return nil, err
	}
	return &tappedConn{Conn: c, tapped: s}, nil
}

type tappedConn struct {
	net.Conn
	tapped
	rest []byte // the start of an incomplete command; writes come in sequence
}

func (c *tappedConn) Write(b []byte) (int, error) {
	c.rest = append(c.rest, b...)
	for c.command() {
	}
	return c.Conn.Write(b)
}

// command takes one command of the NATS protocol off the recorded bytes. It returns false if
// no command is complete.
func (c *tappedConn) command() bool {
	line, after, whole := bytes.Cut(c.rest, []byte("\r\n"))
	if !whole {
		return false
	}
	words := strings.Fields(string(line))
	switch {
	case len(words) > 1 && words[0] == "SUB":
		c.tap.record(c.who, "subscribe", words[1])
	case len(words) > 2 && (words[0] == "PUB" || words[0] == "HPUB"):
		size, err := strconv.Atoi(words[len(words)-1])
		if err != nil {
			panic(fmt.Sprintf("a publish that cannot be read: %q", line))
		}
		if len(after) < size+2 {
			return false
		}
		c.tap.record(c.who, "publish", words[1])
		after = after[size+2:]
	}
	c.rest = slices.Clone(after)
	return true
}

// matches reports whether a subject, which may have wildcards, lies within a pattern by the
// rules of NATS.
func matches(pattern, subject string) bool {
	p, s := strings.Split(pattern, "."), strings.Split(subject, ".")
	for i, token := range p {
		if token == ">" {
			return len(s) > i
		}
		if i >= len(s) || token != "*" && token != s[i] || token == "*" && s[i] == ">" {
			return false
		}
	}
	return len(s) == len(p)
}
