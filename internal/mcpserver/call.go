package mcpserver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/messages"
)

const (
	// storedSoon is how long a call waits until a coordinator has stored it. After that the
	// server stores the call itself, because there may be no coordinator.
	storedSoon = 20 * time.Millisecond
	// storeWithin limits the time to store a call. Later calls of the connection wait
	// meanwhile, so that they are stored after it.
	storeWithin = 10 * time.Second
	// busyFor is how long the server retries a call that the fleet refuses as busy.
	busyFor = 10 * time.Second
	// abortWithin limits the time to abort a call whose client is gone.
	abortWithin = 10 * time.Second
)

// Reasons to stop waiting for the result of a call.
var (
	errGone      = errors.New("the client is gone")
	errCancelled = errors.New("the client has cancelled the call")
)

// call runs one call and returns what the client gets. It calls stored when the next call of
// the connection may be stored. An error of call is an error of the protocol.
func (s *Server) call(ctx context.Context, v *visit, req *mcp.CallToolRequest, stored func()) (*mcp.CallToolResult, error) {
	n, err := v.name(req.Params.Meta)
	if err != nil {
		return nil, err
	}
	body, err := batchOf(n, req.Params)
	if err != nil {
		return nil, invalid("the call cannot be written as a batch: %v", err)
	}
	if parent, ok := req.Params.Meta["traceparent"].(string); ok {
		state, _ := req.Params.Meta["tracestate"].(string)
		ctx = tracing.Extract(ctx, traceHeader{"traceparent": parent, "tracestate": state})
	}
	waiting, end := context.WithCancelCause(ctx)
	defer end(nil)
	defer context.AfterFunc(v.gone, func() { end(errGone) })()
	defer context.AfterFunc(v.cancelled, func() { end(errCancelled) })()
	if v.Closing != nil {
		defer context.AfterFunc(v.Closing, func() { end(context.Cause(v.Closing)) })()
	}
	told := newNews(ctx, req)
	defer told.stop()
	asked := s.watchPeople(waiting, v, n, end)
	// Ask for the result before storing the call, because events before the request are lost.
	r := ask(waiting, v, body, func(e messages.Event) {
		told.event(e)
		asked(e)
	})
	defer r.wait()
	defer end(nil)
	if !r.stored() {
		var refusal *messages.Refusal
		switch err := store(waiting, v, body); {
		case errors.As(err, &refusal):
			return answer(n, messages.Reply{}, err), nil
		case err != nil && waiting.Err() != nil:
			return s.leave(v, n, context.Cause(waiting)), nil
		case err != nil:
			return unanswered(n, "The fleet could not be given this call: "+err.Error()+"."), nil
		}
	}
	stored()
	reply, err := r.wait()
	if err != nil && waiting.Err() != nil {
		return s.leave(v, n, context.Cause(waiting)), nil
	}
	return answer(n, reply, err), nil
}

// run is one request for the reply of a batch.
type run struct {
	begun chan struct{} // closed with the first event
	ended chan struct{} // closed when reply and err are set
	reply messages.Reply
	err   error
}

// ask starts a request for the reply of a batch. The request also submits the batch to a
// coordinator.
func ask(ctx context.Context, v *visit, body []byte, each func(messages.Event)) *run {
	r := &run{begun: make(chan struct{}), ended: make(chan struct{})}
	begin := sync.OnceFunc(func() { close(r.begun) })
	go func() {
		defer close(r.ended)
		r.reply, r.err = v.Client.Run(ctx, messages.Batch{}, client.WithBody(body), client.RetryBusy(busyFor), client.OnEvent(func(e messages.Event) {
			if e.Type != messages.EventWaiting { // the client makes this event, not a coordinator
				begin()
			}
			each(e)
		}))
	}()
	return r
}

// stored waits up to storedSoon. It reports whether a coordinator is known to have stored the
// batch.
func (r *run) stored() bool {
	select {
	case <-r.begun:
		return true
	case <-r.ended:
		return r.err == nil
	case <-time.After(storedSoon):
		return false
	}
}

func (r *run) wait() (messages.Reply, error) {
	<-r.ended
	return r.reply, r.err
}

// batchOf encodes a call as a batch. The same call always gives the same bytes.
func batchOf(n named, p *mcp.CallToolParamsRaw) ([]byte, error) {
	input := json.RawMessage("{}")
	if len(p.Arguments) > 0 && string(p.Arguments) != "null" {
		input = p.Arguments
	}
	call := rawjson.JoinMembers(map[string]json.RawMessage{"id": rawjson.Quote(string(n.id)), "name": rawjson.Quote(p.Name), "input": input})
	return messages.Batch{
		V: messages.Version, ID: n.id, Session: n.session, Provider: messages.Canonical,
		Message: append(append([]byte(`{"calls":[`), call...), "]}"...),
	}.Encode()
}

// store submits a batch, and tries again until the batch is stored or refused. If the client
// leaves, store still finishes the present try, because an abort may follow.
func store(ctx context.Context, v *visit, body []byte) error {
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeWithin)
	defer cancel()
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := v.Client.Submit(within, messages.Batch{}, client.WithBody(body))
		var refusal *messages.Refusal
		if err == nil || errors.As(err, &refusal) {
			return err
		}
		select {
		case <-time.After(wait):
		case <-within.Done():
			return err
		case <-ctx.Done():
			return err
		}
	}
}

// leave returns the answer for a call when the server stops waiting for it. cause is why it
// stops. leave aborts a call that the client has cancelled. It also aborts a call whose client
// is gone and cannot ask for the call again.
func (s *Server) leave(v *visit, n named, cause error) *mcp.CallToolResult {
	var waits *waitsForPerson
	switch {
	case errors.As(cause, &waits):
		return goesOn(n, waits.text)
	case errors.Is(cause, errGone) && n.own:
		context.AfterFunc(v.cancelled, func() { s.abort(v, n, errCancelled) })
		return goesOn(n, "The client is gone.")
	case errors.Is(cause, errGone), v.gone.Err() != nil && !n.own:
		s.abort(v, n, errGone)
	case v.gone.Err() != nil: // the SDK ended the call because the connection is closed
		return goesOn(n, "The client is gone.")
	case v.Closing != nil && v.Closing.Err() != nil && errors.Is(cause, context.Cause(v.Closing)):
		result := goesOn(n, "This server no longer waits for the call: "+cause.Error()+".")
		result.IsError = true
		return result
	default:
		s.abort(v, n, errCancelled)
	}
	return failure(n, "The call was aborted: "+cmp.Or(cause, errCancelled).Error()+".")
}

// abort aborts a call. why becomes the reason in its result.
func (s *Server) abort(v *visit, n named, why error) {
	ctx, cancel := context.WithTimeout(context.Background(), abortWithin)
	defer cancel()
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		_, err := v.Client.Abort(ctx, n.session, n.id, client.Reason{Text: why.Error(), By: v.User})
		if err == nil {
			return
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			s.log.Warn("a call of an MCP client that is gone goes on, because it could not be aborted", "session", n.session, "batch", n.id, "err", err)
			return
		}
	}
}

// traceHeader is a trace context in the form of a header.
type traceHeader map[string]string

// Get implements [tracing.Header].
func (h traceHeader) Get(name string) string { return h[name] }

// Set implements [tracing.Header].
func (h traceHeader) Set(name, value string) { h[name] = value }
