package schemas

import (
	"errors"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/messages"
)

// Retry says whether and when a call runs again after it has failed with an error that its
// tool marked retryable. If the worker of a call was lost, on_crash decides instead.
type Retry struct {
	// Attempts is how many times the call may run, the first run included: at most 10. 0 or 1: it
	// is never run again.
	Attempts int `json:"attempts"`
	// BackoffMS is the wait before the second run. It doubles before every further run. Default if
	// Attempts is over 1: 500 ms, or MaxBackoffMS if that is less; at most an hour.
	BackoffMS int64 `json:"backoff_ms,omitempty"`
	// MaxBackoffMS is the longest wait. Default 10 s, or BackoffMS if that is more; at most
	// an hour.
	MaxBackoffMS int64 `json:"max_backoff_ms,omitempty"`
}

const (
	maxAttempts       = 10
	defaultBackoff    = 500 * time.Millisecond
	defaultMaxBackoff = 10 * time.Second
	// longestBackoff is one hour, the default batch_ttl: after a longer wait the batch
	// would be too old.
	longestBackoff = time.Hour
)

// Backoff returns how long to wait after the given attempt, counted from 1, has failed. It is never
// longer than MaxBackoffMS. The caller adds jitter.
func (r Retry) Backoff(attempt int) time.Duration {
	r = r.filled()
	wait := r.BackoffMS
	for range attempt - 1 {
		if wait > r.MaxBackoffMS/2 { // doubled, the wait would be over the limit, or overflow
			return milliseconds(r.MaxBackoffMS)
		}
		wait *= 2
	}
	return milliseconds(min(wait, r.MaxBackoffMS))
}

// milliseconds converts n, limited to [longestBackoff] so that it cannot overflow a
// duration.
func milliseconds(n int64) time.Duration {
	return time.Duration(min(n, longestBackoff.Milliseconds())) * time.Millisecond
}

// filled returns the policy with its defaults for missing waits.
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

// withDefaults checks the retry policy of a tool with this kind and on_crash, and fills in its
// defaults. A policy of one attempt means that a call never runs again, so it becomes the zero
// value.
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
	case kind == messages.KindWrite && (onCrash == messages.OnCrashOnce || onCrash == ""):
		return r, errors.New("a write with on_crash: once is never run again, because a run that failed may have had its effect; " +
			"only reads, computes and writes with on_crash: idempotent or checkable may be")
	}
	return r.filled(), nil
}
