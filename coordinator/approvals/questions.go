package approvals

import (
	"context"

	"github.com/toolfleet/toolfleet/coordinator/logfields"
	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// List puts an open question on the list and publishes it to watchers. announce means that the
// caller should announce the question to the agent. It is true if the question is new. It is
// also true if the list cannot be written, because the question may be new then.
func (s *Service) List(ctx context.Context, key wire.CallKey, q messages.Approval) (announce bool) {
	fresh, err := s.journal.Ask(ctx, key, q)
	if err != nil {
		logfields.Call(ctx, s.log, key, q.CallID).Warn("a question is missing in the list of open questions; it can be shown and answered by its id", "err", err)
	} else if !fresh {
		return false
	}
	s.publish(ctx, key, s.pending(ctx, q))
	return true
}

// pending returns an open question in the form of the list, with the people who may answer.
func (s *Service) pending(ctx context.Context, q messages.Approval) messages.Pending {
	p := q.Pending()
	p.MayAnswer = s.cfg.Approvers.May(p, s.conn.Now(ctx))
	return p
}

// Withdraw removes a closed question from the list. state says how the question was closed.
// Usually the coordinator that took the decision has removed the question already.
func (s *Service) Withdraw(ctx context.Context, key wire.CallKey, id messages.CallID, state string) {
	was, listed, err := s.journal.Forget(ctx, key)
	if err != nil {
		logfields.Call(ctx, s.log, key, id).Warn("a closed question stays in the list of open questions until it expires", "err", err)
	}
	if listed {
		was.State = state
		s.publish(ctx, key, was)
	}
}

// publish tells watchers of the list that a question is now open or closed.
func (s *Service) publish(ctx context.Context, key wire.CallKey, p messages.Pending) {
	if err := s.conn.Publish(s.names.OfCall(wire.VerbNews, key), nil, rawjson.MustMarshal(p)); err != nil {
		logfields.Call(ctx, s.log, key, p.CallID).Debug("a change of a question was not published; the list shows it", "err", err)
	}
}

// Audit writes an audit line about a question. The batch does not wait for the line. A line
// that cannot be written is counted and logged.
func (s *Service) Audit(ctx context.Context, key wire.CallKey, kind messages.AuditType, q messages.Approval) {
	s.auditOnce(ctx, key, auditLine(kind, q))
}

func (s *Service) auditOnce(ctx context.Context, key wire.CallKey, line messages.AuditRecord) {
	line.Writer = s.cfg.Writer
	if err := s.audit.WriteQuestion(ctx, key, line); err != nil {
		s.metrics.AuditFailed()
		logfields.Call(ctx, s.log, key, line.CallID).Error("a line is missing in the audit log", "type", line.Type, "approval", line.Approval, "err", err)
	}
}

// auditLine returns an audit line about a question.
func auditLine(kind messages.AuditType, q messages.Approval) messages.AuditRecord {
	line := messages.AuditRecord{
		Type: kind, Tenant: q.Tenant, Session: q.Session, Batch: q.Batch, Index: q.Index, CallID: q.CallID,
		Tool: q.Tool, ToolDigest: q.ToolDigest, ArgsHash: q.ArgsHash, Approval: q.ID, Permission: approval.Permission(q, "ask"),
	}
	if q.Original != nil {
		line.Original = q.Original.ArgsHash
	}
	return line
}
