package tracing

import (
	"context"
	"crypto/rand"
	"crypto/sha256"

	"go.opentelemetry.io/otel/trace"
)

// IDs is the id generator of toolfleet's tracer providers. If a context has a [Seed], the
// trace that begins in it gets an id computed from the seed. All other ids are random.
type IDs struct{}

type seedKey struct{}

// Seed returns a context in which a new trace gets its id from a text. Another process with
// the same text continues the same trace. So a batch whose agent sends no trace context has
// one trace, whichever coordinators drive it.
func Seed(ctx context.Context, text string) context.Context {
	return context.WithValue(ctx, seedKey{}, text)
}

// NewIDs returns the ids of a span that begins a trace.
func (IDs) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	var id trace.TraceID
	if seed, ok := ctx.Value(seedKey{}).(string); ok {
		sum := sha256.Sum256([]byte("toolfleet trace v1\n" + seed))
		copy(id[:], sum[:])
	}
	for !id.IsValid() {
		_, _ = rand.Read(id[:]) // never fails
	}
	return id, newSpanID()
}

// NewSpanID returns the id of any other span.
func (IDs) NewSpanID(context.Context, trace.TraceID) trace.SpanID { return newSpanID() }

func newSpanID() (id trace.SpanID) {
	for !id.IsValid() {
		_, _ = rand.Read(id[:])
	}
	return id
}
