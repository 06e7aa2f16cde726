package spare_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolfleet/toolfleet/internal/spare"
)

// Functions run concurrently, even if there are more than kept goroutines, and after End. The
// bubble fails if a goroutine is left.
func TestGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := spare.New()
		for _, n := range []int{3, 10, 1, 20} {
			var running sync.WaitGroup
			start := time.Now()
			for range n {
				running.Add(1)
				g.Go(func() {
					defer running.Done()
					time.Sleep(time.Second)
				})
			}
			running.Wait()
			if took := time.Since(start); took != time.Second {
				t.Errorf("%d functions of 1s took %v", n, took)
			}
			if n == 1 {
				g.End()
			}
			synctest.Wait()
		}
	})
}

// A goroutine without work ends by itself. The bubble fails if one is left.
func TestAnIdleGoroutineEnds(t *testing.T) {
	synctest.Test(t, func(*testing.T) {
		spare.New().Go(func() {})
		time.Sleep(2 * time.Second)
	})
}

func BenchmarkGoroutines(b *testing.B) {
	deep := func(done chan bool) {
		var grow func(n int) int
		grow = func(n int) int {
			var frame [512]byte
			if n == 0 {
				return int(frame[1])
			}
			return grow(n-1) + int(frame[0])
		}
		done <- grow(20) == 0
	}
	b.Run("spare", func(b *testing.B) {
		g, done := spare.New(), make(chan bool)
		defer g.End()
		for b.Loop() {
			g.Go(func() { deep(done) })
			<-done
		}
	})
	b.Run("new", func(b *testing.B) {
		done := make(chan bool)
		for b.Loop() {
			go deep(done)
			<-done
		}
	})
}
