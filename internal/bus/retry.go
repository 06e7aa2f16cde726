package bus

import (
	"context"
	"time"
)

// Limits of the pause before a failed read, write or watch is tried again.
const minBackoff, maxBackoff = 100 * time.Millisecond, 5 * time.Second

// Backoff says how long to pause between tries of an operation. The first pause is First. Each
// further pause is twice as long as the one before, up to Most.
type Backoff struct {
	First, Most time.Duration
	// Tries limits how many times the operation is tried. 0: no limit.
	Tries int
	// Jitter makes each pause random, between half of it and all of it, so that many processes
	// do not try at the same moment.
	Jitter bool
	// Again reports whether another try may succeed after this error. Default: it may, unless
	// the error is terminal (see [IsTerminal]).
	Again func(error) bool
	// OnFailure is called before each pause, for a log line. May be nil.
	OnFailure func(err error, pause time.Duration)
}

// Pause returns the pause that follows n earlier pauses, without jitter.
func (b Backoff) Pause(n int) time.Duration {
	pause := b.First
	for ; n > 0 && pause < b.Most; n-- {
		pause *= 2
	}
	return min(pause, b.Most)
}

// Retry calls try until try succeeds, Again rejects its error, the tries are used up, or ctx
// ends. It calls try at least once, and returns the last error of try.
func Retry(ctx context.Context, b Backoff, try func() error) error {
	again := b.Again
	if again == nil {
		again = func(err error) bool { return !IsTerminal(err) }
	}
	for n := 0; ; n++ {
		err := try()
		if err == nil || !again(err) || n+1 == b.Tries || ctx.Err() != nil {
			return err
		}
		wait := b.Pause(n)
		if b.OnFailure != nil {
			b.OnFailure(err, wait)
		}
		if b.Jitter {
			wait = Jitter(wait)
		}
		if !pause(ctx, wait) {
			return err
		}
	}
}
