package pull

import (
	"context"
	"sync"
)

// Slots limits how many messages are worked on at once. A puller takes a slot before it asks
// for a message. So running calls, together with messages that are on their way, never exceed
// the limit.
type Slots struct {
	total int

	mu     sync.Mutex
	free   int           // guarded by mu
	change chan struct{} // guarded by mu; closed and replaced at every release
}

// NewSlots returns n free slots, at least one.
func NewSlots(n int) *Slots {
	n = max(n, 1)
	return &Slots{total: n, free: n, change: make(chan struct{})}
}

// Total returns the number of slots.
func (s *Slots) Total() int { return s.total }

// Free returns the number of free slots at this moment.
func (s *Slots) Free() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.free
}

// Take takes up to n slots without waiting, and returns how many it took.
func (s *Slots) Take(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = max(min(n, s.free), 0)
	s.free -= n
	return n
}

// Release gives n slots back. It panics if more slots are given back than were taken.
func (s *Slots) Release(n int) {
	if n <= 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.free+n > s.total {
		panic("pull: released a slot that was not taken")
	}
	s.free += n
	close(s.change)
	s.change = make(chan struct{})
}

// changed returns a channel that is closed at the next release.
func (s *Slots) changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.change
}

// Wait returns nil when every slot is free, so that no call is running. It returns the
// context's error if the context ends first.
func (s *Slots) Wait(ctx context.Context) error {
	for {
		// Get the channel before the count, so that a release after the count closes this
		// channel.
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
