package exechook

import (
	"net/http"
	"testing"

	"github.com/toolfleet/toolfleet/internal/tracing"
)

// A hook's program continues the trace of the call, before and after the tool.
func TestHooksGetTheTrace(t *testing.T) {
	const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	ctx := tracing.Extract(t.Context(), http.Header{"Traceparent": {traceparent}})
	h := script(t, `cat >/dev/null; echo "$TRACEPARENT" >&2; exit 2`, nil)
	if v, err := h.Before(ctx, aCall); err != nil || v.Reason != traceparent {
		t.Errorf("before: got %+v, %v", v, err)
	}
	if c, err := h.After(ctx, aCall, anEnd); err != nil || c.Context != traceparent {
		t.Errorf("after: got %+v, %v", c, err)
	}
}
