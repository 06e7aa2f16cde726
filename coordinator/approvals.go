package coordinator

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/coordinator/logfields"
	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// The doors for people. They are on subjects that no agent may publish to, and that is not what they rest on: a decision
// counts by its signature alone. What is decided is a record in the call's own journal, behind the question as the leader
// has it. Of several decisions, at however many coordinators, the first that is stored is the one.

// decideDoor takes a person's decision about a call. Once it is answered it holds.
//
// The record in the journal holds the decision with its signature, so it is not lost with a line in the record for
// people that cannot be written: that is tried for a while, and then logged.
func (c *Coordinator) decideDoor(ctx context.Context, m bus.Msg) {
	key, err := c.names.Approval(m.Subject)
	if c.takeDecision(ctx, m, key, err) {
		c.wake(ctx, key.Tenant, key.Session, nil)
	}
}

// takeDecision answers a decision, and reports whether the call waits for no other. The error is of its subject.
func (c *Coordinator) takeDecision(ctx context.Context, m bus.Msg, key wire.CallKey, err error) (last bool) {
	ctx, span := c.cfg.Tracer.Start(tracing.Extract(ctx, m.Header), tracing.Decide, consumes...)
	defer span.End()
	if err != nil {
		c.refuseDecision(ctx, m, key, nil, refusal(messages.ClassSubjectMismatch, "%v", err))
		return false
	}
	d, refused := approval.Decode(m.Data)
	if refused == nil {
		refused = c.acceptable(key, d)
	}
	if refused != nil {
		c.refuseDecision(ctx, m, key, nil, refused)
		return false
	}
	describeDecision(span, c.names, d)
	decided, state, refused := c.decide(ctx, key, d)
	if refused != nil {
		c.refuseDecision(ctx, m, key, &d, refused)
		return false
	}
	last = state != messages.DecisionWaiting
	logfields.Call(ctx, c.log, key, decided.CallID).Info("decided", "approval", d.Approval, "verdict", d.Verdict, "by", d.By, "state", state)
	c.cfg.Metrics.decided(ctx, d.Verdict, decided.Tier, c.conn.Now(ctx).Sub(decided.Asked), last)
	c.showDecided(ctx, key, decided, state)
	line := about(messages.AuditDecided, decided)
	if line.Decision = &d; state == messages.DecisionDenied {
		line.Permission = permission(decided, "deny")
	}
	c.auditSurely(ctx, key, line)
	c.conn.Answer(m, nil, rawjson.MustMarshal(messages.DecisionAnswer{OK: true, State: state}))
	return last
}

// acceptable says what keeps a decision from being looked at.
func (c *Coordinator) acceptable(key wire.CallKey, d messages.Decision) *messages.Refusal {
	_, err := rawjson.Marshal(d)
	switch {
	case err != nil:
		return refusal(messages.ClassInvalidDecision, "The decision cannot be read: %v.", err)
	case c.cfg.Approvers.Len() == 0:
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

// decide stores what a decision makes of the question that is open now, and returns the question as it then stands.
func (c *Coordinator) decide(ctx context.Context, key wire.CallKey, d messages.Decision) (messages.Approval, messages.DecisionState, *messages.Refusal) {
	const tries = 10 // against others who decide about the same question, of which each try lets one go first
	for try := range tries {
		entry, err := c.journal.Question(ctx, key)
		var none *journal.NoQuestion
		if errors.As(err, &none) {
			return messages.Approval{}, "", c.notPending(ctx, d, none.Newest.Record)
		}
		if err != nil {
			return messages.Approval{}, "", c.storeless(ctx, key, d.CallID, err)
		}
		if link, ok := tracing.Link(entry.Record.Span, tracing.Asked); ok && try == 0 {
			trace.SpanFromContext(ctx).AddLink(link)
		}
		q, state, refused := c.cfg.Approvers.Take(*entry.Record.Approval, d, c.conn.Now(ctx))
		if refused == nil && d.Verdict == messages.VerdictEdit {
			refused = c.fits(ctx, q)
		}
		if refused != nil {
			return q, "", refused
		}
		_, err = c.journal.Write(ctx, key, answered(entry.Record, q, state), entry.Seq)
		var lost *journal.Lost
		switch {
		case err == nil, errors.As(err, &lost) && holds(lost.Newest.Record, d): // a worker has followed it already
			return q, state, nil
		case errors.Is(err, bus.ErrTooLarge):
			return q, "", refusal(messages.ClassInvalidDecision, "The decision is too large to be stored with the question.")
		case !errors.As(err, &lost):
			return q, "", c.storeless(ctx, key, d.CallID, err)
		}
	}
	return messages.Approval{}, "", c.storeless(ctx, key, d.CallID, errors.New("others were faster again and again"))
}

// holds reports whether a decision is one of those that were taken.
func holds(r wire.CallRecord, d messages.Decision) bool {
	return r.Approval != nil && slices.ContainsFunc(r.Approval.Decisions, func(taken messages.Decision) bool { return taken.Nonce == d.Nonce && taken.Sig == d.Sig })
}

// fits refuses an edit that is no input of the tool.
func (c *Coordinator) fits(ctx context.Context, q messages.Approval) *messages.Refusal {
	tool, known := c.catalog.Current().Lookup(q.Tool)
	if !known || tool.Digest != q.ToolDigest { // the watch may be behind
		if err := c.catalog.Refresh(ctx, q.Tool); err != nil {
			return refusal(messages.ClassBusy, "The definition of the tool cannot be read. Try again.")
		}
		tool, known = c.catalog.Current().Lookup(q.Tool)
	}
	if !known || tool.Digest != q.ToolDigest {
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

// answered is the record that follows a parked one: the question with its new decision, and a result where that was no.
func answered(parked wire.CallRecord, q messages.Approval, state messages.DecisionState) wire.CallRecord {
	next := parked
	next.Nonce, next.Approval, next.ArgsHash, next.Worker = rand.Text(), &q, q.ArgsHash, ""
	if q.Original != nil {
		next.Input = nil // which is of the arguments that were asked about at first
	}
	switch state {
	case messages.DecisionGranted:
		next.State = wire.Granted
	case messages.DecisionDenied:
		next.State, next.Result = wire.Ended, denied(parked, q)
		next.Input, next.Approval = nil, bare(q)
	}
	return next
}

// denied is the result of a call that a person said no to.
func denied(parked wire.CallRecord, q messages.Approval) *messages.Result {
	last := q.Decisions[len(q.Decisions)-1]
	message := "Denied by " + last.By + "."
	if reason := strings.TrimSpace(last.Reason); reason != "" {
		message = "Denied by " + last.By + ": " + reason
	}
	r := &messages.Result{
		V: messages.Version, Index: q.Index, CallID: q.CallID, Tool: q.Tool, Kind: q.Kind, Status: messages.StatusDenied,
		Attempt: parked.Attempt, Outcome: messages.Failed(messages.CodeDeniedByUser, message), Permission: permission(q, "deny"),
	}
	r.Permission.By = []string{last.By}
	if h := parked.Hooks; h != nil {
		own := *h
		own.Opinion, own.By, own.Reason, own.Context = "", "", "", nil
		r.Hooks = &own
	}
	return r
}

// showDecided brings the list and the news up to date.
func (c *Coordinator) showDecided(ctx context.Context, key wire.CallKey, q messages.Approval, state messages.DecisionState) {
	pending := q.Pending()
	var err error
	if state == messages.DecisionWaiting {
		_, err = c.journal.Ask(ctx, key, q)
	} else {
		pending.State = string(state)
		_, _, err = c.journal.Forget(ctx, key)
	}
	if err != nil {
		logfields.Call(ctx, c.log, key, q.CallID).Warn("the list of open questions is behind", "err", err)
	}
	c.news(ctx, key, pending)
}

// auditSurely writes a line that is to be there before the decision is answered.
func (c *Coordinator) auditSurely(ctx context.Context, key wire.CallKey, line messages.AuditRecord) {
	line.Writer, line.Time = c.id, time.Now()
	err := bus.Retry(ctx, bus.Backoff{First: 100 * time.Millisecond, Most: 2 * time.Second, Tries: 6}, func() error {
		return c.record.WriteAt(ctx, key, line)
	})
	if err == nil {
		return
	}
	c.cfg.Metrics.auditFailed()
	logfields.Call(ctx, c.log, key, line.CallID).Error("a decision is missing in the record for people; the journal of the call holds it", "approval", line.Approval, "err", err)
}

// notPending says that a call does not wait for a decision, and to those whose word counts why.
func (c *Coordinator) notPending(ctx context.Context, d messages.Decision, newest wire.CallRecord) *messages.Refusal {
	none := refusal(messages.ClassNotPending, "No question is open about this call.")
	if newest.Approval == nil {
		return none
	}
	if _, _, refused := c.cfg.Approvers.Take(*newest.Approval, d, c.conn.Now(ctx)); refused != nil && (refused.Class == messages.ClassBadSignature || refused.Class == messages.ClassInvalidDecision) {
		return refused
	}
	none.Message = whyNotPending(newest)
	return none
}

// whyNotPending is how the question of a call came to its end.
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

// storeless says that it is not known whether a decision was stored.
func (c *Coordinator) storeless(ctx context.Context, key wire.CallKey, id messages.CallID, err error) *messages.Refusal {
	logfields.Call(ctx, c.log, key, id).Warn("a decision could not be stored", "err", err)
	return &messages.Refusal{Class: messages.ClassBusy, Message: "The decision could not be stored. Look at the question, and try again if it is still open.", RetryAfterMS: 500}
}

func refusal(class messages.Class, format string, args ...any) *messages.Refusal {
	return &messages.Refusal{Class: class, Message: fmt.Sprintf(format, args...)}
}

// refuseDecision answers a decision that is not taken, and writes it down. What anybody could send is written down only
// as often as [allowance] says, so that a flood of it fills neither the record for people nor the log.
func (c *Coordinator) refuseDecision(ctx context.Context, m bus.Msg, key wire.CallKey, d *messages.Decision, refused *messages.Refusal) {
	c.cfg.Metrics.notDecided.WithLabelValues(string(refused.Class)).Inc()
	tracing.Fail(trace.SpanFromContext(ctx), string(refused.Class))
	if refused.Class != messages.ClassBusy && c.isWrittenDown(refused.Class) {
		c.logRefused(ctx, key, d, refused)
		if key.Batch != "" {
			c.auditRefused(ctx, key, d, refused)
		}
	}
	code := "400"
	switch refused.Class {
	case messages.ClassBusy:
		code = "503"
	case messages.ClassNotPending, messages.ClassApprovalExpired:
		code = "409"
	case messages.ClassBadSignature, messages.ClassSelfApproval, messages.ClassSameApprover:
		code = "403"
	}
	c.conn.AnswerError(m, string(refused.Class), code, rawjson.MustMarshal(messages.DecisionAnswer{Error: refused}))
}

func (c *Coordinator) isWrittenDown(class messages.Class) bool {
	switch class {
	case messages.ClassInvalidDecision, messages.ClassSubjectMismatch, messages.ClassBadSignature, messages.ClassNotPending: // needs no key that counts
		write, last := c.refused.take(time.Now())
		if last {
			c.log.Warn("many decisions are refused; until they become fewer most are counted and not written down")
		}
		return write
	}
	return true
}

// logRefused leaves out why: the sentence may be about arguments. Who it is by is what the decision says.
func (c *Coordinator) logRefused(ctx context.Context, key wire.CallKey, d *messages.Decision, refused *messages.Refusal) {
	if d == nil {
		logfields.Call(ctx, c.log, key, "").Warn("decision refused", "class", refused.Class)
		return
	}
	logfields.Call(ctx, c.log, key, d.CallID).Warn("decision refused", "class", refused.Class, "approval", d.Approval, "verdict", logfields.Short(d.Verdict), "by", d.By)
}

func (c *Coordinator) auditRefused(ctx context.Context, key wire.CallKey, d *messages.Decision, refused *messages.Refusal) {
	line := messages.AuditRecord{
		Type: messages.AuditRefused, Session: messages.SessionID(key.Session), Batch: messages.BatchID(key.Batch), Index: key.Index,
		Refusal: refused,
	}
	if d != nil {
		short := shortened(*d)
		line.Decision, line.Approval, line.ArgsHash = &short, d.Approval, d.ArgsHash
	}
	c.audit(ctx, key, line)
}

// shortened is a decision that may be anybody's, fit to be written down.
func shortened(d messages.Decision) messages.Decision {
	d.Input = nil
	d.Tenant, d.Session, d.Batch, d.CallID = logfields.Short(d.Tenant), logfields.Short(d.Session), logfields.Short(d.Batch), logfields.Short(d.CallID)
	d.Tool, d.Reason, d.Ticket, d.Verdict = logfields.Short(d.Tool), logfields.Short(d.Reason), logfields.Short(d.Ticket), logfields.Short(d.Verdict)
	return d
}

// showDoor answers with one open question, as the leader has it.
func (c *Coordinator) showDoor(ctx context.Context, m bus.Msg) {
	key, err := c.names.Approval(m.Subject)
	answer := messages.ApprovalAnswer{V: messages.Version}
	var entry journal.CallEntry
	var none *journal.NoQuestion
	if err != nil {
		answer.Error = refusal(messages.ClassSubjectMismatch, "%v", err)
	} else if entry, err = c.journal.Question(ctx, key); err == nil {
		answer.Approval = entry.Record.Approval
	} else if errors.As(err, &none) {
		answer.Error = refusal(messages.ClassNotPending, "No question is open about this call.")
		if none.Newest.Record.Approval != nil {
			answer.Error.Message = whyNotPending(none.Newest.Record)
		}
	} else {
		logfields.Call(ctx, c.log, key, "").Warn("a question could not be read", "err", err)
		answer.Error = &messages.Refusal{Class: messages.ClassBusy, Message: "The question cannot be read at this moment. Try again.", RetryAfterMS: 500}
	}
	c.answerPerson(m, answer.Error, answer)
}

// listDoor answers with the open questions of a tenant.
func (c *Coordinator) listDoor(ctx context.Context, m bus.Msg) {
	tenant := strings.TrimPrefix(m.Subject, c.names.OfTenant(wire.VerbList, ""))
	answer := messages.PendingList{V: messages.Version, Pending: []messages.Pending{}}
	if !messages.IsToken(tenant) {
		answer.Error = refusal(messages.ClassSubjectMismatch, "%.80q is no tenant.", tenant)
	} else if open, err := c.journal.Pending(ctx, tenant); err == nil {
		answer.Pending = open
	} else {
		c.log.Warn("the open questions could not be listed", "tenant", tenant, "err", err)
		answer.Error = &messages.Refusal{Class: messages.ClassBusy, Message: "The list cannot be read at this moment. Try again.", RetryAfterMS: 500}
	}
	c.answerPerson(m, answer.Error, answer)
}

func (c *Coordinator) answerPerson(m bus.Msg, refused *messages.Refusal, answer any) {
	if refused == nil {
		c.conn.AnswerInChunks(m, rawjson.MustMarshal(answer))
		return
	}
	code := map[messages.Class]string{messages.ClassBusy: "503", messages.ClassNotPending: "404"}[refused.Class]
	c.conn.AnswerError(m, string(refused.Class), cmp.Or(code, "400"), rawjson.MustMarshal(answer))
}
