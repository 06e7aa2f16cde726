package httpapi

import (
	"encoding/json"
	"net/http"
	"slices"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// maxDecision limits the body of a decision. An edit has all arguments of a call.
const maxDecision = wholeBatch

// listApprovals answers with the open questions of the tenant.
func (s *Server) listApprovals(w http.ResponseWriter, q *request) error {
	pending, err := q.client.Approvals(q.Context())
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, rawjson.MustMarshal(messages.PendingList{V: messages.Version, Pending: pending}))
	return nil
}

// errNotPending answers a request about a question that is not open.
var errNotPending = &messages.Refusal{Class: messages.ClassNotPending, Message: "No question with this id is open: it was decided, or its call has ended."}

// showApproval answers with an open question and the arguments for which a decision would
// count.
func (s *Server) showApproval(w http.ResponseWriter, q *request) error {
	id := q.PathValue("approval")
	pending, err := q.client.Approvals(q.Context())
	if err != nil {
		return err
	}
	i := slices.IndexFunc(pending, func(p messages.Pending) bool { return p.ID == id })
	if i < 0 {
		return errNotPending
	}
	question, err := q.client.Approval(q.Context(), pending[i].Session, pending[i].Batch, pending[i].Index)
	switch {
	case err != nil:
		return err
	case question.ID != id: // the call has another question now
		return errNotPending
	}
	body, err := rawjson.Marshal(question)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, body)
	return nil
}

// decide passes a signed decision on to the fleet. The server cannot make a decision itself:
// it has no approver's key, and the signature covers the tenant, the call and its arguments.
func (s *Server) decide(w http.ResponseWriter, q *request) error {
	if _, err := membersOf(q.body); err != nil {
		return err
	}
	var d messages.Decision
	if err := json.Unmarshal(q.body, &d); err != nil {
		return malformed("the body is no decision: " + err.Error())
	}
	if d.Approval != q.PathValue("approval") || string(d.Tenant) != q.who.Tenant {
		return &messages.Refusal{Class: messages.ClassApprovalMismatch, Message: "The decision is about another question than that of the path."}
	}
	answer, err := q.client.Decide(q.Context(), d)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, rawjson.MustMarshal(answer))
	return nil
}
