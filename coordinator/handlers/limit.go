package handlers

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/toolfleet/toolfleet/internal/rawjson"
)

const (
	// maxHistories is how many expensive answers may be made at once. Each answer may need
	// about as much memory as all the work of a session.
	maxHistories = 2
	// limiterTimeout is how long a request waits until the handler may make its answer.
	// Requesters wait for longer than this.
	limiterTimeout = 5 * time.Second
)

var errCrowded = errors.New("too many timelines and lists of batches are asked for at once")

// limited makes an expensive answer. At most maxHistories answers are made at once, and at
// most one for each tenant.
func (h *Handlers) limited(ctx context.Context, tenant string, answer func() (any, error)) ([]byte, error) {
	waiting, cancel := context.WithTimeoutCause(ctx, limiterTimeout, errCrowded)
	defer cancel()
	release, err := h.limiter.acquire(waiting, tenant)
	if err != nil {
		return nil, context.Cause(waiting)
	}
	defer release()
	body, err := answer()
	if err != nil {
		return nil, err
	}
	return rawjson.MustMarshal(body), nil
}

// perTenantLimiter limits how many requests run at once, in all and for each tenant. A tenant
// has at most one, so no tenant can take all places.
type perTenantLimiter struct {
	all *semaphore.Weighted

	mu      sync.Mutex
	tenants map[string]*tenantLimit // tenants that have a place or wait for one; guarded by mu
}

type tenantLimit struct {
	one   *semaphore.Weighted
	users int // requests that have the place or wait for it; guarded by perTenantLimiter.mu
}

func newPerTenantLimiter(most int64) *perTenantLimiter {
	return &perTenantLimiter{all: semaphore.NewWeighted(most), tenants: map[string]*tenantLimit{}}
}

// acquire waits for a place, at most until ctx ends.
func (l *perTenantLimiter) acquire(ctx context.Context, tenant string) (release func(), err error) {
	own := l.enter(tenant)
	if err := own.one.Acquire(ctx, 1); err != nil {
		l.leave(tenant)
		return nil, err
	}
	if err := l.all.Acquire(ctx, 1); err != nil {
		own.one.Release(1)
		l.leave(tenant)
		return nil, err
	}
	return func() {
		l.all.Release(1)
		own.one.Release(1)
		l.leave(tenant)
	}, nil
}

func (l *perTenantLimiter) enter(tenant string) *tenantLimit {
	l.mu.Lock()
	defer l.mu.Unlock()
	own := l.tenants[tenant]
	if own == nil {
		own = &tenantLimit{one: semaphore.NewWeighted(1)}
		l.tenants[tenant] = own
	}
	own.users++
	return own
}

// leave records that a request of the tenant is over. It removes the tenant after its last
// request.
func (l *perTenantLimiter) leave(tenant string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	own := l.tenants[tenant]
	if own.users--; own.users == 0 {
		delete(l.tenants, tenant)
	}
}
