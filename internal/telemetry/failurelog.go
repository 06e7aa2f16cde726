package telemetry

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// failureLogInterval is the least time between two log lines about traces that are not sent.
const failureLogInterval = time.Minute

// failureLog is an exporter that limits the log lines about its failures, because without a
// collector every batch of spans fails.
type failureLog struct {
	sdktrace.SpanExporter
	log *slog.Logger

	mu         sync.Mutex
	last       time.Time // guarded by mu
	suppressed int       // failures since the last line; guarded by mu
}

// ExportSpans never returns an error. The SDK would log the text of the error, which quotes
// the collector.
func (c *failureLog) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	if err := c.SpanExporter.ExportSpans(ctx, spans); err != nil {
		c.logFailure(err)
	}
	return nil
}

func (c *failureLog) logFailure(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.last.IsZero() && time.Since(c.last) < failureLogInterval {
		c.suppressed++
		return
	}
	c.log.Warn("traces are not sent", "err", describeFailure(err), "failures_since_last_line", c.suppressed)
	c.last, c.suppressed = time.Now(), 0
}

var (
	httpStatus = regexp.MustCompile(`^traces export: failed to send to \S+: ([1-5]\d\d)\b`)
	grpcCode   = regexp.MustCompile(`rpc error: code = (Canceled|Unknown|InvalidArgument|DeadlineExceeded|NotFound|AlreadyExists|PermissionDenied|` +
		`ResourceExhausted|FailedPrecondition|Aborted|OutOfRange|Unimplemented|Internal|Unavailable|DataLoss|Unauthenticated) desc = `)
)

// describeFailure describes an exporter's error without the error's text. The text quotes the
// collector, which may repeat credentials that it got. It also has the whole address, which
// may have a token. The exporters have no types for most errors, so describeFailure looks for
// known words in the text.
func describeFailure(err error) string {
	text := err.Error()
	var network net.Error
	var name *net.DNSError
	var certificate *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	httpFound, grpcFound := httpStatus.FindStringSubmatch(text), grpcCode.FindStringSubmatch(text)
	switch {
	case httpFound != nil:
		return "HTTP status " + httpFound[1]
	case strings.Contains(text, "retry-able request failure: body: "):
		return "HTTP status 429, 502, 503 or 504"
	case grpcFound != nil:
		return "gRPC code " + grpcFound[1]
	case strings.Contains(text, "OTLP partial success: "):
		return "the collector has taken a part of them"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.As(err, &name):
		return "no such host"
	case errors.As(err, &certificate), errors.As(err, &unknown):
		return "the certificate of the collector is not trusted"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		return "timeout"
	case errors.Is(err, context.Canceled):
		return "given up at the end of the process"
	}
	return "connection or answer broken"
}

// destination returns log attributes that say where traces go: the variable that names the
// collector, and the collector's host. It leaves out the path, which may have a token.
func destination() []any {
	variable := otlp + "ENDPOINT"
	if given(otlp+"TRACES_ENDPOINT") != "" {
		variable = otlp + "TRACES_ENDPOINT"
	}
	u, err := url.Parse(given(variable))
	if err != nil { // host:port, as gRPC accepts it
		return []any{"variable", variable}
	}
	return []any{"variable", variable, "collector", cmp.Or(u.Host, "localhost")}
}
