package devserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
)

// logAdapter writes the server's log to a slog.Logger. It keeps the last error, which is the
// likely reason of a failed start. The server's notices become debug lines, because they
// describe normal operation.
type logAdapter struct {
	out *slog.Logger

	mu   sync.Mutex
	last string // guarded by mu
}

func (l *logAdapter) Noticef(format string, v ...any) { l.write(slog.LevelDebug, format, v) }
func (l *logAdapter) Warnf(format string, v ...any)   { l.write(slog.LevelWarn, format, v) }
func (l *logAdapter) Debugf(format string, v ...any)  { l.write(slog.LevelDebug, format, v) }
func (l *logAdapter) Tracef(format string, v ...any)  { l.write(slog.LevelDebug, format, v) }

func (l *logAdapter) Errorf(format string, v ...any) {
	l.keepLast(format, v)
	l.write(slog.LevelError, format, v)
}

// Fatalf does not end the process. Start returns its text as an error.
func (l *logAdapter) Fatalf(format string, v ...any) {
	l.keepLast(format, v)
	l.write(slog.LevelError, format, v)
}

func (l *logAdapter) write(level slog.Level, format string, v []any) {
	if l.out != nil && l.out.Enabled(context.Background(), level) {
		l.out.Log(context.Background(), level, fmt.Sprintf(format, v...), "from", "nats-server")
	}
}

func (l *logAdapter) keepLast(format string, v []any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = fmt.Sprintf(format, v...)
}

// cause returns why the server did not start.
func (l *logAdapter) cause() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last == "" {
		return fmt.Errorf("not ready after %v", readyIn)
	}
	return errors.New(l.last)
}
