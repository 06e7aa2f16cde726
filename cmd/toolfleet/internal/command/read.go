package command

import (
	"cmp"
	"context"
	"errors"
	"syscall"
	"time"
)

// LookTimeout bounds how long a command about a batch waits for the state of the fleet. The
// server does not answer a user without the right to read that state, so the wait must be
// short.
const LookTimeout = time.Second

// ParseMoment reads a point in time: RFC 3339, or a duration before now such as 24h.
func ParseMoment(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, Usagef("%s %.40q: want how long ago, such as 24h, or a time such as 2026-01-31T08:00:00Z", flag, text)
	}
	return at, nil
}

// WhileRead runs tell, which prints, until tell returns, ctx ends or a write fails. tell
// passes the result of each write to wrote. If a write fails because the pipe is closed,
// WhileRead returns nil: the reader needs no more.
func WhileRead(ctx context.Context, tell func(ctx context.Context, wrote func(error)) error) error {
	telling, end := context.WithCancelCause(ctx)
	defer end(nil)
	err := tell(telling, func(err error) {
		if err != nil {
			end(err)
		}
	})
	if ctx.Err() == nil {
		err = cmp.Or(context.Cause(telling), err)
	}
	if errors.Is(err, syscall.EPIPE) {
		return nil
	}
	return err
}
