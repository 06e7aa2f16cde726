// Package mcpserver shows a fleet as an MCP server, over stdio and over streamable HTTP. It is
// a client of the fleet's endpoints: each call is a canonical batch of one call.
//
//	mcpserver.go  the two requests of MCP that the fleet answers
//	stdio.go      one connection: its calls are stored in the order in which they came
//	http.go       requests over HTTP: none needs an earlier one
//	arrivals.go   the order of calls that arrive together over HTTP
//	ids.go        which session a call belongs to, and its id
//	call.go       one call, from its request to its result
//	people.go     calls that wait for a person
//	answer.go     what a client reads of a result
//	tools.go      definitions of tools
//
// If a client gave a call an id, the call continues after the client has gone. A client that
// asks with the same id later gets its result. A call without an id is aborted when its client
// has gone.
package mcpserver

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Config holds the settings of a Server.
type Config struct {
	// Version is the version of this build. Clients see it.
	Version string
	// AnswerWithin is how long a call may wait for a person before the server tells the client
	// so. Most clients give up after 60 s. Default 45 s.
	AnswerWithin time.Duration

	Logger *slog.Logger // nil: no log
}

// Server answers MCP clients. Safe for concurrent use.
type Server struct {
	cfg      Config
	log      *slog.Logger
	overHTTP *mcp.StreamableHTTPHandler
	running  registry
	arrivals arrivals
}

// New returns a server. When the requests of a client have ended, the server keeps nothing of
// that client.
func New(cfg Config) *Server {
	if cfg.AnswerWithin == 0 {
		cfg.AnswerWithin = 45 * time.Second
	}
	if cfg.Version == "" {
		cfg.Version = "devel"
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{cfg: cfg, log: cfg.Logger}
	overHTTP := s.protocol(false)
	s.overHTTP = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return overHTTP }, &mcp.StreamableHTTPOptions{
		Stateless: true, DisableLocalhostProtection: true, MaxRequestBodyBytes: -1, // the caller of ServeHTTP does these checks
	})
	return s
}

// protocol returns the server of the SDK. changes says whether it tells clients that it will
// report changes of the tools.
func (s *Server) protocol(changes bool) *mcp.Server {
	p := mcp.NewServer(&mcp.Implementation{Name: "toolfleet", Version: s.cfg.Version}, &mcp.ServerOptions{
		Instructions: instructions,
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{ListChanged: changes}},
	})
	p.AddReceivingMiddleware(s.answering)
	return p
}

const instructions = "The tools run on a toolfleet fleet: calls that only read run beside each other, and each call that changes something " +
	"runs alone, in the order in which the calls were made. A failed call says why, and whether it may have taken effect."

// answering answers the requests about tools. It passes all other requests to the SDK.
func (s *Server) answering(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		v, ok := ctx.Value(visitKey{}).(*visit)
		if !ok {
			return next(ctx, method, req)
		}
		switch req := req.(type) {
		case *mcp.ListToolsRequest:
			return s.listTools(ctx, v)
		case *mcp.CallToolRequest:
			v.calls.Add(1)
			defer v.calls.Done()
			stored := v.turn()
			defer stored()
			result, err := s.call(ctx, v, req, stored)
			if err != nil {
				return nil, err
			}
			return complete(result, req.Params.Meta), nil
		}
		return next(ctx, method, req)
	}
}
