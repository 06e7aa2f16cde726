package bus

import (
	"context"
	"time"
)

// Bounds on the pause before a failed read, write or watch is tried again.
const minBackoff, maxBackoff = 100 * time.Millisecond, 5 * time.Second

// Backoff says how long to pause between the tries of an operation: First, then twice as long each
// time, and at most Most.
type Backoff struct {
	First, Most time.Duration
	// Tries bounds how many times the operation is tried. 0: no bound.
	Tries int
	// Jitter makes each pause random, between half and all of it, so that many processes do not try
	// at the same moment.
	Jitter bool
	// Again reports whether a try after this error may succeed. Default: true for all but terminal
	// errors, see [IsTerminal].
	Again func(error) bool
	// OnFailure is called before each pause, for a log line. Default: nothing.
	OnFailure func(err error, pause time.Duration)
}

// Pause returns the pause after n earlier ones, without jitter.
func (b Backoff) Pause(n int) time.Duration {
	pause := b.First
	for ; n > 0 && pause < b.Most; n-- {
		pause *= 2
	}
	return min(pause, b.Most)
}

// Retry calls try until it succeeds, its error cannot pass, the tries are used up, or ctx ends. It
// calls try at least once, and returns the last error of try.
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
