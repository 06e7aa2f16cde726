package telemetry

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/tracing"
)

// flushIn bounds how long spans that are not sent yet may hold up the end of the process, whatever the collector does.
const flushIn = 2 * time.Second

// Traces builds the tracer of this process from the OTEL_* variables of OpenTelemetry's specification, and the function that
// sends what is left at its end. Where none of them asks for traces there is no tracer: nil, and silence. An error is about a
// variable and names it.
//
// Spans wait in a queue of bounded length and are dropped when it is full: whoever ends one never waits for the collector.
func Traces(ctx context.Context, service, version string, log *slog.Logger) (tracer trace.Tracer, flush func(), err error) {
	if on, err := wanted(); err != nil || !on {
		return nil, func() {}, err
	}
	if err := checkVariables(); err != nil {
		return nil, func() {}, err
	}
	exporter, err := newExporter(ctx)
	if err != nil {
		return nil, func() {}, fmt.Errorf("open the exporter of traces that the OTEL_ variables name: %w", err)
	}
	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithAttributes(attribute.String("service.name", service), attribute.String("service.version", version), attribute.String("service.instance.id", newUUID())),
		resource.WithFromEnv()) // last: what the operator says holds. Never the process's own detectors: command lines hold secrets
	if err != nil {
		log.Warn("the description of this process in traces is not complete", "err", err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(&complaints{SpanExporter: exporter, log: log, hide: secrets()}), sdktrace.WithResource(about), sdktrace.WithIDGenerator(tracing.IDs{}))
	tracer = provider.Tracer(tracing.Scope, trace.WithInstrumentationVersion(version), trace.WithSchemaURL(tracing.SchemaURL))
	return tracer, func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushIn)
		defer cancel()
		if err := provider.Shutdown(ending); err != nil {
			log.Warn("the last traces are not sent", "err", secrets().Replace(err.Error()))
		}
	}, nil
}

// newExporter is the one that the variables name. What is meant for the console goes to stderr: stdout is data.
func newExporter(ctx context.Context) (sdktrace.SpanExporter, error) {
	if os.Getenv("OTEL_TRACES_EXPORTER") == "console" {
		return stdouttrace.New(stdouttrace.WithWriter(os.Stderr))
	}
	return autoexport.NewSpanExporter(ctx)
}

// newUUID is a random one, as the conventions want it for an instance of a service.
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// complainEvery is the time between two lines about traces that are not sent.
const complainEvery = time.Minute

// longestComplaint bounds one: a collector's answer may be a page.
const longestComplaint = 300

// complaints is an exporter whose failures are logged once in a while: a collector that is away fails with every batch of spans.
type complaints struct {
	sdktrace.SpanExporter
	log  *slog.Logger
	hide *strings.Replacer

	mu     sync.Mutex
	last   time.Time // guarded by mu
	missed int       // guarded by mu; since the last line
}

// ExportSpans leaves nothing to complain of to the SDK, which writes to stderr in words of its own.
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
	text := userInfo.ReplaceAllString(c.hide.Replace(err.Error()), "://(hidden)@")
	if len(text) > longestComplaint {
		text = strings.ToValidUTF8(text[:longestComplaint], "") + "..."
	}
	c.log.Warn("traces are not sent", "err", text, "failures_since_last_line", c.missed)
	c.last, c.missed = time.Now(), 0
}

var userInfo = regexp.MustCompile(`://[^\s/]*@`)

// secrets hides what the headers for the exporter hold. A collector may say them in its answer.
func secrets() *strings.Replacer {
	const leastSecret = 4 // shorter ones are words that a text may need
	var pairs []string
	hide := func(value string) {
		if len(value) >= leastSecret {
			pairs = append(pairs, value, "(hidden)")
		}
	}
	for _, name := range []string{otlp + "HEADERS", otlp + "TRACES_HEADERS"} {
		for header := range strings.SplitSeq(os.Getenv(name), ",") {
			_, raw, _ := strings.Cut(header, "=")
			raw = strings.TrimSpace(raw)
			plain, err := url.PathUnescape(raw)
			hide(raw)
			hide(cmp.Or(plain, raw))
			if err == nil {
				for word := range strings.FieldsSeq(plain) { // Bearer, and what follows it
					hide(word)
				}
			}
		}
	}
	return strings.NewReplacer(pairs...)
}
