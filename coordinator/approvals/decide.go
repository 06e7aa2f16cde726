package approvals

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/coordinator/logfields"
	"github.com/toolfleet/toolfleet/coordinator/spans"
	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// decide handles a person's decision about a call. It answers after the decision is durable.
//
// The record in the journal has the signed decision, so the decision is not lost if its audit
// line cannot be written. decide tries to write the line for about three seconds, and logs a
// failure.
func (s *Service) decide(ctx context.Context, m bus.Msg) {
	key, err := s.names.Approval(m.Subject)
	if s.take(ctx, m, key, err) {
		s.driver.Resume(ctx, key.Tenant, key.Session)
	}
}

// take checks, stores and answers a decision. err is the error from reading the subject of the
// message. last means that the question needs no further decision.
func (s *Service) take(ctx context.Context, m bus.Msg, key wire.CallKey, err error) (last bool) {
	ctx, span := spans.BeginDecision(ctx, s.cfg.Tracer, m.Header)
	defer span.End()
	if err != nil {
		s.refuse(ctx, m, key, nil, refusal(messages.ClassSubjectMismatch, "%v", err))
		return false
	}
	d, refused := approval.Decode(m.Data)
	if refused == nil {
		refused = s.acceptable(key, d)
	}
	if refused != nil {
		s.refuse(ctx, m, key, nil, refused)
		return false
	}
	spans.DescribeDecision(span, s.names, d)
	q, state, refused := s.store(ctx, key, d)
	if refused != nil {
		s.refuse(ctx, m, key, &d, refused)
		return false
	}
	last = state != messages.DecisionWaiting
	logfields.Call(ctx, s.log, key, q.CallID).Info("decided", "approval", d.Approval, "verdict", d.Verdict, "by", d.By, "state", state)
	s.metrics.Decided(ctx, d, q, s.conn.Now(ctx).Sub(q.Asked), last)
	s.publishDecided(ctx, key, q, state)
	line := auditLine(messages.AuditDecided, q)
	if line.Decision = &d; state == messages.DecisionDenied {
		line.Permission = approval.Permission(q, "deny")
	}
	s.auditDecision(ctx, key, line)
	s.conn.Answer(m, nil, rawjson.MustMarshal(messages.DecisionAnswer{OK: true, State: state}))
	return last
}

// acceptable refuses a decision for reasons that do not depend on its question.
func (s *Service) acceptable(key wire.CallKey, d messages.Decision) *messages.Refusal {
	_, err := rawjson.Marshal(d)
	switch {
	case err != nil:
		return refusal(messages.ClassInvalidDecision, "The decision cannot be read: %v.", err)
	case s.cfg.Approvers.Len() == 0:
		return refusal(messages.ClassBadSignature, "Nobody's decision counts here: this coordinator has a policy without approvers.")
	case max(len(d.By), len(d.Key), len(d.Nonce), len(d.Sig), len(d.Approval), len(d.ArgsHash), len(d.ToolDigest), len(d.Policy)) > logfields.MaxText:
		return refusal(messages.ClassInvalidDecision, "A field of the decision has more than %d bytes.", logfields.MaxText)
	case max(len(d.Session), len(d.Batch), len(d.CallID), len(d.Tool)) > messages.MaxID:
		return refusal(messages.ClassInvalidDecision, "An id in the decision has more than %d bytes.", messages.MaxID)
	case wire.KeyOf(string(d.Tenant), d.Session, d.Batch).Call(d.Index) != key:
		return refusal(messages.ClassSubjectMismatch, "The decision is about another call than its subject.")
	}
	return nil
}

// store stores the decision after the record of the open question. It returns the question
// with this decision in it.
func (s *Service) store(ctx context.Context, key wire.CallKey, d messages.Decision) (messages.Approval, messages.DecisionState, *messages.Refusal) {
	const tries = 10 // a try fails if another decision about the question is stored first
	for try := range tries {
		entry, err := s.journal.Question(ctx, key)
		var none *journal.NoQuestion
		if errors.As(err, &none) {
			return messages.Approval{}, "", s.notPending(ctx, d, none.Newest.Record)
		}
		if err != nil {
			return messages.Approval{}, "", s.notStored(ctx, key, d.CallID, err)
		}
		if link, ok := tracing.Link(entry.Record.Span, tracing.Asked); ok && try == 0 {
			trace.SpanFromContext(ctx).AddLink(link)
		}
		q, state, refused := s.cfg.Approvers.Take(*entry.Record.Approval, d, s.conn.Now(ctx))
		if refused == nil && d.Verdict == messages.VerdictEdit {
			refused = s.fits(ctx, key.Tenant, q)
		}
		if refused != nil {
			return q, "", refused
		}
		_, err = s.journal.Write(ctx, key, approval.Answered(entry.Record, q, state, rand.Text()), entry.Seq)
		var lost *journal.Lost
		switch {
		// The decision is stored, perhaps with later records after it.
		case err == nil, errors.As(err, &lost) && holds(lost.Newest.Record, d):
			return q, state, nil
		case errors.Is(err, bus.ErrTooLarge):
			return q, "", refusal(messages.ClassInvalidDecision, "The decision is too large to be stored with the question.")
		case !errors.As(err, &lost):
			return q, "", s.notStored(ctx, key, d.CallID, err)
		}
	}
	return messages.Approval{}, "", s.notStored(ctx, key, d.CallID, errors.New("each try lost to another decision"))
}

// holds reports whether a record contains the decision.
func holds(r wire.CallRecord, d messages.Decision) bool {
	return r.Approval != nil && slices.ContainsFunc(r.Approval.Decisions, func(taken messages.Decision) bool { return taken.Nonce == d.Nonce && taken.Sig == d.Sig })
}

// fits refuses an edit if its arguments do not fit the tool's schema.
func (s *Service) fits(ctx context.Context, tenant string, q messages.Approval) *messages.Refusal {
	tool, known := s.tools.Version(tenant, q.Tool, q.ToolDigest)
	if !known { // the definitions here may be out of date
		if err := s.tools.Refresh(ctx, tenant, q.Tool); err != nil {
			return refusal(messages.ClassBusy, "The definition of the tool cannot be read. Try again.")
		}
		tool, known = s.tools.Version(tenant, q.Tool, q.ToolDigest)
	}
	if !known {
		return refusal(messages.ClassApprovalMismatch, "The definition of %s has changed since the question was asked.", q.Tool)
	}
	schema, err := schemas.Compile(tool.InputSchema)
	if err == nil {
		err = schema.Validate(q.Input)
	}
	if err != nil {
		return refusal(messages.ClassInvalidDecision, "The new arguments are no input of %s: %v.", q.Tool, err)
	}
	return nil
}

// publishDecided updates the list of open questions, and publishes the change.
func (s *Service) publishDecided(ctx context.Context, key wire.CallKey, q messages.Approval, state messages.DecisionState) {
	pending := s.pending(ctx, q)
	var err error
	if state == messages.DecisionWaiting {
		_, err = s.journal.Ask(ctx, key, q)
	} else {
		pending.State, pending.MayAnswer = string(state), nil
		_, _, err = s.journal.Forget(ctx, key)
	}
	if err != nil {
		logfields.Call(ctx, s.log, key, q.CallID).Warn("the list of open questions shows a question as before its decision, until it expires", "err", err)
	}
	s.publish(ctx, key, pending)
}

// auditDecision writes the audit line of a decision. The person gets the answer after it
// returns.
func (s *Service) auditDecision(ctx context.Context, key wire.CallKey, line messages.AuditRecord) {
	line.Writer, line.Time = s.cfg.Writer, time.Now()
	err := bus.Retry(ctx, bus.Backoff{First: 100 * time.Millisecond, Most: 2 * time.Second, Tries: 6}, func() error {
		return s.audit.WriteQuestion(ctx, key, line)
	})
	if err == nil {
		return
	}
	s.metrics.AuditFailed()
	logfields.Call(ctx, s.log, key, line.CallID).Error("a decision is missing in the audit log; the journal of its call holds it", "approval", line.Approval, "err", err)
}

// tellsNothing has the classes of refusals for people who may not learn what became of a
// question.
var tellsNothing = map[messages.Class]bool{
	messages.ClassBadSignature: true, messages.ClassInvalidDecision: true, messages.ClassOutOfScope: true, messages.ClassKeyExpired: true,
}

// notPending refuses a decision about a call that has no open question. The reason is only for
// an approver of the question.
func (s *Service) notPending(ctx context.Context, d messages.Decision, newest wire.CallRecord) *messages.Refusal {
	none := refusal(messages.ClassNotPending, "No question is open about this call.")
	if newest.Approval == nil {
		return none
	}
	if _, _, refused := s.cfg.Approvers.Take(*newest.Approval, d, s.conn.Now(ctx)); refused != nil && tellsNothing[refused.Class] {
		return refused
	}
	none.Message = whyNotPending(newest)
	return none
}

// whyNotPending says how the question of a call was closed.
func whyNotPending(newest wire.CallRecord) string {
	by := ""
	if q := newest.Approval; q != nil && len(q.Decisions) > 0 {
		last := q.Decisions[len(q.Decisions)-1]
		by = " by " + last.By
	}
	switch r := newest.Result; {
	case newest.State == wire.Granted:
		return "The question was answered: granted" + by + "."
	case r == nil:
		return "The question was answered: granted" + by + ", and the call was taken by a worker."
	case r.Status == messages.StatusDenied:
		return "The question was answered: denied" + by + "."
	case r.Err != nil && r.Err.Code == messages.CodeApprovalExpired:
		return "Nobody answered in time: the question has expired."
	}
	return fmt.Sprintf("The call has ended: %s.", newest.Result.Status)
}

// notStored returns the refusal of a decision that may or may not be stored.
func (s *Service) notStored(ctx context.Context, key wire.CallKey, id messages.CallID, err error) *messages.Refusal {
	logfields.Call(ctx, s.log, key, id).Warn("a decision could not be stored; its sender is asked to look and try again", "err", err)
	return &messages.Refusal{Class: messages.ClassBusy, Message: "The decision could not be stored. Look at the question, and try again if it is still open.", RetryAfterMS: 500}
}

// refuse answers a decision that is refused, and writes lines about it to the log and the
// audit log. Anyone can send certain bad decisions without an approver's key, so a limiter
// limits the lines about these.
func (s *Service) refuse(ctx context.Context, m bus.Msg, key wire.CallKey, d *messages.Decision, refused *messages.Refusal) {
	s.metrics.Refused(refused.Class)
	tracing.Fail(trace.SpanFromContext(ctx), string(refused.Class))
	if refused.Class != messages.ClassBusy && s.isLogged(refused.Class) {
		s.logRefused(ctx, key, d, refused)
		if key.Batch != "" {
			s.auditRefused(ctx, key, d, refused)
		}
	}
	code := "400"
	switch refused.Class {
	case messages.ClassBusy:
		code = "503"
	case messages.ClassNotPending, messages.ClassApprovalExpired:
		code = "409"
	case messages.ClassBadSignature, messages.ClassOutOfScope, messages.ClassKeyExpired, messages.ClassSelfApproval, messages.ClassSameApprover:
		code = "403"
	}
	s.conn.AnswerError(m, string(refused.Class), code, rawjson.MustMarshal(messages.DecisionAnswer{Error: refused}))
}

// isLogged reports whether a refused decision is written to the log and the audit log.
func (s *Service) isLogged(class messages.Class) bool {
	switch class {
	// Anyone can send these without an approver's key.
	case messages.ClassInvalidDecision, messages.ClassSubjectMismatch, messages.ClassBadSignature, messages.ClassNotPending:
		ok, first := s.refused.allow(time.Now())
		if first {
			s.log.Warn("many decisions are refused; until there are fewer, most are only counted: see toolfleet_approval_decisions_refused_total")
		}
		return ok
	}
	return true
}

// logRefused logs a refused decision. It leaves out the reason, which may quote arguments. The
// field "by" of the line is the name that the decision claims, and is not proven.
func (s *Service) logRefused(ctx context.Context, key wire.CallKey, d *messages.Decision, refused *messages.Refusal) {
	if d == nil {
		logfields.Call(ctx, s.log, key, "").Warn("decision refused", "class", refused.Class)
		return
	}
	logfields.Call(ctx, s.log, key, d.CallID).Warn("decision refused", "class", refused.Class, "approval", d.Approval, "verdict", logfields.Short(d.Verdict), "by", d.By)
}

func (s *Service) auditRefused(ctx context.Context, key wire.CallKey, d *messages.Decision, refused *messages.Refusal) {
	line := messages.AuditRecord{
		Type: messages.AuditRefused, Session: messages.SessionID(key.Session), Batch: messages.BatchID(key.Batch), Index: key.Index,
		Refusal: refused,
	}
	if d != nil {
		short := shortened(*d)
		line.Decision, line.Approval, line.ArgsHash = &short, d.Approval, d.ArgsHash
	}
	s.auditOnce(ctx, key, line)
}

// shortened cuts the texts of a decision for the logs. Anyone may have sent the decision, and
// long texts would fill the logs.
func shortened(d messages.Decision) messages.Decision {
	d.Input = nil
	d.Tenant, d.Session, d.Batch, d.CallID = logfields.Short(d.Tenant), logfields.Short(d.Session), logfields.Short(d.Batch), logfields.Short(d.CallID)
	d.Tool, d.Reason, d.Ticket, d.Verdict = logfields.Short(d.Tool), logfields.Short(d.Reason), logfields.Short(d.Ticket), logfields.Short(d.Verdict)
	return d
}
