package bus

import (
	"context"
	"sync"
)

// Slots count how much may be worked on at once. A puller takes a slot before it asks for a message, so what is in
// hand and what is on its way never exceed them.
type Slots struct {
	total int

	mu     sync.Mutex
	free   int           // guarded by mu
	change chan struct{} // guarded by mu; closed and replaced at every release
}

// NewSlots makes n free slots; at least one.
func NewSlots(n int) *Slots {
	n = max(n, 1)
	return &Slots{total: n, free: n, change: make(chan struct{})}
}

// Total is how many there are.
func (s *Slots) Total() int { return s.total }

// Free is how many are free at this moment.
func (s *Slots) Free() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.free
}

// Take takes up to n slots without waiting, and says how many it got.
func (s *Slots) Take(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = max(min(n, s.free), 0)
	s.free -= n
	return n
}

// Release gives n slots back.
func (s *Slots) Release(n int) {
	if n <= 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.free+n > s.total {
		panic("bus: released a slot that was not taken")
	}
	s.free += n
	close(s.change)
	s.change = make(chan struct{})
}

// changed is closed at the next release.
func (s *Slots) changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.change
}

// Wait returns nil once every slot is free: nothing is being worked on. Otherwise the context's error.
func (s *Slots) Wait(ctx context.Context) error {
	for {
		changed := s.changed()
		if s.Free() == s.total {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
