package coordinator

import (
	"log/slog"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/plan"
	"github.com/toolfleet/toolfleet/coordinator/submission"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// events publishes the events of a batch if anyone may be listening. A lost event is not
// repeated: readers find it in the history of the batch.
type events struct {
	conn     *bus.Conn
	audience *bus.Audience
	subject  string
	log      *slog.Logger
	in       messages.Batch
	tenant   messages.TenantID
	user     string           // the user who asks for the batch; "" if not known
	plan     func() plan.Plan // nil until the batch is planned
	counters map[int]int      // number of events so far, by call
	started  int              // number of calls whose start is published
}

func (e *events) publish(ev messages.Event) {
	e.counters[ev.Index]++
	ev.V, ev.Session, ev.Batch = messages.Version, e.in.Session, e.in.ID
	ev.Counter, ev.Time = e.counters[ev.Index], time.Now()
	if e.plan != nil && ev.Index >= 0 {
		ev.Stage = e.plan().Calls[ev.Index].Stage
	}
	header := bus.Header{messages.EventHeader: {string(ev.Type)}}
	var err error
	switch ev.Type {
	// These events are rare: one for each batch or question. They also go to listeners that
	// came a moment ago.
	case messages.EventReply, messages.EventAwaiting:
		err = e.conn.Publish(e.subject, header, rawjson.MustMarshal(ev))
	default:
		err = e.audience.Publish(e.subject, header, func() []byte { return rawjson.MustMarshal(ev) })
	}
	if err != nil {
		e.log.Debug("an event was not published; the history of the batch has it", "type", ev.Type, "err", err)
	}
}

// unwatched reports whether nobody listened to the events of the batch when this was last
// asked.
func (e *events) unwatched() bool { return !e.audience.Has(e.subject) }

// starts publishes the start events of the first upTo calls that it has not published before.
// All start events are published before a call of the batch runs.
func (e *events) starts(upTo int) {
	for ; e.started < upTo; e.started++ {
		call := e.plan().Calls[e.started]
		start := messages.Event{
			Type: messages.EventStart, Index: call.Index, CallID: call.ID, Tool: call.PlannedCall.Tool, Kind: call.Kind, Stage: call.Stage,
			Labels: e.in.Labels,
		}
		if e.user != "" {
			start.Principal = &messages.Principal{Tenant: e.tenant, User: e.user}
		}
		e.publish(start)
	}
}

// result publishes an event about the result of a call. An end event has a short form of the
// result. A result event has no output, because the reply with the output follows.
func (e *events) result(kind messages.EventType, r messages.Result) {
	if e.unwatched() {
		e.counters[r.Index]++
		return
	}
	if kind == messages.EventEnd {
		r = submission.Brief(r)
	} else {
		r = submission.Slim(r)
	}
	e.publish(messages.Event{Type: kind, Index: r.Index, CallID: r.CallID, Tool: r.Tool, Kind: r.Kind, Attempt: r.Attempt, Worker: r.Worker, Result: &r})
}
