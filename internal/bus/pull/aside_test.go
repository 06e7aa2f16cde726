package pull_test

import (
	"context"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/bustest"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/bus/pull"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// The second consumer is missing, and cannot be made again for a while: the puller still pulls
// from the first one. It pulls from the second one as soon as that is there.
func TestAMissingSecondConsumerHoldsNothingUp(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		c := bustest.Workshop(t, srv, 10*time.Second)
		jobs, first := c.Names().Stream(bus.Jobs), wire.QueueToken(bustest.Pool, []string{"a"})
		consumer, err := provision.QueueConsumer(c.Names(), first, 10*time.Second, 0)
		if err == nil {
			err = provision.EnsureConsumer(t.Context(), c, consumer)
		}
		if err == nil {
			err = c.JetStream().DeleteConsumer(t.Context(), jobs, bustest.Pool)
		}
		if err != nil {
			t.Fatal(err)
		}
		slots, p := pull.NewSlots(3), pull.New(c, jobs, first)
		p.Aside(bustest.Pool)
		waited := make(chan time.Duration, 100)
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		done := make(chan error, 1)
		go func() {
			done <- p.Run(ctx, slots, func(d *pull.Delivery) {
				waited <- time.Since(d.Time)
				_ = d.Ack()
			})
		}()
		send := func(queue string, i int) {
			if _, err := c.Append(t.Context(), c.Names().Lane(false, queue, bustest.Key("s", queue).Call(i)), nil, nil); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 40 {
			send(first, i)
			if took := bustest.Receive(t, waited); took > 50*time.Millisecond { // simulated
				t.Errorf("message %d of the first consumer waited for %v", i, took)
			}
			time.Sleep(700 * time.Millisecond)
		}
		select {
		case <-c.Missing():
		default:
			t.Error("nobody was told that the second consumer is missing")
		}
		bustest.EnsurePool(t, c, 10*time.Second)
		send(bustest.Pool, 0)
		if took := bustest.Receive(t, waited); took > time.Minute { // simulated
			t.Errorf("a message of the second consumer waited for %v", took)
		}
		cancel()
		if err := bustest.Receive(t, done); err != nil {
			t.Error(err)
		}
		if n := slots.Free(); n != 3 {
			t.Errorf("%d of 3 slots are free", n)
		}
	})
}
