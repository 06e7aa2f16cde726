package httptool

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/tracing"
)

func TestTheServiceGetsTheTrace(t *testing.T) {
	const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	var headers []string
	p := serve(t, time.Minute, func(w http.ResponseWriter, r *http.Request) {
		headers = append(headers, r.Header.Get("traceparent")+" "+r.Header.Get("tracestate"))
		says(200, "not_done")(w, r)
	})
	traced := tracing.Extract(t.Context(), http.Header{"Traceparent": {traceparent}, "Tracestate": {"vendor=1"}})
	for _, ctx := range []context.Context{traced, t.Context()} {
		if _, err := p.Probe(ctx, call); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{traceparent + " vendor=1", " "}; !slices.Equal(headers, want) {
		t.Errorf("the service got the headers %q, want %q", headers, want)
	}
}
