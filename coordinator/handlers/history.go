package handlers

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/logfields"
	"github.com/toolfleet/toolfleet/coordinator/submission"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// This file makes the history of a batch from the log, the records of its calls, their results
// and the reply. The history has those published events that are durable. Progress is not
// durable. Earlier attempts of a call that runs without a claim are not durable either. The
// kind and the stage of a call, and whether it can never run, are taken only from the stored
// plan.

// history returns the history of a batch, or bus.ErrNotFound for an unknown batch.
func (h *Handlers) history(ctx context.Context, key wire.BatchKey) ([]byte, error) {
	return h.limited(ctx, key.Tenant, func() (any, error) {
		b, err := h.readHistory(ctx, key, journal.SmallOutputs)
		if err != nil {
			return nil, err
		}
		return b.timeline(), nil
	})
}

// errReplied says that the batch has got its reply since the caller last looked.
var errReplied = errors.New("the batch has its reply")

// ended returns the state of an open batch, with the results of its ended calls. If the batch
// has a reply, it returns errReplied.
func (h *Handlers) ended(ctx context.Context, key wire.BatchKey) ([]byte, error) {
	return h.limited(ctx, key.Tenant, func() (any, error) {
		b, err := h.readHistory(ctx, key, journal.AllOutputs)
		if err != nil {
			return nil, err
		}
		if b.stored.Reply != nil {
			return nil, errReplied
		}
		state := messages.State{Status: messages.BatchRunning}
		for _, r := range b.results() {
			if err := h.journal.Resolve(ctx, &r); err != nil {
				logfields.Call(ctx, h.log, key.Call(r.Index), r.CallID).Error("a large outcome is missing in the object store; the call is shown without its output", "err", err)
			}
			r.Trail = nil
			state.Results = append(state.Results, r)
		}
		return state, nil
	})
}

// readHistory reads what the journal has about a batch.
func (h *Handlers) readHistory(ctx context.Context, key wire.BatchKey, outputs journal.Outputs) (*history, error) {
	stored, err := h.journal.History(ctx, key, outputs)
	if err != nil {
		return nil, err
	}
	b := &history{stored: stored, counts: h.cfg.Counts}
	if stored.Accepted.Seq > 0 {
		// A batch that cannot be decoded will be refused, so it has no calls.
		b.in, err = submission.Decode(logfields.Batch(ctx, h.log, key), stored.Accepted, h.conn.MaxBody())
		if err == nil {
			b.sent = b.in.Routed(h.tools.Of(key.Tenant))
		}
	}
	return b, nil
}

// history builds the timeline of one batch.
type history struct {
	stored  journal.History
	counts  func(messages.Decision, time.Time) bool // see [Config.Counts]
	in      submission.Submission                   // set while the batch is in the log
	sent    []messages.ToolCall                     // set while the batch is in the log
	planned []wire.PlannedCall                      // set once the plan is stored
	calls   []callHistory
}

// callHistory is the history of one call.
type callHistory struct {
	index    int
	id       messages.CallID
	tool     string
	kind     messages.Kind
	stage    int
	result   *messages.Result
	ended    time.Time // zero: not known
	attempt  int       // the newest attempt that has an event
	question string    // id of the newest question that has an event
	events   []messages.Event
}

// timeline puts the events in order: the starts of all calls, then what happened to the
// calls sorted by time, then their results, then the reply.
func (b *history) timeline() messages.Timeline {
	out := messages.Timeline{V: messages.Version, Status: messages.BatchRunning, Accepted: b.accepted(), TraceID: b.traceID(), Events: []messages.Event{}}
	out.Session, out.Batch = b.in.Batch.Session, b.in.Batch.ID
	if r := b.stored.Reply; r != nil {
		out.Session, out.Batch, out.Status = r.Session, r.Batch, string(r.Status)
	}
	b.readCalls()
	began := b.began()
	var starts, middle, results []messages.Event
	for i := range b.calls {
		c := &b.calls[i]
		b.end(c, began)
		starts = append(starts, c.event(messages.EventStart, began))
		at := began
		for _, e := range c.events { // the clocks of two workers may differ
			at = later(at, e.Time)
			e.Time = at
			middle = append(middle, e)
		}
		if b.stored.Reply != nil && c.result != nil {
			e := c.event(messages.EventResult, b.stored.Replied)
			e.Result, e.Attempt, e.Worker = new(submission.Slim(*c.result)), c.result.Attempt, c.result.Worker
			results = append(results, e)
		}
	}
	slices.SortStableFunc(middle, func(a, b messages.Event) int { return a.Time.Compare(b.Time) })
	// out.Events is not nil, so that it is encoded as a list and not as null.
	out.Events = append(out.Events, slices.Concat(starts, middle, results)...)
	if b.stored.Reply != nil {
		out.Events = append(out.Events, messages.Event{Type: messages.EventReply, Index: -1, Time: b.stored.Replied, Status: b.stored.Reply.Status})
	}
	counters := map[int]int{}
	for i := range out.Events {
		e := &out.Events[i]
		counters[e.Index]++
		e.V, e.Session, e.Batch, e.Counter = messages.Version, out.Session, out.Batch, counters[e.Index]
	}
	return out
}

// results returns the results of the ended calls, in call order.
func (b *history) results() (ended []messages.Result) {
	b.readCalls()
	for _, c := range b.calls {
		if c.result != nil {
			ended = append(ended, *c.result)
		}
	}
	return ended
}

// readCalls collects the calls and what happened to them.
func (b *history) readCalls() {
	b.findCalls()
	b.findResults()
	for _, e := range b.stored.Records {
		if e.Key.Index < len(b.calls) {
			b.addRecord(&b.calls[e.Key.Index], e)
		}
	}
}

// findCalls takes the calls from the batch if it is in the log, otherwise from its reply.
// It adds what the stored plan has decided about them.
func (b *history) findCalls() {
	for _, sent := range b.sent {
		b.calls = append(b.calls, callHistory{index: sent.Index, id: sent.ID, tool: sent.Tool()})
	}
	if b.calls == nil && b.stored.Reply != nil {
		for i, r := range b.stored.Reply.Results {
			b.calls = append(b.calls, callHistory{index: i, id: r.CallID, tool: r.Tool, kind: r.Kind})
		}
	}
	if len(b.stored.Plans) == 0 || len(b.stored.Plans[0].Record.Calls) != len(b.calls) {
		return
	}
	b.planned = b.stored.Plans[0].Record.Calls
	for i, planned := range b.planned {
		c := &b.calls[i]
		c.tool, c.kind, c.stage = planned.Tool, planned.Kind, planned.Stage
	}
}

// findResults collects how calls ended. If a call has its own record of the end, addRecord
// later replaces this result, because the record also has the time.
func (b *history) findResults() {
	set := func(r messages.Result, at time.Time) {
		if r.Index >= 0 && r.Index < len(b.calls) && b.calls[r.Index].result == nil {
			b.calls[r.Index].setResult(r, at)
		}
	}
	for _, e := range b.stored.Results {
		set(e.Result, e.Stored)
	}
	for _, p := range b.stored.Plans {
		for _, r := range p.Record.Results {
			set(r, time.Time{})
		}
	}
	claims := map[int]bool{} // calls whose results are in their own records
	for _, e := range b.stored.Records {
		claims[e.Key.Index] = true
	}
	if r := b.stored.Reply; r != nil {
		for i, result := range r.Results {
			if !claims[i] {
				set(result, time.Time{})
			}
		}
	}
	for _, c := range b.planned {
		if c.Refused != nil {
			set(*c.Refused, time.Time{})
		}
	}
}

// addRecord adds the event of one record of a call.
func (b *history) addRecord(c *callHistory, e journal.CallEntry) {
	switch r := e.Record; r.State {
	case wire.Parked:
		if q := r.Approval; q != nil && q.ID != c.question {
			c.question = q.ID
			c.kind = cmp.Or(c.kind, q.Kind)
			awaiting := c.event(messages.EventAwaiting, q.Asked)
			awaiting.Approval = b.question(e)
			c.events = append(c.events, awaiting)
		}
	case wire.Claimed, wire.Renewed:
		c.addRunning(r.Attempt, r.Worker, e.Stored)
	case wire.Ended:
		if r.Result != nil {
			c.setResult(*r.Result, e.Stored)
		}
	}
}

// setResult sets how a call ended. It ignores a result of another tool, because that result
// belongs to an older batch with the same id.
func (c *callHistory) setResult(r messages.Result, at time.Time) {
	if r.Tool == c.tool {
		c.kind, c.result, c.ended = cmp.Or(c.kind, r.Kind), &r, at
	}
}

// question returns the question in a record, with the decisions from later records.
func (b *history) question(asked journal.CallEntry) *messages.Pending {
	q := *asked.Record.Approval
	state := ""
	for _, e := range b.stored.Records {
		if e.Key != asked.Key || e.Seq < asked.Seq || e.Record.Approval == nil {
			continue
		}
		if next := e.Record.Approval; next.ID != q.ID { // a new question, or a grant with new arguments
			state = "gone"
			if e.Record.State == wire.Granted && next.Original != nil {
				q.Decisions, state = next.Decisions, "granted"
			}
			break
		}
		q.Decisions = e.Record.Approval.Decisions
		state = stateAfter(e.Record, state)
	}
	q.Decisions = b.proven(asked.Key, q)
	pending := b.in.ForAgents(q)
	pending.State = state
	return &pending
}

// proven returns the decisions about a question that have a valid signature. A record alone
// proves no decision, because workers can write call records too. The signature of an edit
// covers its arguments. Late records of the call leave the arguments out, so proven also looks
// for them in earlier records.
func (b *history) proven(key wire.CallKey, q messages.Approval) (proven []messages.Decision) {
	type decision struct{ by, nonce string }
	signed := map[decision]bool{}
	for _, e := range b.stored.Records {
		if e.Key != key || e.Record.Approval == nil {
			continue
		}
		for _, d := range e.Record.Approval.Decisions {
			if sameCall(q, d) && b.counts(d, e.Stored) {
				signed[decision{d.By, d.Nonce}] = true
			}
		}
	}
	for _, d := range q.Decisions {
		if signed[decision{d.By, d.Nonce}] {
			proven = append(proven, d)
		}
	}
	return proven
}

// sameCall reports whether a decision is about the call of a question.
func sameCall(q messages.Approval, d messages.Decision) bool {
	return d.Tenant == q.Tenant && d.Session == q.Session && d.Batch == q.Batch && d.Index == q.Index && d.CallID == q.CallID
}

// stateAfter returns the state of a question after a record of its call. before is the state
// before that record. If it is set, it stays.
func stateAfter(r wire.CallRecord, before string) string {
	switch {
	case r.State == wire.Parked || before != "":
		return before
	case r.State != wire.Ended:
		return "granted"
	case r.Result != nil && r.Result.Err != nil && r.Result.Err.Code == messages.CodeDeniedByUser:
		return "denied"
	case r.Result != nil && r.Result.Err != nil && r.Result.Err.Code == messages.CodeApprovalExpired:
		return "expired"
	}
	return "gone"
}

func (c *callHistory) addRunning(attempt int, worker string, at time.Time) {
	if attempt > c.attempt {
		c.attempt = attempt
		e := c.event(messages.EventRunning, at)
		e.Attempt, e.Worker = attempt, worker
		c.events = append(c.events, e)
	}
}

// end adds the end of the call. If no record shows the last attempt, it first adds an event
// for that attempt.
func (b *history) end(c *callHistory, began time.Time) {
	r := c.result
	// The records were deleted because of their age, so take the result from the reply.
	if r == nil && b.stored.Reply != nil && c.index < len(b.stored.Reply.Results) {
		r = &b.stored.Reply.Results[c.index]
		c.result = r
	}
	if r == nil {
		return
	}
	if !r.Started.IsZero() {
		c.addRunning(r.Attempt, r.Worker, r.Started)
	}
	at := c.ended
	if at.IsZero() && !r.Started.IsZero() {
		at = r.Started.Add(time.Duration(r.DurationMS * float64(time.Millisecond)))
	}
	switch {
	case !at.IsZero():
	case r.Status == messages.StatusUnknownTool, r.Status == messages.StatusValidationError: // found by the plan
		at = began
	default:
		at = b.stored.Replied
	}
	e := c.event(messages.EventEnd, at)
	e.Result, e.Attempt, e.Worker = new(submission.Brief(*r)), r.Attempt, r.Worker
	c.events = append(c.events, e)
}

func (c *callHistory) event(kind messages.EventType, at time.Time) messages.Event {
	return messages.Event{Type: kind, Index: c.index, CallID: c.id, Tool: c.tool, Kind: c.kind, Stage: c.stage, Time: at}
}

// accepted returns when the log stored the batch, or zero if this is not known any more.
func (b *history) accepted() time.Time {
	if b.stored.Accepted.Seq > 0 {
		return b.stored.Accepted.Stored
	}
	for _, line := range b.stored.Lines.Lines {
		if !line.Accepted.IsZero() {
			return line.Accepted
		}
	}
	return time.Time{}
}

// began returns when the batch was accepted. If this is not known, it returns the earliest
// known time of the batch.
func (b *history) began() time.Time {
	if at := b.accepted(); !at.IsZero() {
		return at
	}
	first := b.stored.Replied
	for _, c := range b.calls {
		if r := c.result; r != nil && !r.Started.IsZero() {
			if queued := r.Started.Add(-time.Duration(r.QueueMS * float64(time.Millisecond))); first.IsZero() || queued.Before(first) {
				first = queued
			}
		}
		if len(c.events) > 0 && (first.IsZero() || c.events[0].Time.Before(first)) {
			first = c.events[0].Time
		}
	}
	return first
}

// traceID returns the trace of the batch. It takes the first that it finds, in this order:
// from the agent's context, a call record, a result, the audit log.
func (b *history) traceID() string {
	if id := tracing.ID(tracing.Extract(context.Background(), b.stored.Accepted.Header)); id != "" {
		return id
	}
	var spans []string
	for _, e := range b.stored.Records {
		spans = append(spans, e.Record.Span)
	}
	for _, e := range b.stored.Results {
		if e.Result.Trail != nil {
			spans = append(spans, e.Result.Trail.Span)
		}
	}
	for _, span := range spans {
		if link, ok := tracing.Link(span, ""); ok {
			return link.SpanContext.TraceID().String()
		}
	}
	for _, line := range b.stored.Lines.Lines {
		if line.TraceID != "" {
			return line.TraceID
		}
	}
	return ""
}
