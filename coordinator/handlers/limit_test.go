package handlers

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// Histories may be large, so only few are made at once. Another request waits for a while and
// is then refused as busy. A tenant has one place at a time, so no tenant can take all places.
func TestHistoriesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &Handlers{limiter: newPerTenantLimiter(maxHistories)}
		answer := func() (any, error) { return "a", nil }
		var releases []func()
		for i := range maxHistories {
			release, err := h.limiter.acquire(t.Context(), fmt.Sprint("other", i))
			if err != nil {
				t.Fatal(err)
			}
			releases = append(releases, release)
		}
		began := time.Now()
		if _, err := h.limited(t.Context(), "own", answer); !errors.Is(err, errCrowded) || time.Since(began) != limiterTimeout {
			t.Errorf("got %v after %v, want %v after %v", err, time.Since(began), errCrowded, limiterTimeout)
		}
		time.AfterFunc(time.Second, releases[0])
		for range 2 { // the second gets the place of the first
			if body, err := h.limited(t.Context(), "own", answer); err != nil || string(body) != `"a"` {
				t.Errorf("got %s, %v", body, err)
			}
		}
		release, err := h.limiter.acquire(t.Context(), "own")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.limited(t.Context(), "own", answer); !errors.Is(err, errCrowded) {
			t.Errorf("a second place for the tenant: %v, want %v", err, errCrowded)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := h.limited(ended, "own", answer); !errors.Is(err, context.Canceled) {
			t.Errorf("after the end of the context: %v", err)
		}
		release()
		if n := len(h.limiter.tenants); n != maxHistories-1 {
			t.Errorf("%d tenants are remembered, want the %d that hold a place", n, maxHistories-1)
		}
	})
}
