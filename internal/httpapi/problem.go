package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/internal/httpapi/access"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// problem is an error in the form that a client reads.
type problem struct {
	status int
	Code   string `json:"code"`
	// Message says what is wrong and what the client can do.
	Message string `json:"message"`
	// RetryAfterMS is how long to wait before asking again, in milliseconds; 0: asking again
	// does not help.
	RetryAfterMS int64 `json:"retry_after_ms,omitempty"`

	reply *messages.Reply // the stored reply of a refused batch
}

func (p *problem) Error() string { return p.Code + ": " + p.Message }

func newProblem(status int, code, message string) *problem {
	return &problem{status: status, Code: code, Message: message}
}

// retryIn sets how long the client should wait before it asks again.
func (p *problem) retryIn(d time.Duration) *problem {
	p.RetryAfterMS = d.Milliseconds()
	return p
}

// statusOf maps classes of refusals to statuses. A class that is missing here means that the
// content of the request is wrong.
var statusOf = map[messages.Class]int{
	messages.ClassBatchConflict:    http.StatusConflict,
	messages.ClassTooLarge:         http.StatusRequestEntityTooLarge,
	messages.ClassBusy:             http.StatusTooManyRequests,
	messages.ClassInternal:         http.StatusInternalServerError,
	messages.ClassNotPending:       http.StatusNotFound,
	messages.ClassApprovalExpired:  http.StatusConflict,
	messages.ClassApprovalMismatch: http.StatusConflict,
	messages.ClassSameApprover:     http.StatusConflict,
	messages.ClassBadSignature:     http.StatusForbidden,
	messages.ClassOutOfScope:       http.StatusForbidden,
	messages.ClassKeyExpired:       http.StatusForbidden,
	messages.ClassSelfApproval:     http.StatusForbidden,
}

// problemOf returns the problem for an error of a handler. No other code maps errors to
// problems.
func problemOf(err error) *problem {
	var p *problem
	var refusal *messages.Refusal
	var unchecked *access.Unchecked
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &unchecked):
		return newProblem(http.StatusServiceUnavailable, "unavailable", "this server cannot check the token now; ask again").retryIn(time.Second)
	case errors.As(err, &refusal):
		status, known := statusOf[refusal.Class]
		if !known {
			status = http.StatusUnprocessableEntity
		}
		p = newProblem(status, string(refusal.Class), refusal.Message)
		if p.RetryAfterMS = refusal.RetryAfterMS; status == http.StatusTooManyRequests && p.RetryAfterMS == 0 {
			p.RetryAfterMS = time.Second.Milliseconds()
		}
		return p
	case errors.Is(err, client.ErrUnknown):
		return newProblem(http.StatusNotFound, "unknown_batch", client.ErrUnknown.Error())
	case errors.Is(err, client.ErrNoFleet):
		return newProblem(http.StatusServiceUnavailable, "no_fleet", client.ErrNoFleet.Error()).retryIn(time.Second)
	case errors.Is(err, errClosing):
		return newProblem(http.StatusServiceUnavailable, "stopping", errClosing.Error()).retryIn(time.Second)
	case errors.Is(err, context.DeadlineExceeded):
		return newProblem(http.StatusServiceUnavailable, "no_answer", "the fleet did not answer in time; ask again").retryIn(time.Second)
	}
	return newProblem(http.StatusServiceUnavailable, "unavailable", "the fleet could not be asked, and the log of this server says why; ask again").retryIn(time.Second)
}

// body returns the problem in the form that the client reads.
func (p *problem) body() []byte {
	return rawjson.MustMarshal(struct {
		Error *problem        `json:"error"`
		Reply *messages.Reply `json:"reply,omitempty"`
	}{p, p.reply})
}

// write answers a request with the problem.
func (p *problem) write(w http.ResponseWriter) {
	if p.RetryAfterMS > 0 {
		w.Header().Set("Retry-After", seconds(time.Duration(p.RetryAfterMS)*time.Millisecond))
	}
	writeJSON(w, p.status, p.body())
}

// seconds returns a duration in whole seconds, rounded up.
func seconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)
}

// writeJSON answers a request. It limits how long the client may take to read the answer.
func writeJSON(w http.ResponseWriter, status int, body []byte) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(readIn))
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(append(body[:len(body):len(body)], '\n')) // the client may be gone
}
