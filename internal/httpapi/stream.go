package httpapi

import (
	"bytes"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// heartbeatEvery is the time between two signs of life on a stream.
const heartbeatEvery = 10 * time.Second

// stream writes server-sent events. Safe for concurrent use.
type stream struct {
	w    http.ResponseWriter
	conn *http.ResponseController

	mu    sync.Mutex
	begun bool  // the headers are written; guarded by mu
	err   error // the first failed write; guarded by mu
}

func newStream(w http.ResponseWriter) *stream {
	return &stream{w: w, conn: http.NewResponseController(w)}
}

// hasBegun reports whether the client was already sent a status.
func (s *stream) hasBegun() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.begun
}

// send writes one event. id is the place after which a client can resume; "": none. data has
// no line feed.
func (s *stream) send(id string, kind messages.EventType, data []byte) error {
	var text bytes.Buffer
	if id != "" {
		text.WriteString("id: " + id + "\n")
	}
	text.WriteString("event: " + string(kind) + "\ndata: ")
	text.Write(data)
	text.WriteString("\n\n")
	return s.write(text.Bytes())
}

// open writes the headers, and a first sign of life.
func (s *stream) open() error { return s.write([]byte(": open\n\n")) }

// beat writes a sign of life, which is a comment that clients do not show as an event.
func (s *stream) beat() error { return s.write([]byte(": heartbeat\n\n")) }

func (s *stream) write(text []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	_ = s.conn.SetWriteDeadline(time.Now().Add(readIn))
	if !s.begun {
		s.begun = true
		h := s.w.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-store")
		h.Set("X-Accel-Buffering", "no") // proxies pass each event on at once
		s.w.WriteHeader(http.StatusOK)
	}
	if _, s.err = s.w.Write(text); s.err == nil {
		s.err = s.conn.Flush()
	}
	return s.err
}

// heartbeats writes signs of life until stop is called. It calls lost if the client does not
// read them.
func (s *stream) heartbeats(lost func(error)) (stop func()) {
	ended, running := make(chan struct{}), sync.WaitGroup{}
	running.Go(func() {
		beats := time.NewTicker(heartbeatEvery)
		defer beats.Stop()
		for {
			select {
			case <-ended:
				return
			case <-beats.C:
				if err := s.beat(); err != nil {
					lost(err)
					return
				}
			}
		}
	})
	return func() { close(ended); running.Wait() }
}

// follow runs a batch and streams its live events. The reply is the last event. An error
// before the first event is an ordinary answer. A later error is an event of type error.
func (s *Server) follow(w http.ResponseWriter, q *request, body []byte) error {
	release, err := s.streams.take()
	if err != nil {
		return err
	}
	defer release()
	defer s.cfg.Metrics.streaming()()
	w.Header().Set(digestHeader, messages.Digest(body))
	ctx, lost := withCancel(q)
	defer lost(nil)
	out := newStream(w)
	defer out.heartbeats(lost)()
	each := func(e messages.Event) {
		if e.Type != messages.EventReply && e.Type != messages.EventWaiting {
			if err := out.send("", e.Type, rawjson.MustMarshal(e)); err != nil {
				lost(err)
			}
		}
	}
	reply, err := q.client.Run(ctx, messages.Batch{}, client.WithBody(body), client.RetryBusy(busyFor), client.OnEvent(each))
	switch {
	case err != nil && !out.hasBegun():
		return withReply(err, reply)
	case err != nil:
		_ = out.send("", eventError, problemOf(withReply(err, reply)).body()) // the client may be gone
		return nil
	}
	whole, err := rawjson.Marshal(reply)
	if err != nil {
		return err
	}
	_ = out.send("", messages.EventReply, []byte(strings.TrimSpace(string(whole)))) // the client may be gone
	return nil
}

// eventError is the type of the event that reports an error after the first event of a stream.
const eventError messages.EventType = "error"
