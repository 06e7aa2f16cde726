package mcptool

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/messages"
)

// Limits of the wait before a server is started again after a failed start. If the wait is
// longer than patience, calls fail at once.
const (
	firstBackoff = 500 * time.Millisecond
	maxBackoff   = 30 * time.Second
	patience     = 2 * time.Second
)

// maxReads is how many reads may run in one process at the same time.
const maxReads = 32

// pool gives the processes of a server to calls: first come, first served.
type pool struct {
	shared bool // calls of several tenants may run in one process at a time

	mu      sync.Mutex
	slots   []*slot   // guarded by mu
	waiting []*waiter // guarded by mu
}

// slot is a place for one process.
type slot struct {
	starting chan struct{} // a semaphore of one; the holder may start the process

	// The pool's mu guards the next three fields.
	tenant messages.TenantID
	calls  int
	alone  bool // a write runs

	mu        sync.Mutex
	session   *session  // nil: there is none; guarded by mu
	failures  int       // starts in a row that failed; guarded by mu
	notBefore time.Time // guarded by mu
	why       error     // the error of the last start, or nil; guarded by mu
}

// waiter is a call that waits for a slot.
type waiter struct {
	tenant messages.TenantID
	alone  bool
	got    chan *slot // gets the one slot
}

func newPool(processes int, shared bool) *pool {
	p := &pool{shared: shared}
	for range processes {
		p.slots = append(p.slots, &slot{starting: make(chan struct{}, 1)})
	}
	return p
}

// acquire waits for a slot. If alone is true, no other call may run in the slot's process.
func (p *pool) acquire(ctx context.Context, tenant messages.TenantID, alone bool) (*slot, error) {
	w := &waiter{tenant, alone, make(chan *slot, 1)}
	p.mu.Lock()
	p.waiting = append(p.waiting, w)
	p.grant()
	p.mu.Unlock()
	select {
	case s := <-w.got:
		return s, nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case s := <-w.got:
		p.leave(s)
	default:
		p.waiting = slices.DeleteFunc(p.waiting, func(other *waiter) bool { return other == w })
	}
	p.grant()
	return nil, context.Cause(ctx)
}

// release gives a slot back.
func (p *pool) release(s *slot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leave(s)
	p.grant()
}

// leave takes a call out of a slot. The caller holds mu.
func (p *pool) leave(s *slot) {
	s.calls--
	s.alone = false
}

// grant gives slots to the calls that wait, in their order. The caller holds mu.
func (p *pool) grant() {
	for len(p.waiting) > 0 {
		w := p.waiting[0]
		s := p.place(w)
		if s == nil {
			return // later calls do not overtake, so reads cannot keep a write waiting
		}
		s.calls++
		s.tenant, s.alone = w.tenant, w.alone
		w.got <- s
		p.waiting = p.waiting[1:]
	}
}

// place returns the slot with the fewest calls in which a call may run, or nil. The caller holds
// mu.
func (p *pool) place(w *waiter) (best *slot) {
	for _, s := range p.slots {
		fits := s.calls == 0 || !w.alone && !s.alone && s.calls < maxReads && (p.shared || s.tenant == w.tenant)
		if fits && (best == nil || s.calls < best.calls) {
			best = s
		}
	}
	return best
}

// open returns the session of a slot, and starts one if there is none.
func (s *slot) open(ctx context.Context, start func(context.Context) (*session, error)) (*session, error) {
	if ctx.Err() != nil { // checked first, because the select below may choose either case
		return nil, context.Cause(ctx)
	}
	select {
	case s.starting <- struct{}{}:
		defer func() { <-s.starting }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	live, wait := s.current()
	if live != nil {
		return live, nil
	}
	if wait > patience {
		return nil, fmt.Errorf("%w; it is started again in %v", s.state(), wait.Round(100*time.Millisecond))
	}
	select {
	case <-time.After(wait):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	// The start serves other calls too. It goes on if this call ends.
	type outcome struct {
		*session
		error
	}
	started := make(chan outcome, 1)
	go func() {
		made, err := start(context.WithoutCancel(ctx))
		s.started(made, err)
		started <- outcome{made, err}
	}()
	select {
	case o := <-started:
		return o.session, o.error
	case <-ctx.Done():
		<-started
		return nil, context.Cause(ctx)
	}
}

// current returns the session if it runs. Otherwise it returns the wait before the next start.
func (s *slot) current() (*session, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session != nil && !s.session.dead() {
		return s.session, 0
	}
	s.session = nil
	return nil, max(0, time.Until(s.notBefore))
}

// started records the outcome of a start. After a failed start, the next start has to wait.
func (s *slot) started(made *session, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.session, s.why = made, err
	if err == nil {
		s.failures, s.notBefore = 0, time.Time{}
		return
	}
	wait := min(maxBackoff, firstBackoff<<min(s.failures, 10))
	s.failures++
	s.notBefore = time.Now().Add(wait/2 + rand.N(wait/2))
}

// drop removes a broken session from the slot.
func (s *slot) drop(broken *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session == broken && broken.stop == nil {
		s.session = nil
	}
}

// state returns the error of the last start, or nil.
func (s *slot) state() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.why
}

// take removes the session from the slot and returns it.
func (s *slot) take() *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.session
	s.session = nil
	return taken
}
