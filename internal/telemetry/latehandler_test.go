package telemetry

import (
	"bytes"
	"log/slog"
	"testing"
)

// A logger whose attributes are formatted late writes the same lines as one that formats them
// early.
func TestLateAttributesGiveTheSameLines(t *testing.T) {
	for name, format := range map[string]func(*bytes.Buffer) slog.Handler{
		"text": func(b *bytes.Buffer) slog.Handler { return slog.NewTextHandler(b, withoutTime) },
		"json": func(b *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(b, withoutTime) },
	} {
		var early, late bytes.Buffer
		for _, root := range []*slog.Logger{slog.New(format(&early)), slog.New(lateHandler{Handler: format(&late)})} {
			batch := root.With("batch", "b", "n", 1)
			one, other := batch.With("call", "c1"), batch.With("call", "c2")
			root.Info("of the root")
			one.Warn("of a call", "err", "no")
			other.Info("of another call")
			one.Debug("not written")
			grouped := batch.WithGroup("g").With("in", "group")
			grouped.Info("of a group", "k", "v")
			batch.WithGroup("empty").Info("of an empty group")
			batch.Info("of the batch")
		}
		if early.Len() == 0 || early.String() != late.String() {
			t.Errorf("%s: the lines differ:\n%s\n%s", name, &early, &late)
		}
	}
}

var withoutTime = &slog.HandlerOptions{ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}}
