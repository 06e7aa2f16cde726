package coordinator

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// A thousand workers come within ten seconds, each with its own tools. Then each announces
// every second how busy it is. The coordinator computes the effect a few times a second, and
// not for each announcement.
func TestAnnouncementsAreAppliedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var changes atomic.Int32
		s := newToolsets(nil, nil, slog.New(slog.DiscardHandler), func() {
			changes.Add(1)
			time.Sleep(10 * time.Millisecond) // as long as it takes in a large fleet
		})
		close(s.ready)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() { defer close(ended); s.rebuild(ctx) }()
		announce := func(n, busy int) {
			tools := []string{fmt.Sprint(n)}
			s.learn(fmt.Sprint(n), rawjson.MustMarshal(wire.Presence{
				Pools: []string{"p"}, Slots: 10, Busy: busy, Queues: map[string]wire.Queue{"p": {Token: wire.QueueToken("p", tools), Tools: tools}},
			}))
		}
		announce(0, 0)
		synctest.Wait()
		if n := len(s.board.Fleet().Queues()); n != 1 {
			t.Errorf("the first worker is not known at once: %d queues", n)
		}
		for n := 1; n < 1000; n++ {
			time.Sleep(10 * time.Millisecond)
			announce(n, 0)
		}
		time.Sleep(time.Second)
		if n := changes.Load(); n < 90 || n > 102 {
			t.Errorf("1000 workers came within 10 s, and the board changed %d times", n)
		}
		for busy := range 3 {
			for n := range 1000 {
				announce(n, busy+1)
			}
		}
		synctest.Wait()
		for _, q := range s.board.Fleet().Queues() {
			if q.Busy != 3 {
				t.Fatalf("queue %s has %d busy slots", q.Token, q.Busy)
			}
		}
		if len(s.stale) > 0 {
			t.Error("the board is worked out anew although no worker came or went")
		}
		cancel()
		<-ended
	})
}
