package coordinator

import (
	"context"
	"sync"
)

// turns lets few in at once, and of each tenant one.
type turns struct {
	all room
	mu  *sync.Mutex
	of  map[string]*tenantTurn // who is in or waits; guarded by mu
}

type tenantTurn struct {
	room
	here int // in it or waiting; guarded by mu of turns
}

func newTurns(most int) turns {
	return turns{all: make(room, most), mu: &sync.Mutex{}, of: map[string]*tenantTurn{}}
}

// enter waits for a place of a tenant, and reports false when ctx ended first.
func (t turns) enter(ctx context.Context, tenant string) (leave func(), ok bool) {
	own := t.come(tenant)
	switch {
	case !own.enter(ctx):
	case !t.all.enter(ctx):
		own.leave()
	default:
		return func() {
			t.all.leave()
			own.leave()
			t.gone(tenant)
		}, true
	}
	t.gone(tenant)
	return nil, false
}

func (t turns) come(tenant string) *tenantTurn {
	t.mu.Lock()
	defer t.mu.Unlock()
	own := t.of[tenant]
	if own == nil {
		own = &tenantTurn{room: make(room, 1)}
		t.of[tenant] = own
	}
	own.here++
	return own
}

func (t turns) gone(tenant string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of[tenant].here--; t.of[tenant].here == 0 {
		delete(t.of, tenant)
	}
}
