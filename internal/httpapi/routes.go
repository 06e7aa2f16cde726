package httpapi

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/tracing"
)

// route is one row of the API.
type route struct {
	method, path string
	handle       func(*Server, http.ResponseWriter, *request) error
	body         int64 // the largest body, in bytes; 0: none
	open         bool  // anybody may ask
}

// wholeBatch, as the size of a body, is the largest batch of the fleet.
const wholeBatch = -1

const (
	sessionPath = "/v1/sessions/{session}"
	batchPath   = sessionPath + "/batches/{batch}"
)

// routes is the API. Package mcpserver answers below /mcp.
var routes = []route{
	{method: http.MethodPut, path: batchPath, handle: (*Server).putBatch, body: wholeBatch},
	{method: http.MethodGet, path: batchPath, handle: (*Server).getBatch},
	{method: http.MethodDelete, path: batchPath, handle: (*Server).deleteBatch},
	{method: http.MethodPut, path: sessionPath + "/calls/{batch}", handle: (*Server).putCall, body: wholeBatch},
	{method: http.MethodPost, path: sessionPath + "/steer", handle: (*Server).steer, body: maxControl},
	{method: http.MethodPost, path: sessionPath + "/abort", handle: (*Server).abort, body: maxControl},
	{method: http.MethodGet, path: sessionPath + "/events", handle: (*Server).sessionEvents},
	{method: http.MethodGet, path: "/v1/events", handle: (*Server).liveEvents},
	{method: http.MethodGet, path: "/v1/tools", handle: (*Server).listTools},
	{method: http.MethodGet, path: "/v1/approvals", handle: (*Server).listApprovals},
	{method: http.MethodGet, path: "/v1/approvals/{approval}", handle: (*Server).showApproval},
	{method: http.MethodPost, path: "/v1/approvals/{approval}/decision", handle: (*Server).decide, body: maxDecision},
	{method: http.MethodPost, path: "/mcp", handle: (*Server).serveMCP, body: wholeBatch},
	{method: http.MethodPost, path: "/mcp/{session}", handle: (*Server).serveMCP, body: wholeBatch},
	{method: http.MethodGet, path: "/openapi.json", handle: (*Server).getOpenAPI, open: true},
}

// Handler returns the API as a handler.
func (s *Server) Handler() http.Handler {
	var r router
	for _, to := range routes {
		r.add(to.method, to.path, s.answering(to))
	}
	if s.cfg.Health != nil {
		r.add(http.MethodGet, "/healthz", s.cfg.Health)
		r.add(http.MethodGet, "/readyz", s.cfg.Health)
		r.add(http.MethodGet, "/metrics", s.guarded(s.cfg.Health))
	}
	return receiving(s.sameSite(&r))
}

// receiving bounds how long a body takes, whether it is read or not, and has the answer arrive at a
// client that still sends. net/http closes a connection with unread bytes at once, unless a limit
// of the body was passed: then it closes its own direction first and waits. Without that the
// connection is reset, and the client loses the answer.
func receiving(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 0 {
			next.ServeHTTP(w, r)
			return
		}
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyIn))
		body := &body{ReadCloser: r.Body}
		r = r.WithContext(r.Context()) // net/http looks at the body of its own request
		r.Body = body
		next.ServeHTTP(w, r)
		if !body.ended {
			_, _ = http.MaxBytesReader(w, io.NopCloser(strings.NewReader("x")), 0).Read(make([]byte, 1))
		}
	})
}

// body knows whether all of it was read.
type body struct {
	io.ReadCloser
	ended bool
}

// Read implements [io.Reader].
func (b *body) Read(p []byte) (n int, err error) {
	n, err = b.ReadCloser.Read(p)
	b.ended = b.ended || err == io.EOF
	return n, err
}

// sameSite refuses requests of web pages: a browser would send them for any page, also to a server
// that only its own machine reaches. Pages of the configured origins may ask.
func (s *Server) sameSite(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		origin := r.Header.Get("Origin")
		known := origin != "" && slices.Contains(s.cfg.Origins, origin)
		if known {
			w.Header().Set("Access-Control-Allow-Origin", origin)
			w.Header().Set("Access-Control-Expose-Headers", "Toolfleet-Digest, Retry-After, ETag, Mcp-Session-Id")
			w.Header().Set("Vary", "Origin")
		}
		if known && r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
			w.Header().Set("Access-Control-Allow-Methods", "GET, PUT, POST, DELETE")
			w.Header().Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Prefer, Last-Event-ID, traceparent, tracestate, "+
				"Idempotency-Key, Toolfleet-Session, Mcp-Session-Id, Mcp-Protocol-Version, Mcp-Method, Mcp-Name")
			w.WriteHeader(http.StatusNoContent)
			return
		}
		if err := s.origins.Check(r); err != nil {
			newProblem(http.StatusForbidden, "foreign_origin", "a page of another origin may not ask this server; its settings name those that may").write(w)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// guarded lets only those in who may use the API.
func (s *Server) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := s.cfg.Access.Who(r); err != nil {
			s.refuse(w, asProblem(err))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// answering reads a request and calls its handler. If the handler fails, it writes the problem.
func (s *Server) answering(r route) http.Handler {
	name := r.method + " " + r.path
	return http.HandlerFunc(func(w http.ResponseWriter, hr *http.Request) {
		counted := &countedWriter{ResponseWriter: w}
		defer func() { s.cfg.Metrics.answered(name, counted.status) }()
		ctx, stop := s.untilClosing(tracing.Extract(hr.Context(), headers{hr.Header}))
		defer stop()
		ctx, span := s.cfg.Tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer))
		defer span.End()
		q, err := s.read(w, hr.WithContext(ctx), r)
		if err == nil {
			if !r.open {
				defer s.whileAllowed(q)()
			}
			err = r.handle(s, counted, q)
		}
		if err != nil && hr.Context().Err() == nil {
			tracing.Fail(span, problemOf(err).Code)
			s.refuse(counted, err)
		}
	})
}

// refuse answers with the problem of an error.
func (s *Server) refuse(w http.ResponseWriter, err error) {
	p := problemOf(err)
	if p.status >= http.StatusInternalServerError {
		s.log.Warn("a request could not be answered", "code", p.Code, "err", err)
	}
	if p.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="toolfleet"`)
	}
	p.write(w)
}

// untilClosing returns a context that also ends when the server stops.
func (s *Server) untilClosing(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.closing, func() { cancel(context.Cause(s.closing)) })
	return ctx, func() { stop(); cancel(nil) }
}

// headers reads trace context from the headers of a request.
type headers struct{ http.Header }
