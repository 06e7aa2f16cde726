package tracing

import (
	"context"
	"crypto/rand"
	"crypto/sha256"

	"go.opentelemetry.io/otel/trace"
)

// IDs gives a trace that begins with a [Seed] the id that follows from it, and everything else random ids. It is the
// id generator of our tracer providers.
type IDs struct{}

type seedKey struct{}

// Seed has a trace that begins in ctx take its id from a text, so that whoever begins it a second time, in another process,
// continues the same one. A batch whose agent brings no context is one trace that way, whoever drives it.
func Seed(ctx context.Context, text string) context.Context {
	return context.WithValue(ctx, seedKey{}, text)
}

// NewIDs is the ids of a span that begins a trace.
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

// NewSpanID is the id of any other span.
func (IDs) NewSpanID(context.Context, trace.TraceID) trace.SpanID { return newSpanID() }

func newSpanID() (id trace.SpanID) {
	for !id.IsValid() {
		_, _ = rand.Read(id[:])
	}
	return id
}
