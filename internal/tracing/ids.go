package tracing

import (
	"context"
	"crypto/rand"
	"crypto/sha256"

	"go.opentelemetry.io/otel/trace"
)

// IDs is the id generator of toolfleet's tracer providers. A trace that begins with a [Seed] gets
// the id that follows from the seed; all other ids are random.
type IDs struct{}

type seedKey struct{}

// Seed makes a trace that begins in ctx take its id from a text. So another process with
// the same text continues the same trace. If an agent sends no trace context, its batch has
// one trace in this way, no matter which coordinators drive it.
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
