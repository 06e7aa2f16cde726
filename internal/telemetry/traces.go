package telemetry

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/tracing"
)

// flushIn limits how long the end of the process waits for unsent spans. Tests change it.
var flushIn = 2 * time.Second

// Traces returns the tracer of this process and a function that sends the remaining spans at
// the end. It reads the OTEL_* variables of OpenTelemetry's specification. If no variable asks
// for traces, the tracer is nil. An error names the variable that is wrong.
//
// Spans wait in a queue of limited size. If the queue is full, further spans are dropped. So
// code that ends a span never waits for the collector.
func Traces(
	ctx context.Context, service, version string, log *slog.Logger,
) (tracer trace.Tracer, flush func(), err error) {
	if on, err := wanted(); err != nil || !on {
		return nil, func() {}, err
	}
	if err := checkVariables(); err != nil {
		return nil, func() {}, err
	}
	// Keep the SDK from writing to stderr, because its lines have the values of variables.
	otel.SetLogger(logr.Discard())
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Debug("the OpenTelemetry SDK reports an error", "err", err) }))
	for _, doubt := range doubts() {
		log.Warn("an OpenTelemetry variable is invalid and is ignored; the default applies", "err", doubt)
	}
	exporter, err := newExporter(ctx)
	if err != nil {
		return nil, func() {}, fmt.Errorf("open the exporter of traces that the OTEL_ variables name: %w", err)
	}
	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithAttributes(attribute.String("service.name", service),
			attribute.String("service.version", version), attribute.String("service.instance.id", newUUID())),
		// WithFromEnv comes last, so that the operator's values take precedence. Never add the
		// SDK's process detectors, because command lines may have secrets.
		resource.WithFromEnv())
	if err != nil {
		log.Debug("the resource attributes of traces are incomplete", "err", err)
	}
	log = log.With(destination()...)
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(&failureLog{SpanExporter: exporter, log: log}),
		sdktrace.WithResource(about), sdktrace.WithIDGenerator(tracing.IDs{}))
	tracer = provider.Tracer(tracing.Scope, trace.WithInstrumentationVersion(version),
		trace.WithSchemaURL(tracing.SchemaURL))
	return tracer, func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushIn)
		defer cancel()
		if err := provider.Shutdown(ending); err != nil {
			log.Warn("the last traces are not sent", "err", describeFailure(err))
		}
	}, nil
}

// newExporter returns the exporter that the variables name. Console output goes to stderr,
// because stdout is for data.
func newExporter(ctx context.Context) (sdktrace.SpanExporter, error) {
	if os.Getenv("OTEL_TRACES_EXPORTER") == "console" {
		return stdouttrace.New(stdouttrace.WithWriter(os.Stderr))
	}
	return autoexport.NewSpanExporter(ctx)
}

// newUUID returns a random UUID. The conventions ask for a UUID as the id of a service
// instance.
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
