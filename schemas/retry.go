package schemas

import (
	"errors"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/messages"
)

// Retry is whether and when a call is run again after it failed with an error that its tool marked
// retryable. It says nothing about a worker that was lost: that is on_crash.
type Retry struct {
	// Attempts is how many runs there are in all, the first included: at most 10. 0 or 1: never again.
	Attempts int `json:"attempts"`
	// BackoffMS is the wait before the second run. It doubles with every further one. Default with
	// Attempts over 1: 500 ms; at most an hour.
	BackoffMS int64 `json:"backoff_ms,omitempty"`
	// MaxBackoffMS is where the doubling stops. Default 10 s, or BackoffMS where that is more; at most an hour.
	MaxBackoffMS int64 `json:"max_backoff_ms,omitempty"`
}

const (
	maxAttempts       = 10
	defaultBackoff    = 500 * time.Millisecond
	defaultMaxBackoff = 10 * time.Second
	// longestBackoff is how long a batch lives unless somebody set otherwise: a longer wait never ends well.
	longestBackoff = time.Hour
)

// Backoff is how long to wait after the given attempt failed, counted from 1: without jitter, which is for
// the caller to add. It is never longer than MaxBackoffMS.
func (r Retry) Backoff(attempt int) time.Duration {
	r = r.filled()
	wait := r.BackoffMS
	for range attempt - 1 {
		if wait > r.MaxBackoffMS/2 { // doubling it would pass the limit, or all limits of the type
			return milliseconds(r.MaxBackoffMS)
		}
		wait *= 2
	}
	return milliseconds(min(wait, r.MaxBackoffMS))
}

// milliseconds is at most [longestBackoff], so that no number is too large for a duration.
func milliseconds(n int64) time.Duration {
	return time.Duration(min(n, longestBackoff.Milliseconds())) * time.Millisecond
}

// filled is the policy with its open waits filled.
func (r Retry) filled() Retry {
	if r.BackoffMS == 0 {
		r.BackoffMS = defaultBackoff.Milliseconds()
		if r.MaxBackoffMS > 0 {
			r.BackoffMS = min(r.BackoffMS, r.MaxBackoffMS)
		}
	}
	if r.MaxBackoffMS == 0 {
		r.MaxBackoffMS = max(defaultMaxBackoff.Milliseconds(), r.BackoffMS)
	}
	return r
}

// withDefaults is the policy of a tool with that kind and on_crash. One attempt is the same as no policy,
// and so is written the same way.
func (r Retry) withDefaults(kind messages.Kind, onCrash messages.OnCrash) (Retry, error) {
	longest := longestBackoff.Milliseconds()
	switch {
	case r.Attempts < 0 || r.Attempts > maxAttempts:
		return r, fmt.Errorf("attempts is %d; want 1 to %d", r.Attempts, maxAttempts)
	case r.BackoffMS < 0 || r.BackoffMS > longest:
		return r, fmt.Errorf("backoff is %d ms; want 1ms to 1h", r.BackoffMS)
	case r.MaxBackoffMS < 0 || r.MaxBackoffMS > longest:
		return r, fmt.Errorf("max_backoff is %d ms; want 1ms to 1h", r.MaxBackoffMS)
	case r.Attempts == 0 && r != Retry{}:
		return r, errors.New("attempts is missing")
	case r.MaxBackoffMS != 0 && r.MaxBackoffMS < r.BackoffMS:
		return r, errors.New("max_backoff is shorter than backoff")
	case r.Attempts <= 1:
		return Retry{}, nil
	case kind == messages.Write && (onCrash == messages.Once || onCrash == ""):
		return r, errors.New("a write with on_crash: once is never run again, because a run that failed may have had its effect; " +
			"only reads, computes and writes with on_crash: idempotent or checkable may be")
	}
	return r.filled(), nil
}
