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

// complainEvery is the time between two lines about traces that are not sent.
const complainEvery = time.Minute

// complaints is an exporter whose failures are logged once in a while: a collector that is away fails with every batch of spans.
type complaints struct {
	sdktrace.SpanExporter
	log *slog.Logger

	mu     sync.Mutex
	last   time.Time // guarded by mu
	missed int       // guarded by mu; since the last line
}

// ExportSpans leaves nothing to complain of to the SDK, whose words hold those of the collector.
func (c *complaints) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	if err := c.SpanExporter.ExportSpans(ctx, spans); err != nil {
		c.complain(err)
	}
	return nil
}

func (c *complaints) complain(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.last.IsZero() && time.Since(c.last) < complainEvery {
		c.missed++
		return
	}
	c.log.Warn("traces are not sent", "err", whatHappened(err), "failures_since_last_line", c.missed)
	c.last, c.missed = time.Now(), 0
}

var (
	httpStatus = regexp.MustCompile(`^traces export: failed to send to \S+: ([1-5]\d\d)\b`)
	grpcCode   = regexp.MustCompile(`rpc error: code = (Canceled|Unknown|InvalidArgument|DeadlineExceeded|NotFound|AlreadyExists|PermissionDenied|` +
		`ResourceExhausted|FailedPrecondition|Aborted|OutOfRange|Unimplemented|Internal|Unavailable|DataLoss|Unauthenticated) desc = `)
)

// whatHappened is an error of an exporter in words of ours. Its own words are never shown: they hold what the collector said,
// which may be the credentials it was sent, and the whole address, which may hold a token. The exporters have no types
// for most of what happens to them, so it is their text that tells.
func whatHappened(err error) string {
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

// destination is what a line says of where traces go to: the variable that names the collector, and its host. The path may hold
// a token.
func destination() []any {
	variable := otlp + "ENDPOINT"
	if given(otlp+"TRACES_ENDPOINT") != "" {
		variable = otlp + "TRACES_ENDPOINT"
	}
	u, err := url.Parse(given(variable))
	if err != nil { // host:port, as gRPC takes it
		return []any{"variable", variable}
	}
	return []any{"variable", variable, "collector", cmp.Or(u.Host, "localhost")}
}
