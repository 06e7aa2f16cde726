package coordinator

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/inspect"
)

// Many batches ask about jobs of one queue at the same time: the server is asked once. If it
// says that a job was not delivered, it is asked again soon.
func TestTheServerIsAskedOnceAboutAQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, upTo := 0, uint64(5)
		var fails error
		d := newDelivered(nil)
		d.ask = func(context.Context, string) (s inspect.ConsumerState, err error) {
			asked++
			s.Delivered.Stream = upTo
			return s, fails
		}
		for i, step := range []struct {
			after time.Duration
			upTo  uint64
			fails error
			seq   uint64
			want  bool
			asked int
		}{
			{0, 5, nil, 7, false, 1},
			{0, 9, nil, 7, false, 1}, // at the same time
			{0, 9, nil, 4, true, 1},
			{100 * time.Millisecond, 9, nil, 7, true, 2},
			{900 * time.Millisecond, 9, nil, 8, true, 2},
			{100 * time.Millisecond, 9, nil, 8, true, 3},
			{time.Second, 0, errors.New("no server"), 10, true, 4},
			{0, 0, errors.New("no server"), 10, true, 5},
			{0, 0, bus.ErrNotFound, 3, false, 6}, // the consumer is gone
		} {
			time.Sleep(step.after)
			upTo, fails = step.upTo, step.fails
			if got := d.maybe(t.Context(), "p", step.seq); got != step.want || asked != step.asked {
				t.Errorf("step %d: delivered %v, asked %d times; want %v and %d", i, got, asked, step.want, step.asked)
			}
		}
	})
}
