package client

import "sync"

// mailbox holds what a subscription has received until the caller's goroutine takes it, so that a
// slow caller does not block the subscription.
type mailbox[T any] struct {
	wake chan struct{} // gets a signal when there may be something to take

	mu      sync.Mutex
	items   []T  // guarded by mu
	dropped bool // items were dropped since the last take; guarded by mu
}

// maxMail is how many items a mailbox holds. Further items are dropped.
const maxMail = 1 << 14

func newMailbox[T any]() *mailbox[T] { return &mailbox[T]{wake: make(chan struct{}, 1)} }

func (m *mailbox[T]) put(item T) {
	m.mu.Lock()
	if len(m.items) < maxMail {
		m.items = append(m.items, item)
	} else {
		m.dropped = true
	}
	m.mu.Unlock()
	m.signal()
}

// signal wakes the caller, even if there is nothing to take.
func (m *mailbox[T]) signal() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *mailbox[T]) take() (items []T, dropped bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	items, dropped = m.items, m.dropped
	m.items, m.dropped = nil, false
	return items, dropped
}
