package lane

import (
	"context"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// firstSign is how long a call runs before its coordinator is notified that it does. Most calls end
// sooner and need no such notice.
const firstSign = 100 * time.Millisecond

// giveSigns tells the broker and the coordinator that the call is alive, until stop is called.
func (a *attempt) giveSigns(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var signs sync.WaitGroup
	signs.Go(func() {
		timer := time.NewTimer(min(firstSign, a.cfg.AckWait/3))
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
			if err := a.delivery().InProgress(); err != nil {
				a.log.Debug("sign of life not sent", "err", err)
			}
			a.alive()
			timer.Reset(a.cfg.AckWait / 3)
		}
	})
	return func() { cancel(); signs.Wait() }
}

// alive tells the coordinator that the call runs here, and under which claim. The coordinator
// counts the lease from when it first sees that record.
func (a *attempt) alive() {
	n := wire.Notice{Running: true, Worker: a.cfg.Worker}
	if a.holds() {
		record, seq := a.mine()
		record = light(record)
		n.Record, n.Seq = &record, seq
	}
	a.tell(n)
}

// tell sends a notice to the coordinator that published the job. Notices are hints: the
// coordinator's poll makes up for a lost one.
func (a *attempt) tell(n wire.Notice) {
	a.mu.Lock()
	coordinator := a.notify
	a.mu.Unlock()
	if !messages.IsToken(coordinator) {
		return
	}
	n.V, n.Batch, n.Index = messages.Version, a.key.BatchKey.String(), a.key.Index
	if err := a.conn.Publish(a.conn.Names().Notify(coordinator), nil, rawjson.MustMarshal(n)); err != nil {
		a.log.Debug("coordinator not told; its poll will find out", "err", err)
	}
}

// light returns a record without its heavy part, the arguments.
func light(record wire.CallRecord) wire.CallRecord {
	record.Input = nil
	if record.Approval != nil {
		own := *record.Approval
		own.Input, own.Original = nil, nil
		record.Approval = &own
	}
	return record
}

// event publishes an event for watchers.
func (a *attempt) event(e messages.Event) {
	a.telling.Lock()
	defer a.telling.Unlock()
	a.mu.Lock()
	a.counter++
	if e.Progress != nil {
		a.count(Progressed)
	}
	e.Counter, e.Attempt = a.counter, a.runs
	if a.claims() {
		e.Attempt = a.record.Attempt
		if !a.claimed {
			e.Attempt++ // the attempt that is about to be claimed
		}
	}
	a.mu.Unlock()
	e.V, e.Session, e.Batch, e.Index = messages.Version, a.job.Session, a.job.Batch, a.job.Index
	e.CallID, e.Tool, e.Kind, e.Worker, e.Time = a.job.CallID, a.job.Tool, a.job.Kind, a.cfg.Worker, time.Now()
	header := bus.Header{messages.EventHeader: {string(e.Type)}}
	if err := a.conn.Publish(a.conn.Names().Of(wire.VerbEvent, a.key.BatchKey), header, rawjson.MustMarshal(e)); err != nil {
		a.log.Debug("event lost", "type", e.Type, "err", err)
	}
}
