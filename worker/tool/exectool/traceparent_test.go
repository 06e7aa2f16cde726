package exectool

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/tracing"
)

const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00" // a trace that is not recorded

// A program gets the trace context of its call, and a probe gets it too.
func TestProgramsGetTheTrace(t *testing.T) {
	ctx := tracing.Extract(t.Context(), http.Header{"Traceparent": {traceparent}})
	out, err := script(t, `printf "%s" "$TRACEPARENT"`, nil).Run(ctx, call(`{}`))
	if err != nil || string(out.Value) != `"`+traceparent+`"` {
		t.Errorf("got %s, %v", out.Value, err)
	}
	p, _ := asks(t, `printf 'done\n%s' "$TRACEPARENT"`, time.Minute)
	probed, err := p.Probe(ctx, call(`{}`))
	if err != nil || string(probed.Output.Value) != `"`+traceparent+`"` {
		t.Errorf("the probe: got %s, %v", probed.Output.Value, err)
	}
	if out, err := script(t, `env`, nil).Run(t.Context(), call(`{}`)); err != nil || strings.Contains(string(out.Value), "TRACE") {
		t.Errorf("without a trace: got %s, %v", out.Value, err)
	}
}
