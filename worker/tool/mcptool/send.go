package mcptool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// The codes of calls that a server did not run.
const (
	codeServerDown  messages.Code = "server_down"
	codeServerBusy  messages.Code = "server_busy"
	codeToolChanged messages.Code = "tool_changed"
)

// message is a call of a server's tool, or a question about a call.
type message struct {
	tenant    messages.TenantID
	tool      string // the server's name for the tool
	digest    string // the digest of the definition that must be in force; "": any
	alone     bool   // nothing else may run in the process
	meta      mcp.Meta
	arguments json.RawMessage
	report    func(messages.Progress) // may be nil
}

// notRunError says that the server never got the call.
type notRunError struct {
	code      messages.Code
	text      string
	retryable bool
}

func (e *notRunError) Error() string { return e.text }

// send sends a message to a process. If there is no process, send starts one.
func (s *Server) send(ctx context.Context, m message) (*mcp.CallToolResult, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	slot, err := s.acquire(ctx, m)
	if err != nil {
		return nil, err
	}
	defer s.pool.release(slot)
	session, err := slot.open(ctx, s.start)
	if err == nil && m.digest != "" {
		var digest string
		if digest, err = session.digest(ctx, m.tool); err == nil && digest != m.digest {
			return nil, &notRunError{codeToolChanged, fmt.Sprintf("The server %s has changed the definition of %s, so it was not run. "+
				"Somebody has to accept the change.", s.Name(), m.tool), false}
		}
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("%w: %w", tool.ErrNotStarted, err)
	case err != nil:
		return nil, s.down(err)
	}
	sent := &posted{}
	result, err := session.call(withPosted(ctx, sent), &mcp.CallToolParams{Meta: m.meta, Name: m.tool, Arguments: m.arguments}, m.report)
	if err == nil || ctx.Err() != nil || sent.refused(err) && !session.dead() {
		return result, err
	}
	return nil, s.lost(session, slot, m, err, sent)
}

// ask sends a question. If the process dies, ask sends the question once more, because a
// question changes nothing.
func (s *Server) ask(ctx context.Context, m message) (*mcp.CallToolResult, error) {
	result, err := s.send(ctx, m)
	var lost *tool.LostError
	if errors.As(err, &lost) && ctx.Err() == nil {
		return s.send(ctx, m)
	}
	return result, err
}

// acquire waits for a place in a process. It gives up shortly before the call's time is over:
// a call that never ran must not end with an unknown outcome.
func (s *Server) acquire(ctx context.Context, m message) (*slot, error) {
	waiting := ctx
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		waiting, cancel = context.WithDeadline(ctx, deadline.Add(-min(time.Until(deadline)/10, time.Second)))
		defer cancel()
	}
	slot, err := s.pool.acquire(waiting, m.tenant, m.alone)
	if err != nil && ctx.Err() == nil {
		return nil, &notRunError{codeServerBusy, fmt.Sprintf("Every process of the server %s was busy for the whole time of the call, so the call was not run.",
			s.Name()), true}
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", tool.ErrNotStarted, err)
	}
	return slot, nil
}

func (s *Server) down(err error) error {
	return &notRunError{codeServerDown, fmt.Sprintf("The server %s does not run, so the call was not run: %.1000v.", s.Name(), err), true}
}

// lost drops a broken session and returns the error of its call.
func (s *Server) lost(broken *session, at *slot, m message, err error, sent *posted) error {
	unsent := errors.Is(err, mcp.ErrSessionMissing) && sent.status() == http.StatusNotFound // a restarted service does not know the session
	broken.kill(err)
	if broken.stop != nil {
		<-broken.ended
		err = errors.New(broken.how)
	}
	at.drop(broken)
	s.cfg.log("the server was lost in the middle of a call", "tool", m.tool, "err", err)
	return &tool.LostError{Err: err, Unsent: unsent}
}

// addTrace adds the trace of ctx to meta.
func addTrace(ctx context.Context, meta mcp.Meta) {
	trace := http.Header{}
	tracing.Inject(ctx, trace)
	for _, name := range []string{"traceparent", "tracestate"} {
		if value := trace.Get(name); value != "" {
			meta[name] = value
		}
	}
}
