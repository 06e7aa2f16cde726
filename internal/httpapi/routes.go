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

// route describes one kind of request of the API.
type route struct {
	method, path string
	handle       func(*Server, http.ResponseWriter, *request) error
	body         int64 // the largest body, in bytes; 0: no body
	open         bool  // requests need no principal
}

// wholeBatch as the size of a body means the size of the largest batch of the fleet.
const wholeBatch = -1

const (
	sessionPath = "/v1/sessions/{session}"
	batchPath   = sessionPath + "/batches/{batch}"
)

// routes is the API. Package mcpserver answers the requests below /mcp.
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

// Handler returns the handler of the whole API.
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

// receiving limits how long a body may take, whether the handler reads it or not. It also
// makes sure that the answer arrives at a client that is still sending. net/http closes a
// connection with unread bytes at once. The connection is then reset, and the client loses the
// answer. If a limit of the body was exceeded, net/http first closes only its own direction,
// and waits. receiving makes use of that.
func receiving(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 0 {
			next.ServeHTTP(w, r)
			return
		}
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyIn))
		body := &body{ReadCloser: r.Body}
		r = r.WithContext(r.Context()) // a copy: net/http still needs the body of the original
		r.Body = body
		next.ServeHTTP(w, r)
		if !body.ended {
			_, _ = http.MaxBytesReader(w, io.NopCloser(strings.NewReader("x")), 0).Read(make([]byte, 1))
		}
	})
}

// body remembers whether all of it was read.
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

// sameSite refuses requests of web pages. A browser sends such requests for any page, also to
// a server that only the browser's machine reaches. Pages of the configured origins may send
// requests.
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

// guarded answers only principals who may use the API.
func (s *Server) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := s.cfg.Access.Who(r); err != nil {
			s.refuse(w, asProblem(err))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// answering reads a request and calls its handler. If the handler returns an error, it writes
// the problem.
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

// refuse answers a request with the problem for an error.
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

// headers are the headers of a request, from which the trace context is read.
type headers struct{ http.Header }
