package coordinator

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// What happened to a batch can be told again: from the log, the records of its calls, their results and the reply. What is
// told is what the events told that were published at the time, as far as it is durable: progress is not, and neither are
// attempts of calls that do not claim but the last. Nothing is guessed: what kind a call is of, its stage, and that it can never
// run are the plan's to say, and until a record holds the plan nobody knows how it will be.

// storytellers is how many timelines and lists of batches are made at once: each may be about as large as a session's work.
const storytellers = 2

// patience is how long a request for one waits for its turn. Whoever asks waits longer.
const patience = 5 * time.Second

var errCrowded = errors.New("too many timelines and lists of batches are asked for at once")

// inTurn makes a long answer: few are made at once, and for a tenant one.
func (c *Coordinator) inTurn(ctx context.Context, tenant string, answer func() (any, error)) ([]byte, error) {
	turn, cancel := context.WithTimeoutCause(ctx, patience, errCrowded)
	defer cancel()
	leave, ok := c.telling.enter(turn, tenant)
	if !ok {
		return nil, context.Cause(turn)
	}
	defer leave()
	body, err := answer()
	if err != nil {
		return nil, err
	}
	return rawjson.MustMarshal(body), nil
}

// timeline is what is durable about a batch, as the get door answers with it; bus.ErrNotFound when nobody knows of it.
func (c *Coordinator) timeline(ctx context.Context, key wire.BatchKey) ([]byte, error) {
	return c.inTurn(ctx, key.Tenant, func() (any, error) {
		story, err := c.journal.Story(ctx, key)
		if err != nil {
			return nil, err
		}
		t := past{story: story}
		if story.Accepted.Seq > 0 {
			if t.in, err = c.decode(c.logAbout(ctx, key), story.Accepted); err == nil {
				t.sent = routed(t.in.batch.Provider, t.in.calls, c.catalog.now())
			} // else it is about to be refused: it has no calls
		}
		return t.tell(), nil
	})
}

// past is a batch of which is told again.
type past struct {
	story   journal.Story
	in      decoded             // while the batch is in the log
	sent    []messages.ToolCall // the same
	planned []wire.PlannedCall  // once the plan is stored
	calls   []pastCall
}

// pastCall is what is known of a call.
type pastCall struct {
	index    int
	id       messages.CallID
	tool     string
	kind     messages.Kind
	stage    int
	result   *messages.Result
	ended    time.Time // zero: not known
	attempt  int       // the newest that was told
	question string    // the id of the newest that was told
	events   []messages.Event
}

func (t *past) tell() messages.Timeline {
	out := messages.Timeline{V: messages.Version, Status: "running", Accepted: t.accepted(), TraceID: t.traceID(), Events: []messages.Event{}}
	out.Session, out.Batch = t.in.batch.Session, t.in.batch.ID
	if r := t.story.Reply; r != nil {
		out.Session, out.Batch, out.Status = r.Session, r.Batch, string(r.Status)
	}
	t.findCalls()
	t.findResults()
	for _, e := range t.story.Records {
		if e.Key.Index < len(t.calls) {
			t.record(&t.calls[e.Key.Index], e)
		}
	}
	began := t.began()
	var starts, middle, results []messages.Event
	for i := range t.calls {
		c := &t.calls[i]
		t.end(c, began)
		starts = append(starts, c.event(messages.EventStart, began))
		at := began
		for _, e := range c.events { // two clocks may disagree about what came first
			at = later(at, e.Time)
			e.Time = at
			middle = append(middle, e)
		}
		if t.story.Reply != nil && c.result != nil {
			e := c.event(messages.EventResult, t.story.Replied)
			e.Result, e.Attempt, e.Worker = forAgents(*c.result), c.result.Attempt, c.result.Worker
			results = append(results, e)
		}
	}
	slices.SortStableFunc(middle, func(a, b messages.Event) int { return a.Time.Compare(b.Time) })
	out.Events = append(out.Events, slices.Concat(starts, middle, results)...) // never nil
	if t.story.Reply != nil {
		out.Events = append(out.Events, messages.Event{Type: messages.EventReply, Index: -1, Time: t.story.Replied, Status: t.story.Reply.Status})
	}
	counters := map[int]int{}
	for i := range out.Events {
		e := &out.Events[i]
		counters[e.Index]++
		e.V, e.Session, e.Batch, e.Counter = messages.Version, out.Session, out.Batch, counters[e.Index]
	}
	return out
}

// findCalls finds out what the calls are: from the batch itself while it is in the log, else from its reply, and from the plan
// once it is stored.
func (t *past) findCalls() {
	for _, sent := range t.sent {
		t.calls = append(t.calls, pastCall{index: sent.Index, id: sent.ID, tool: sent.Tool()})
	}
	if t.calls == nil && t.story.Reply != nil {
		for i, r := range t.story.Reply.Results {
			t.calls = append(t.calls, pastCall{index: i, id: r.CallID, tool: r.Tool, kind: r.Kind})
		}
	}
	if len(t.story.Plans) == 0 || len(t.story.Plans[0].Record.Calls) != len(t.calls) {
		return
	}
	t.planned = t.story.Plans[0].Record.Calls
	for i, planned := range t.planned {
		c := &t.calls[i]
		c.tool, c.kind, c.stage = planned.Tool, planned.Kind, planned.Stage
	}
}

// findResults finds how the calls ended. A record of a call's own tells so too, with its time, and better: see record.
func (t *past) findResults() {
	take := func(r messages.Result, at time.Time) {
		if r.Index >= 0 && r.Index < len(t.calls) && t.calls[r.Index].result == nil {
			t.calls[r.Index].take(r, at)
		}
	}
	for _, e := range t.story.Results {
		take(e.Result, e.Stored)
	}
	for _, p := range t.story.Plans {
		for _, r := range p.Record.Results {
			take(r, time.Time{})
		}
	}
	claims := map[int]bool{} // what they came to stands in their own records
	for _, e := range t.story.Records {
		claims[e.Key.Index] = true
	}
	if r := t.story.Reply; r != nil {
		for i, result := range r.Results {
			if !claims[i] {
				take(result, time.Time{})
			}
		}
	}
	for _, c := range t.planned {
		if c.Refused != nil {
			take(*c.Refused, time.Time{})
		}
	}
}

// record tells what one record of a call says.
func (t *past) record(c *pastCall, e journal.CallEntry) {
	switch r := e.Record; r.State {
	case wire.Parked:
		if q := r.Approval; q != nil && q.ID != c.question {
			c.question = q.ID
			c.kind = cmp.Or(c.kind, q.Kind)
			asked := c.event(messages.EventAwaiting, q.Asked)
			asked.Approval = t.question(e)
			c.events = append(c.events, asked)
		}
	case wire.Claimed, wire.Renewed:
		c.running(r.Attempt, r.Worker, e.Stored)
	case wire.Ended:
		if r.Result != nil {
			c.take(*r.Result, e.Stored)
		}
	}
}

// take notes down how a call ended. The result of another call is of a batch that had this id long before.
func (c *pastCall) take(r messages.Result, at time.Time) {
	if r.Tool == c.tool {
		c.kind, c.result, c.ended = cmp.Or(c.kind, r.Kind), &r, at
	}
}

// question is what people were asked in a record, with what they have said since.
func (t *past) question(asked journal.CallEntry) *messages.Pending {
	q := *asked.Record.Approval
	state := ""
	for _, e := range t.story.Records {
		if e.Key != asked.Key || e.Seq < asked.Seq || e.Record.Approval == nil {
			continue
		}
		if next := e.Record.Approval; next.ID != q.ID { // somebody was asked anew, or has agreed to other arguments
			state = "gone"
			if e.Record.State == wire.Granted && next.Original != nil {
				q.Decisions, state = next.Decisions, "granted"
			}
			break
		}
		q.Decisions = e.Record.Approval.Decisions
		state = afterwards(e.Record, state)
	}
	pending := t.in.forAgents(q)
	pending.State = state
	return &pending
}

// afterwards is the state of a question after a record of its call, and before it.
func afterwards(r wire.CallRecord, before string) string {
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

func (c *pastCall) running(attempt int, worker string, at time.Time) {
	if attempt > c.attempt {
		c.attempt = attempt
		e := c.event(messages.EventRunning, at)
		e.Attempt, e.Worker = attempt, worker
		c.events = append(c.events, e)
	}
}

// end tells the last attempt, where no record did, and how the call ended.
func (t *past) end(c *pastCall, began time.Time) {
	r := c.result
	if r == nil && t.story.Reply != nil && c.index < len(t.story.Reply.Results) { // its records are forgotten
		r = &t.story.Reply.Results[c.index]
		c.result = r
	}
	if r == nil {
		return
	}
	if !r.Started.IsZero() {
		c.running(r.Attempt, r.Worker, r.Started)
	}
	at := c.ended
	if at.IsZero() && !r.Started.IsZero() {
		at = r.Started.Add(time.Duration(r.DurationMS * float64(time.Millisecond)))
	}
	switch {
	case !at.IsZero():
	case r.Status == messages.StatusUnknownTool, r.Status == messages.StatusValidationError: // the plan said so
		at = began
	default:
		at = t.story.Replied
	}
	e := c.event(messages.EventEnd, at)
	e.Result, e.Attempt, e.Worker = forAgents(*r), r.Attempt, r.Worker
	c.events = append(c.events, e)
}

func (c *pastCall) event(kind messages.EventType, at time.Time) messages.Event {
	return messages.Event{Type: kind, Index: c.index, CallID: c.id, Tool: c.tool, Kind: c.kind, Stage: c.stage, Time: at}
}

// forAgents is a result as it stands in replies and events.
func forAgents(r messages.Result) *messages.Result {
	r = slimmed(r)
	r.Trail = nil
	return &r
}

// accepted is when the batch was stored; zero where nobody knows any more.
func (t *past) accepted() time.Time {
	if t.story.Accepted.Seq > 0 {
		return t.story.Accepted.Stored
	}
	for _, line := range t.story.Lines.Lines {
		if !line.Accepted.IsZero() {
			return line.Accepted
		}
	}
	return time.Time{}
}

// began is when the batch was accepted, or the first that is known of it.
func (t *past) began() time.Time {
	if at := t.accepted(); !at.IsZero() {
		return at
	}
	first := t.story.Replied
	for _, c := range t.calls {
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

// traceID is the trace that the batch belongs to, as far as something says so: the agent's context, a record, or the record
// for people.
func (t *past) traceID() string {
	id := func(h tracing.Header) string { return tracing.ID(tracing.Extract(context.Background(), h)) }
	if found := id(t.story.Accepted.Header); found != "" {
		return found
	}
	var spans []string
	for _, e := range t.story.Records {
		spans = append(spans, e.Record.Span)
	}
	for _, e := range t.story.Results {
		if e.Result.Trail != nil {
			spans = append(spans, e.Result.Trail.Span)
		}
	}
	for _, span := range spans {
		if link, ok := tracing.Link(span, ""); ok {
			return link.SpanContext.TraceID().String()
		}
	}
	for _, line := range t.story.Lines.Lines {
		if line.TraceID != "" {
			return line.TraceID
		}
	}
	return ""
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
