package audit

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// Read reads many lines page by page. It stops when its callback returns false.
func TestReadStops(t *testing.T) {
	conn := connect(t, natstest.Server(t, natstest.Fast))
	l := open(t, conn, Config{})
	for n := range 3 {
		if err := l.Append(t.Context(), wire.KeyOf("_", "s", "b"), uint64(n), lines(300, 10, "a")); err != nil {
			t.Fatal(err)
		}
	}
	seen := 0
	if err := l.Read(t.Context(), Filter{}, func(Entry) bool { seen++; return seen < 450 }); err != nil || seen != 450 {
		t.Errorf("%d lines, %v", seen, err)
	}
}

// A follower gets every line once and in order: the stored lines, those that come while it
// reads, and those that come while its connection is down.
func TestFollow(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		conn := connect(t, srv)
		l := open(t, conn, Config{})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		written := 0
		write := func(n int) {
			t.Helper()
			for range n {
				deadline := time.Now().Add(time.Minute)
				for {
					err := l.Append(t.Context(), wire.KeyOf("_", "s", "b"), uint64(written), alone(messages.AuditRecord{Type: messages.AuditCall, Index: 0, Attempt: written}))
					if err == nil {
						break
					}
					if time.Now().After(deadline) {
						t.Fatal(err)
					}
					time.Sleep(100 * time.Millisecond)
				}
				written++
			}
		}
		write(20)
		var mu sync.Mutex
		var got []int
		ended := make(chan error, 1)
		following := connect(t, srv)
		go func() {
			ended <- open(t, following, Config{}).Follow(ctx, Filter{Session: "s"}, func(e Entry) {
				mu.Lock()
				defer mu.Unlock()
				got = append(got, e.Line.Attempt)
			})
		}()
		has := func(n int, within time.Duration) {
			t.Helper()
			for deadline := time.Now().Add(within); ; time.Sleep(10 * time.Millisecond) {
				mu.Lock()
				have := len(got)
				mu.Unlock()
				if have >= n {
					return
				}
				if time.Now().After(deadline) {
					t.Fatalf("%d lines after %v, want %d", have, within, n)
				}
			}
		}
		has(20, time.Second)
		write(5)
		has(25, 200*time.Millisecond)
		for range 3 {
			srv.Stop()
			time.Sleep(3 * time.Second)
			if err := srv.Restart(); err != nil {
				t.Fatal(err)
			}
			write(10)
			has(written, 10*time.Second)
		}
		synctest.Wait()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		for i, n := range got {
			if i != n {
				t.Fatalf("line %d is %d: %v", i, n, got)
			}
		}
		if len(got) != written {
			t.Errorf("%d lines of %d", len(got), written)
		}
	})
}

func TestFollowWithoutAStream(t *testing.T) {
	srv := natstest.Server(t, natstest.Fast)
	conn, err := bus.Connect(t.Context(), bus.Options{InProcess: srv})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := open(t, conn, Config{}).Follow(t.Context(), Filter{}, func(Entry) {}); !errors.Is(err, bus.ErrNoStream) {
		t.Errorf("%v, want no such stream", err)
	}
}
