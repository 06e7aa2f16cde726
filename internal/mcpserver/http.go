package mcpserver

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/client"
)

// clientHeader is the header by which the server tells clients of protocols before 2026-07-28
// apart. The server makes the value when a client begins, and keeps no record of it.
const clientHeader = "Mcp-Session-Id"

// lateCancel is how long a client can cancel a call after it has closed the stream of the
// call.
const lateCancel = time.Minute

// ServeHTTP answers one request whose body was already read. The request's context ends when
// the client is gone. who.Closing ends when the server stops or the client may send no more
// requests.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request, who Caller, body []byte) {
	m := peek(body)
	key := cancelKey{who.Tenant, who.User, r.Header.Get(clientHeader), string(m.ID)}
	v := &visit{Caller: who, header: r.Header, gone: r.Context(), cancelled: context.Background(), request: key.label()}
	v.turn = func() (stored func()) { return func() {} }
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
		stored, err := s.inTurn(v, m)
		if err != nil {
			return // the client is gone, and the fleet does not have its call
		}
		defer stored()
		v.turn = func() func() { return stored }
	case "notifications/cancelled":
		key.id = string(m.Params.RequestID)
		if v.request = key.label(); !s.running.cancel(key) && v.request != "" {
			s.cancelElsewhere(v, m.Params.Meta)
		}
	}
	r = r.WithContext(context.WithValue(r.Context(), visitKey{}, v))
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	s.overHTTP.ServeHTTP(w, r)
	v.calls.Wait()
}

// cancelElsewhere aborts a call for which another server waits. If the client gave the call no
// id, cancelElsewhere finds it in the fleet's list of batches: its batch id begins with the
// label of the request. If the client gave it an id, the notification must repeat that id.
func (s *Server) cancelElsewhere(v *visit, meta mcp.Meta) {
	n, err := v.name(meta)
	if err != nil {
		return // a notification has no answer
	}
	if n.own {
		s.abort(v, n, errCancelled)
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(v.gone), abortWithin)
	defer cancel()
	list, err := v.Client.Batches(ctx, n.session, client.ListOptions{})
	if err != nil {
		s.log.Warn("a call that an MCP client has cancelled may go on, because the calls of its session could not be listed", "session", n.session, "err", err)
		return
	}
	for _, b := range list.Batches {
		if b.Open() && strings.HasPrefix(string(b.Batch), idPrefix+v.request) {
			s.abort(v, named{session: n.session, id: b.Batch}, errCancelled)
		}
	}
}

// inTurn waits until the earlier calls of the session are stored. If it cannot read the
// session or the number of the call, it does not wait.
func (s *Server) inTurn(v *visit, m peeked) (stored func(), err error) {
	n, err := v.name(m.Params.Meta)
	if err != nil {
		return func() {}, nil // the answer of the call says what is wrong
	}
	number, err := strconv.ParseInt(string(m.ID), 10, 64)
	if err != nil {
		return func() {}, nil
	}
	return s.arrivals.enter(v.gone, sessionKey{v.Tenant, n.session}, number)
}

// peeked has those parts of a message that the transport needs.
type peeked struct {
	Method string          `json:"method"`
	ID     json.RawMessage `json:"id"`
	Params struct {
		RequestID json.RawMessage `json:"requestId"`
		Meta      mcp.Meta        `json:"_meta"`
	} `json:"params"`
}

// peek reads a message. If it cannot, the result has no method, and the SDK refuses the
// message.
func peek(body []byte) (m peeked) {
	if json.Unmarshal(body, &m) != nil {
		return peeked{}
	}
	return m
}

// cancelKey identifies a request as a notification that cancels it does.
type cancelKey struct{ tenant, user, client, id string }

// label returns a short name of the request for ids. It returns "" if the client cannot be
// told apart from others.
func (k cancelKey) label() string {
	if k.client == "" || k.id == "" {
		return ""
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q", []string{k.tenant, k.user, k.client, k.id}))
	return hex.EncodeToString(sum[:10]) + "-"
}

// registry has the calls that another request may cancel.
type registry struct {
	mu    sync.Mutex
	calls map[cancelKey]*running // guarded by mu
}

// running is one request for a call. If the client repeats the request, the new one has the
// same key.
type running struct{ cancel context.CancelFunc }

// add returns a context that ends when the call is cancelled. The caller must call done at the
// end.
func (r *registry) add(key cancelKey) (cancelled context.Context, done func()) {
	cancelled, cancel := context.WithCancel(context.Background())
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls == nil {
		r.calls = map[cancelKey]*running{}
	}
	own := &running{cancel}
	r.calls[key] = own
	return cancelled, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.calls[key] == own {
			delete(r.calls, key)
		}
	}
}

// cancel cancels a call that this server is waiting for. It reports whether there is such a
// call.
func (r *registry) cancel(key cancelKey) bool {
	r.mu.Lock()
	found := r.calls[key]
	r.mu.Unlock()
	if found == nil {
		return false
	}
	found.cancel()
	return true
}
