package approvals

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"github.com/toolfleet/toolfleet/coordinator/logfields"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// show answers with one open question, read from the leader.
func (s *Service) show(ctx context.Context, m bus.Msg) {
	key, err := s.names.Approval(m.Subject)
	answer := messages.ApprovalAnswer{V: messages.Version}
	var entry journal.CallEntry
	var none *journal.NoQuestion
	if err != nil {
		answer.Error = refusal(messages.ClassSubjectMismatch, "%v", err)
	} else if entry, err = s.journal.Question(ctx, key); err == nil {
		answer.Approval = entry.Record.Approval
	} else if errors.As(err, &none) {
		answer.Error = refusal(messages.ClassNotPending, "No question is open about this call.")
		if none.Newest.Record.Approval != nil {
			answer.Error.Message = whyNotPending(none.Newest.Record)
		}
	} else {
		logfields.Call(ctx, s.log, key, "").Warn("a question could not be read; the requester is asked to try again", "err", err)
		answer.Error = &messages.Refusal{Class: messages.ClassBusy, Message: "The question cannot be read at this moment. Try again.", RetryAfterMS: 500}
	}
	s.answer(m, answer.Error, answer)
}

// list answers with the open questions of a tenant.
func (s *Service) list(ctx context.Context, m bus.Msg) {
	tenant := strings.TrimPrefix(m.Subject, s.names.OfTenant(wire.VerbList, ""))
	answer := messages.PendingList{V: messages.Version, Pending: []messages.Pending{}}
	if !messages.IsToken(tenant) {
		answer.Error = refusal(messages.ClassSubjectMismatch, "%.80q is no tenant.", tenant)
	} else if open, err := s.journal.Pending(ctx, tenant); err == nil {
		answer.Pending = open
		for i := range open {
			open[i].MayAnswer = s.cfg.Approvers.May(open[i], s.conn.Now(ctx))
		}
	} else {
		s.log.Warn("the open questions could not be listed; the requester is asked to try again", "tenant", tenant, "err", err)
		answer.Error = &messages.Refusal{Class: messages.ClassBusy, Message: "The list cannot be read at this moment. Try again.", RetryAfterMS: 500}
	}
	s.answer(m, answer.Error, answer)
}

func (s *Service) answer(m bus.Msg, refused *messages.Refusal, answer any) {
	if refused == nil {
		s.conn.AnswerInChunks(m, rawjson.MustMarshal(answer))
		return
	}
	code := map[messages.Class]string{messages.ClassBusy: "503", messages.ClassNotPending: "404"}[refused.Class]
	s.conn.AnswerError(m, string(refused.Class), cmp.Or(code, "400"), rawjson.MustMarshal(answer))
}
