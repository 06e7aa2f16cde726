package mcpserver

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"time"
)

// clientHeader tells clients of the protocols before 2026-07-28 apart. The server makes its value
// when a client begins and remembers nothing of it.
const clientHeader = "Mcp-Session-Id"

// lateCancel is how long after its stream was closed a call can still be cancelled.
const lateCancel = time.Minute

// ServeHTTP answers one request with a body that was read already. Its context ends when the client
// is gone; who.Closing ends when the server stops or the client may no longer ask.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request, who Caller, body []byte) {
	m := peek(body)
	key := cancelKey{who.Tenant, who.User, r.Header.Get(clientHeader), string(m.ID)}
	v := &visit{Caller: who, header: r.Header, gone: r.Context(), cancelled: context.Background(), turn: inNoOrder}
	switch m.Method {
	case "initialize":
		w.Header().Set(clientHeader, rand.Text())
	case "tools/call":
		if key.client != "" {
			var done func()
			v.cancelled, done = s.running.add(key)
			defer func() {
				if r.Context().Err() == nil {
					done()
				} else {
					time.AfterFunc(lateCancel, done)
				}
			}()
		}
	case "notifications/cancelled":
		key.id = string(m.Params.RequestID)
		s.running.cancel(key)
	}
	r = r.WithContext(context.WithValue(r.Context(), visitKey{}, v))
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	s.overHTTP.ServeHTTP(w, r)
	v.calls.Wait()
}

// inNoOrder is for requests over HTTP: each comes over a connection of its own, in any order.
func inNoOrder() (stored func()) { return func() {} }

// peeked is what the transport has to know of a message.
type peeked struct {
	Method string          `json:"method"`
	ID     json.RawMessage `json:"id"`
	Params struct {
		RequestID json.RawMessage `json:"requestId"`
	} `json:"params"`
}

// peek reads a message. One that cannot be read has no method; the SDK refuses it.
func peek(body []byte) (m peeked) {
	if json.Unmarshal(body, &m) != nil {
		return peeked{}
	}
	return m
}

// cancelKey names a request as the client that cancels it does.
type cancelKey struct{ tenant, user, client, id string }

// registry holds the calls that another request may cancel.
type registry struct {
	mu    sync.Mutex
	calls map[cancelKey]context.CancelFunc // guarded by mu
}

// add returns a context that ends when the call is cancelled, until done is called.
func (r *registry) add(key cancelKey) (cancelled context.Context, done func()) {
	cancelled, cancel := context.WithCancel(context.Background())
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls == nil {
		r.calls = map[cancelKey]context.CancelFunc{}
	}
	r.calls[key] = cancel
	return cancelled, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.calls, key)
	}
}

func (r *registry) cancel(key cancelKey) {
	r.mu.Lock()
	cancel := r.calls[key]
	r.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}
