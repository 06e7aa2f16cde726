package coordinator

import (
	"context"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/bus/pull"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// withhold takes the next delivery of the log and keeps it for ever. For coordinators this
// looks like a message that a restarted server holds and never delivers again.
func (o *office) withhold() {
	o.t.Helper()
	conn := o.connect("withholder")
	o.must(provision.EnsureConsumer(o.t.Context(), conn, provision.BatchesConsumer(conn.Names(), 10*time.Second)))
	taken := make(chan struct{})
	o.run(conn, func(ctx context.Context) error {
		slots := pull.NewSlots(1)
		err := pull.New(conn, o.names.Stream(bus.Batches), bus.CoordinatorsConsumer).Run(ctx, slots, func(d *pull.Delivery) {
			close(taken)
			for ctx.Err() == nil {
				_ = d.InProgress()
				pause(ctx, 3*time.Second)
			}
		})
		_ = slots.Wait(context.Background())
		return err
	})
	<-taken
}

// inLog reports whether a batch is in the log.
func (o *office) inLog(key wire.BatchKey) bool {
	_, open, err := o.journal.Open(o.t.Context(), key)
	o.must(err)
	return open
}

// answered stores a reply to a batch that is in the log, as its driver does.
func (o *office) answered(key wire.BatchKey) {
	o.t.Helper()
	accepted, open, err := o.journal.Open(o.t.Context(), key)
	o.must(err)
	if !open {
		o.t.Fatalf("%s is not in the log", key)
	}
	b, err := messages.DecodeBatch(accepted.Body)
	o.must(err)
	_, err = o.journal.WriteReply(o.t.Context(), accepted, messages.Reply{
		V: 1, Batch: b.ID, Session: b.Session, Provider: b.Provider, Status: messages.ReplyCompleted,
		Digest: messages.Digest(accepted.Body), Reinjection: []byte("null"), Results: []messages.Result{},
	})
	o.must(err)
}

// After a restart of the server, a batch that has its reply is in the log again, and is never
// delivered. The next batch of the session makes its coordinator remove it.
func TestAHeadThatIsAnsweredHoldsUpNobody(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		first := o.submit("s", "first", 0)
		o.withhold()
		o.answered(first)
		o.coordinator(Config{})
		second := o.submit("s", "second", 0)
		o.reply(second, time.Minute)
		o.until("the first is out of the log", time.Minute, func() bool { return !o.inLog(first) })
	})
}

// A batch that has its reply is in the log again and is never delivered, and no later batch
// comes: the sweep removes the batch.
func TestAHeadThatIsAnsweredLeavesTheLog(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		first := o.submit("s", "first", 0)
		o.withhold()
		o.answered(first)
		o.coordinator(Config{})
		o.until("it is out of the log", 10*time.Minute, func() bool { return !o.inLog(first) })
	})
}

// The oldest batch of a session is never delivered: the next batch of the session makes a
// coordinator drive it after a while.
func TestAHeadThatIsNeverDeliveredIsDriven(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		first := o.submit("s", "first", 0)
		o.withhold()
		o.coordinator(Config{})
		second := o.submit("s", "second", 0)
		o.reply(first, 2*time.Minute)
		o.reply(second, time.Minute)
	})
}

// A batch is never delivered, and no later batch of its session comes: the sweep finds the
// batch, and it is driven.
func TestABatchThatIsNeverDeliveredIsDriven(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		first := o.submit("s", "first", 0)
		o.withhold()
		o.coordinator(Config{})
		o.reply(first, 15*time.Minute)
	})
}

// Another coordinator drives a batch for long: the sweep does not drive it too.
func TestTheSweepLeavesADrivenBatchAlone(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		a, _ := o.coordinator(Config{QueueTimeout: 40 * time.Minute})
		b, _ := o.coordinator(Config{QueueTimeout: 40 * time.Minute})
		key := o.submit("s", "long", 1) // no worker takes it
		o.until("somebody drives it", time.Minute, func() bool { return a.runs.of(key) != nil || b.runs.of(key) != nil })
		for range 12 {
			time.Sleep(time.Minute)
			if a.runs.of(key) != nil && b.runs.of(key) != nil {
				t.Fatal("both coordinators drive the batch")
			}
		}
	})
}
