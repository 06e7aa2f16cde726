package lane

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/call"
)

// answers is the headroom of a question, in bytes of a message: what people answer is stored with
// it.
const answers = 8 << 10

// park writes a question to people into the call's journal and gives the job up, so that neither a
// slot nor a lease is held while they think. When several workers ask at once, one question is
// stored. A run that is stopped meanwhile is parked too, because it has no result. If the
// coordinator has already stored a record of the stop, that record came first and the question is
// not stored.
func (a *attempt) park(ctx context.Context, ask *call.Ask) (settlement, error) {
	ctx, done := a.lastWords(ctx)
	defer done()
	before, last := a.mine()
	q := ask.Approval
	q.Asked = a.conn.Now(ctx).UTC()
	q.Expires = q.Asked.Add(a.cfg.ApprovalTTL)
	q.ID = approval.ID(q)
	record := wire.CallRecord{
		V: messages.Version, State: wire.Parked, Nonce: a.nonce + "-parked", Attempt: before.Attempt, Lapsed: before.Lapsed, Worker: a.cfg.Worker,
		ArgsHash: ask.ArgsHash, ToolDigest: a.job.ToolDigest, Hooks: ask.Hooks, Approval: &q, Span: a.parent,
	}
	var seq uint64
	err := bus.ErrTooLarge
	if len(rawjson.MustMarshal(record)) <= a.conn.MaxPayload()-room-answers {
		seq, err = a.insist(ctx, record, last)
	}
	var other *journal.Lost
	switch {
	case errors.As(err, &other):
		return a.lostTo(other.Newest), nil
	case errors.Is(err, bus.ErrTooLarge): // too large for every worker
		return a.finish(ctx, a.failed(messages.StatusError, messages.CodeTooLarge,
			"A person has to allow this call, and its arguments are too large to be put to one. "+a.job.Tool+" was not run. Do it in several smaller calls."))
	case err != nil:
		return nil, fmt.Errorf("park: %w", err)
	}
	a.became = parked
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(tracing.Approval.String(q.ID))
	}
	a.log.Info("parked: a person has to allow it", "rule", q.Rule, "tier", q.Tier, "approval", q.ID, "expires", q.Expires)
	return func(d *bus.Delivery) error {
		err := d.Ack()
		a.tell(wire.Notice{Record: &record, Seq: seq})
		return err
	}, nil
}

// lostTo settles the job of a call for which another writer stored a record first, and passes that
// record on to the coordinator.
func (a *attempt) lostTo(newest journal.CallEntry) settlement {
	a.log.Info("not parked: another record came first", "state", newest.Record.State, "seq", newest.Seq)
	if newest.Record.State == wire.Ended {
		a.tell(wire.Notice{Result: newest.Record.Result})
		return ack
	}
	a.tell(wire.Notice{Record: &newest.Record, Seq: newest.Seq})
	return term("another record came first")
}
