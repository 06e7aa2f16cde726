package bash

import (
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/toolfleet/toolfleet/internal/sandbox"
	"github.com/toolfleet/toolfleet/internal/tracing"
)

// The sandbox refuses something to a command: the output and the span say so, whether or not
// the command fails.
func TestRefusedAccessesAreSeen(t *testing.T) {
	if m := sandbox.Local(); m.Landlock == 0 && !m.Namespaces.Mount {
		t.Skip("this machine cannot refuse a file")
	}
	runner, outside := boxed(bashFolder(t)), t.TempDir()+"/file"
	for _, tt := range []struct {
		command string
		refused bool
	}{
		{"echo x > " + outside, true},
		{"echo x > " + outside + "; echo done", true},
		{"echo x > inside; echo 'Permission denied'", false},
		{"cat missing; echo done", false},
	} {
		recorder := tracetest.NewSpanRecorder()
		ctx, span := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("").Start(t.Context(), "execute")
		out, err := runner.Run(ctx, callOf(t, "Bash", in{"command": tt.command}))
		span.End()
		text := string(out.Value)
		if err != nil {
			text = err.Error()
		}
		if said := strings.Contains(text, "This ran in a sandbox"); said != tt.refused {
			t.Errorf("%s: the model reads %s", tt.command, text)
		}
		marked := false
		for _, a := range recorder.Ended()[0].Attributes() {
			marked = marked || a.Key == tracing.Refused && a.Value.AsBool()
		}
		if marked != tt.refused {
			t.Errorf("%s: the span has %v", tt.command, recorder.Ended()[0].Attributes())
		}
	}
}
