package bus_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
)

func TestRetry(t *testing.T) {
	passing, hopeless := errors.New("passing"), bus.ErrTooLarge
	backoff := bus.Backoff{First: time.Second, Most: 3 * time.Second}
	for name, tc := range map[string]struct {
		backoff bus.Backoff
		fails   []error // errors of the first tries; later tries succeed
		within  time.Duration
		want    error
		tries   int
		took    time.Duration
	}{
		"at once":              {backoff: backoff, tries: 1},
		"after failures":       {backoff: backoff, fails: []error{passing, passing, passing}, tries: 4, took: 6 * time.Second},
		"terminal":             {backoff: backoff, fails: []error{passing, hopeless, passing}, want: hopeless, tries: 2, took: time.Second},
		"out of tries":         {backoff: bus.Backoff{First: time.Second, Most: time.Second, Tries: 2}, fails: []error{passing, passing}, want: passing, tries: 2, took: time.Second},
		"the context ends":     {backoff: backoff, fails: []error{passing, passing, passing}, within: 2500 * time.Millisecond, want: passing, tries: 2, took: 2500 * time.Millisecond},
		"only some errors":     {backoff: bus.Backoff{First: time.Second, Most: time.Second, Again: func(err error) bool { return err == hopeless }}, fails: []error{hopeless, passing}, want: passing, tries: 2, took: time.Second},
		"has ended beforehand": {backoff: backoff, fails: []error{passing}, within: -1, want: passing, tries: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tc.within < 0 {
					cancel()
				} else if tc.within > 0 {
					defer time.AfterFunc(tc.within, cancel).Stop()
				}
				var pauses []time.Duration
				tc.backoff.OnFailure = func(_ error, pause time.Duration) { pauses = append(pauses, pause) }
				began, tries := time.Now(), 0
				err := bus.Retry(ctx, tc.backoff, func() error {
					if tries++; tries <= len(tc.fails) {
						return tc.fails[tries-1]
					}
					return nil
				})
				if err != tc.want || tries != tc.tries || time.Since(began) != tc.took {
					t.Errorf("%v after %d tries in %v, pauses %v; want %v after %d in %v", err, tries, time.Since(began), pauses, tc.want, tc.tries, tc.took)
				}
			})
		})
	}
}

func TestPausesGrow(t *testing.T) {
	b := bus.Backoff{First: 100 * time.Millisecond, Most: time.Second}
	var got []time.Duration
	for n := range 6 {
		got = append(got, b.Pause(n)/time.Millisecond)
	}
	if want := []time.Duration{100, 200, 400, 800, 1000, 1000}; !slices.Equal(got, want) || b.Pause(1<<30) != time.Second {
		t.Errorf("pauses of %v ms, want %v", got, want)
	}
}
