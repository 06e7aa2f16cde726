package mcpserver

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/messages"
)

// together is how long a call over HTTP waits for calls that its client sent earlier.
const together = 5 * time.Millisecond

// arrivals restores the order of calls over HTTP. A client sends calls that it makes at once
// over several connections, so they arrive in any order. But clients number their requests.
// arrivals takes the calls of a session that arrive together in the order of their numbers,
// each when the previous one is stored. Calls that two clients send at once have no order.
type arrivals struct {
	mu       sync.Mutex
	sessions map[sessionKey]*arriving // the sessions with calls that are not stored; guarded by mu
}

type sessionKey struct {
	tenant  string
	session messages.SessionID
}

// arriving holds the calls of one session.
type arriving struct {
	calls  []*arrival    // the calls that are arriving together; guarded by arrivals.mu
	last   chan struct{} // closed when the newest earlier call is stored; guarded by arrivals.mu
	unsure int           // number of calls that are not stored; guarded by arrivals.mu
}

// arrival is one call.
type arrival struct {
	number int64
	placed chan struct{} // closed when before is set
	before chan struct{} // closed when the call before this one is stored
	stored chan struct{}
}

// enter waits until the earlier calls of the session are stored. The caller must call the
// returned function when this call is stored, or when it is certain that it never will be. The
// error says that ctx has ended.
func (a *arrivals) enter(ctx context.Context, key sessionKey, number int64) (func(), error) {
	call := &arrival{number: number, placed: make(chan struct{}), stored: make(chan struct{})}
	a.arrive(key, call)
	stored := sync.OnceFunc(func() { a.leave(key, call) })
	if call.wait(ctx.Done()) {
		return stored, nil
	}
	go func() { // the next call still has to wait for the earlier ones
		call.wait(nil)
		stored()
	}()
	return nil, context.Cause(ctx)
}

// wait waits until the calls before this one are stored. It returns false if done is closed
// first.
func (c *arrival) wait(done <-chan struct{}) bool {
	select {
	case <-c.placed:
	case <-done:
		return false
	}
	select {
	case <-c.before:
		return true
	case <-done:
		return false
	}
}

func (a *arrivals) arrive(key sessionKey, call *arrival) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.sessions[key]
	if s == nil {
		if a.sessions == nil {
			a.sessions = map[sessionKey]*arriving{}
		}
		s = &arriving{last: make(chan struct{})}
		close(s.last)
		a.sessions[key] = s
	}
	s.unsure++
	if s.calls = append(s.calls, call); len(s.calls) == 1 {
		time.AfterFunc(together, func() { a.place(s) })
	}
}

// place puts the calls that have arrived together in order, behind the earlier calls.
func (a *arrivals) place(s *arriving) {
	a.mu.Lock()
	defer a.mu.Unlock()
	slices.SortStableFunc(s.calls, func(x, y *arrival) int { return cmp.Compare(x.number, y.number) })
	for _, call := range s.calls {
		call.before, s.last = s.last, call.stored
		close(call.placed)
	}
	s.calls = nil
}

func (a *arrivals) leave(key sessionKey, call *arrival) {
	a.mu.Lock()
	defer a.mu.Unlock()
	close(call.stored)
	s := a.sessions[key]
	if s.unsure--; s.unsure == 0 {
		delete(a.sessions, key)
	}
}
