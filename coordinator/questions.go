package coordinator

import (
	"context"
	"fmt"

	"github.com/toolfleet/toolfleet/coordinator/logfields"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// What people see of the calls that wait for them: an entry in the index, news, an event of the batch, and a line in the
// record for people. None of it decides anything, so none of it holds up the batch.

// mind makes the question of a call known while it is open, and takes it back once it is not. What was seen to before is
// left alone.
func (d *drive) mind(ctx context.Context, index int) {
	q, open := d.machine.Question(index)
	if q == nil {
		return
	}
	now := fmt.Sprint(q.ID, q.Asked.UnixNano(), len(q.Decisions), open)
	if d.minded[index] == now {
		return
	}
	d.minded[index] = now
	if key := d.accepted.Key.Call(index); open {
		d.ask(ctx, key, *q)
	} else {
		d.takeBack(ctx, key, *q)
	}
}

// ask tells everybody of a question that is new in the index. Where the index cannot be written it is told of each time
// that the batch is looked at.
func (d *drive) ask(ctx context.Context, key wire.CallKey, q messages.Approval) {
	fresh, err := d.journal.Ask(ctx, key, q)
	if err != nil {
		d.log.Warn("a question is not in the list of those that are open; it can be answered all the same", d.call(key.Index), "err", err)
	} else if !fresh {
		return
	}
	d.news(ctx, key, q.Pending())
	pending := d.in.ForAgents(q)
	d.publish(messages.Event{Type: messages.EventAwaiting, Index: key.Index, CallID: q.CallID, Tool: q.Tool, Kind: q.Kind, Approval: &pending})
	d.audit(ctx, key, about(messages.AuditAsked, q))
}

// takeBack drops a question that is not open any more. Mostly whoever took the decision has done so.
func (d *drive) takeBack(ctx context.Context, key wire.CallKey, q messages.Approval) {
	was, listed, err := d.journal.Forget(ctx, key)
	if err != nil {
		d.log.Warn("a question stays in the list of those that are open, until it expires", d.call(key.Index), "err", err)
	}
	if listed {
		was.State = d.machine.Answer(key.Index)
		d.news(ctx, key, was)
	}
}

// news tells whoever watches what became open, and what is not any more.
func (c *Coordinator) news(ctx context.Context, key wire.CallKey, p messages.Pending) {
	if err := c.conn.Publish(c.names.OfCall(wire.VerbNews, key), nil, rawjson.MustMarshal(p)); err != nil {
		logfields.Call(ctx, c.log, key, p.CallID).Debug("news of a question lost", "err", err)
	}
}

// audit writes a line that the batch does not wait for.
func (c *Coordinator) audit(ctx context.Context, key wire.CallKey, line messages.AuditRecord) {
	line.Writer = c.id
	if err := c.record.WriteAt(ctx, key, line); err != nil {
		c.cfg.Metrics.auditFailed()
		logfields.Call(ctx, c.log, key, line.CallID).Error("a line is missing in the record for people", "type", line.Type, "approval", line.Approval, "err", err)
	}
}

// about is a line about a question.
func about(kind messages.AuditType, q messages.Approval) messages.AuditRecord {
	line := messages.AuditRecord{
		Type: kind, Tenant: q.Tenant, Session: q.Session, Batch: q.Batch, Index: q.Index, CallID: q.CallID,
		Tool: q.Tool, ToolDigest: q.ToolDigest, ArgsHash: q.ArgsHash, Approval: q.ID, Permission: permission(q, "ask"),
	}
	if q.Original != nil {
		line.Original = q.Original.ArgsHash
	}
	return line
}

// permission is what was decided about a call that people were asked about.
func permission(q messages.Approval, effect string) *messages.Permission {
	p := &messages.Permission{
		Effect: effect, Source: "person", Rule: q.Rule, Tier: q.Tier, Policy: q.Policy, Approval: q.ID, Edited: q.Original != nil,
	}
	for _, d := range q.Decisions {
		p.By = append(p.By, d.By)
		if d.Ticket != "" {
			p.Ticket = d.Ticket
		}
	}
	return p
}

// bare is a question without the arguments, which the records before it hold.
func bare(q messages.Approval) *messages.Approval {
	q.Input = nil
	if q.Original != nil {
		q.Original = &messages.Arguments{ArgsHash: q.Original.ArgsHash}
	}
	decisions := q.Decisions
	q.Decisions = nil
	for _, d := range decisions {
		d.Input = nil
		q.Decisions = append(q.Decisions, d)
	}
	return &q
}
