package httpapi

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/toolfleet/toolfleet/internal/mcpserver"
	"github.com/toolfleet/toolfleet/messages"
)

// mcpSession is the session of a call whose MCP client names no session. A user with a token
// gets a session below it, so that the calls of each user keep their order.
const mcpSession messages.SessionID = "mcp"

// serveMCP answers a request of an MCP client.
func (s *Server) serveMCP(w http.ResponseWriter, q *request) error {
	release, err := s.waiting.take()
	if err != nil {
		return err
	}
	defer release()
	ctx := q.Context()
	// The answer ends early only for a client that is gone. A stopping server tells the client
	// in the answer that it stops.
	open, gone := context.WithCancel(context.WithoutCancel(ctx))
	defer gone()
	closing, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	defer context.AfterFunc(ctx, func() {
		if cause := context.Cause(ctx); errors.Is(cause, context.Canceled) {
			gone()
		} else {
			stop(cause)
		}
	})()
	session := mcpSession
	if q.who.User != "" {
		session += messages.SessionID("/" + q.who.User)
	}
	s.mcp.ServeHTTP(slowly{w}, q.WithContext(open), mcpserver.Caller{
		Client: q.client, Tenant: q.who.Tenant, User: q.who.User, Path: q.session, Session: session, Closing: closing,
	}, q.body)
	return nil
}

// slowly limits how long the client may take to read each write.
type slowly struct{ http.ResponseWriter }

// Write implements [http.ResponseWriter].
func (w slowly) Write(p []byte) (int, error) {
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(readIn))
	return w.ResponseWriter.Write(p)
}

// Unwrap gives [http.ResponseController] the writer below.
func (w slowly) Unwrap() http.ResponseWriter { return w.ResponseWriter }
