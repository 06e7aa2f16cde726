package mcptool

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolfleet/toolfleet/messages"
)

// A write runs alone in its process. A process serves one tenant at a time, and calls get a
// process in the order in which they came.
func TestPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(1, false)
		order := make(chan string, 10)
		slots := make(chan *slot, 10)
		ask := func(name string, tenant messages.TenantID, alone bool) {
			go func() {
				s, err := p.acquire(t.Context(), tenant, alone)
				if err != nil {
					t.Error(err)
					return
				}
				order <- name
				slots <- s
			}()
			synctest.Wait()
		}
		want := func(names ...string) {
			t.Helper()
			synctest.Wait()
			for _, name := range names {
				select {
				case got := <-order:
					if got != name {
						t.Errorf("%s runs, want %s", got, name)
					}
				default:
					t.Errorf("%s does not run", name)
				}
			}
			select {
			case got := <-order:
				t.Errorf("%s runs too early", got)
			default:
			}
		}
		done := func() { p.release(<-slots) }
		ask("read 1", "a", false)
		ask("read 2", "a", false)
		ask("write", "a", true)
		ask("read 3", "a", false)
		ask("read of b", "b", false)
		want("read 1", "read 2")
		done()
		want()
		done()
		want("write")
		done()
		want("read 3")
		done()
		want("read of b")
		done()
	})
}

func TestPoolsOfSeveral(t *testing.T) {
	p := newPool(2, false)
	write, _ := p.acquire(t.Context(), "a", true)
	read, _ := p.acquire(t.Context(), "b", false)
	if write == read {
		t.Error("a read runs beside a write")
	}
	again, _ := p.acquire(t.Context(), "b", false)
	if again != read {
		t.Error("a read runs beside a write")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.acquire(ctx, "c", false); err == nil {
		t.Error("two tenants are in one process")
	}
	shared := newPool(1, true)
	one, _ := shared.acquire(t.Context(), "a", false)
	if two, err := shared.acquire(t.Context(), "b", false); err != nil || one != two {
		t.Errorf("tenants share no process: %v", err)
	}
	if len(p.waiting) != 0 {
		t.Error("a call that is gone still waits")
	}
}

// A call has ended before its process is started: no process is started.
func TestACallThatHasEndedStartsNoServer(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 {
		if _, err := newPool(1, false).slots[0].open(ctx, func(context.Context) (*session, error) {
			t.Error("it was started")
			return nil, errors.New("broken")
		}); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	}
}

// A server cannot be started: it is not tried again for each call.
func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPool(1, false).slots[0]
		starts := 0
		start := func(context.Context) (*session, error) { starts++; return nil, errors.New("broken") }
		began := time.Now()
		for time.Since(began) < 5*time.Minute {
			if _, err := s.open(t.Context(), start); err == nil || s.state() == nil {
				t.Fatal("it was started")
			}
			time.Sleep(10 * time.Millisecond)
		}
		if starts < 10 || starts > 35 {
			t.Errorf("%d starts in five minutes", starts)
		}
	})
}
