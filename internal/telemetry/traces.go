package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/tracing"
)

// flushIn bounds how long spans that are not sent yet may hold up the end of the process, whatever the collector does.
const flushIn = 2 * time.Second

// Traces builds the tracer of this process from the OTEL_* variables of OpenTelemetry's specification, and the function that
// sends what is left at its end. Where none of them names an exporter or an endpoint there is no tracer: nil, and silence.
func Traces(ctx context.Context, service, version string, log *slog.Logger) (tracer trace.Tracer, flush func(), err error) {
	if !wanted(os.Environ()) {
		return nil, func() {}, nil
	}
	exporter, err := autoexport.NewSpanExporter(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("open the exporter of traces that the OTEL_ variables name: %w", err)
	}
	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithAttributes(attribute.String("service.name", service), attribute.String("service.version", version)), resource.WithFromEnv())
	if err != nil {
		log.Warn("the description of this process in traces is not complete", "err", err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("traces are not sent", "err", err) }))
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about), sdktrace.WithIDGenerator(tracing.IDs{}))
	tracer = provider.Tracer(tracing.Scope, trace.WithInstrumentationVersion(version), trace.WithSchemaURL(tracing.SchemaURL))
	return tracer, func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushIn)
		defer cancel()
		if err := provider.Shutdown(ending); err != nil {
			log.Warn("the last traces are not sent", "err", err)
		}
	}, nil
}

// wanted reports whether somebody wants traces. The exporters' own default is a collector on this machine, which would have
// everybody without one read of failed exports.
func wanted(environ []string) bool {
	named := false
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		switch {
		case value == "":
		case name == "OTEL_SDK_DISABLED" && strings.EqualFold(value, "true"):
			return false
		case name == "OTEL_TRACES_EXPORTER", strings.HasPrefix(name, "OTEL_EXPORTER_OTLP_") && strings.HasSuffix(name, "ENDPOINT"):
			named = true
		}
	}
	return named
}
