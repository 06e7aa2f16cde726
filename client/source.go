package client

import (
	"context"
	"errors"
	"time"
)

const (
	// readEvery is the least time between two rounds of requests.
	readEvery = 100 * time.Millisecond
	// patience is how long a round waits for an answer. If none comes, the round waits only
	// impatience for each further answer.
	patience   = 2 * time.Second
	impatience = 50 * time.Millisecond
	// lookAfter is the longest time between two reads. Live events may be lost, so a source
	// is read from time to time even if no event asks for it.
	lookAfter = 30 * time.Second
)

// source is something that a watcher reads again and again: a timeline or a list. It is
// read at once when a live event announces something new, and else at intervals that grow
// from 1 s to lookAfter. At most one request is in flight.
type source[T any] struct {
	due    time.Time
	wait   time.Duration
	answer chan answer[T] // of the request in flight; nil: there is none
	slow   bool           // a round waited for this source and got no answer
}

type answer[T any] struct {
	value T
	err   error
	took  time.Duration
}

func (s *source[T]) hint() { s.due, s.wait = time.Time{}, 0 }

func (s *source[T]) isDue() bool { return s.answer == nil && !time.Now().Before(s.due) }

// inFlight reports whether there is a request without an answer.
func (s *source[T]) inFlight() bool { return s.answer != nil && len(s.answer) == 0 }

// next returns when a round should read this source. An answer wakes the watcher earlier.
func (s *source[T]) next() time.Time {
	switch {
	case s.answer == nil:
		return s.due
	case s.inFlight():
		return time.Now().Add(lookAfter)
	}
	return time.Time{}
}

// read sends a request in the background.
func (s *source[T]) read(w *watcher, request func() (T, error)) {
	w.next = time.Now().Add(readEvery)
	s.wait = min(max(2*s.wait, time.Second), lookAfter)
	s.due = time.Now().Add(s.wait)
	answers := make(chan answer[T], 1)
	s.answer = answers
	w.requests.Go(func() {
		began := time.Now()
		value, err := request()
		answers <- answer[T]{value, err, time.Since(began)}
		w.mail.signal()
	})
}

// await waits for an answer. It returns false when the patience of the round is used up. If
// an earlier round got no answer from this source, it does not wait at all.
func (s *source[T]) await(ctx context.Context, w *watcher) (answer[T], bool) {
	if s.inFlight() && !s.slow {
		timer := time.NewTimer(w.patience)
		defer timer.Stop()
		select {
		case a := <-s.answer:
			s.answer <- a
		case <-ctx.Done():
		case <-timer.C:
			s.slow, w.patience = true, impatience
		}
	}
	if s.answer == nil || s.inFlight() {
		return answer[T]{}, false
	}
	a := <-s.answer
	s.answer = nil
	s.slow = a.err != nil && s.slow || errors.Is(a.err, context.DeadlineExceeded) // the request itself timed out
	return a, true
}

// later returns the delay after one more failure: twice the last delay, at least 100 ms and at
// most 5 s.
func later(delay time.Duration) time.Duration {
	return min(max(2*delay, 100*time.Millisecond), 5*time.Second)
}
