package telemetry

import (
	"context"
	"log/slog"
	"slices"
)

// lateHandler keeps the attributes of a logger as they are and formats them with the record that
// is written. A batch and a call each have a logger of their own, and most of these never write a
// record.
type lateHandler struct {
	slog.Handler
	attrs []slog.Attr
}

func (h lateHandler) Handle(ctx context.Context, r slog.Record) error {
	return h.Handler.WithAttrs(h.attrs).Handle(ctx, r)
}

func (h lateHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	h.attrs = slices.Concat(h.attrs, attrs)
	return h
}

func (h lateHandler) WithGroup(name string) slog.Handler {
	return lateHandler{Handler: h.Handler.WithAttrs(h.attrs).WithGroup(name)}
}
