package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// digestHeader is the header that says to which batch an answer belongs. It has the digest of
// the batch in the form that the fleet got.
const digestHeader = "Toolfleet-Digest"

const (
	// busyFor is how long the server retries a batch that the fleet refuses as busy. After
	// that the client has to ask again. A coordinator that is stopping also refuses as busy,
	// but only for a moment.
	busyFor = 2 * time.Second
	// askAgain is the Retry-After of an answer that says that the batch still runs.
	askAgain = time.Second
)

// errWaited ends a wait that has taken as long as the client's Prefer header allows.
var errWaited = errors.New("the client has waited as long as it prefers")

// putBatch runs a batch and answers with its reply. A repeated request gets the same answer,
// and its batch does not run again.
func (s *Server) putBatch(w http.ResponseWriter, q *request) error {
	body, err := batchOf(q)
	if err != nil {
		return err
	}
	if q.wantsEvents() {
		return s.follow(w, q, body)
	}
	return s.run(w, q, body, func(r messages.Reply) ([]byte, error) { return rawjson.Marshal(r) })
}

// putCall runs one call, as a batch with only this call, and answers with its result.
func (s *Server) putCall(w http.ResponseWriter, q *request) error {
	body, err := callOf(q)
	if err != nil {
		return err
	}
	return s.run(w, q, body, resultIn)
}

// run submits a batch, waits for its reply as long as the client waits, and writes what show
// makes of the reply.
func (s *Server) run(w http.ResponseWriter, q *request, body []byte, show func(messages.Reply) ([]byte, error)) error {
	release, err := s.waiting.take()
	if err != nil {
		return err
	}
	defer release()
	digest := messages.Digest(body)
	w.Header().Set(digestHeader, digest)
	ctx := q.Context()
	if d, ok := q.wait(); ok {
		waiting, cancel := context.WithTimeoutCause(ctx, d, errWaited)
		defer cancel()
		ctx = waiting
	}
	reply, err := q.client.Run(ctx, messages.Batch{}, client.WithBody(body), client.RetryBusy(busyFor))
	if errors.Is(err, errWaited) {
		reply, err = s.goesOn(q, body, digest)
	}
	switch {
	case errors.Is(err, client.ErrRunning):
		return answerRunning(w, nil)
	case err != nil:
		return withReply(err, reply)
	}
	shown, err := show(reply)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, shown)
	return nil
}

// goesOn makes sure that a batch is stored whose client has stopped waiting. It returns the
// reply, or client.ErrRunning.
func (s *Server) goesOn(q *request, body []byte, digest string) (messages.Reply, error) {
	reply, err := q.client.Get(q.Context(), q.session, q.batch)
	switch {
	case errors.Is(err, client.ErrRunning):
		return reply, err
	case reply.Digest != "" && reply.Digest != digest:
		return messages.Reply{}, &messages.Refusal{Class: messages.ClassBatchConflict,
			Message: fmt.Sprintf("A batch with this id and another body was submitted before (digest %s). Use a new id.", reply.Digest)}
	case reply.Digest != "":
		return reply, err
	}
	ctx, cancel := context.WithTimeout(q.Context(), 10*time.Second)
	defer cancel()
	if err := q.client.Submit(ctx, messages.Batch{}, client.WithBody(body)); err != nil {
		return messages.Reply{}, err
	}
	return messages.Reply{}, client.ErrRunning
}

// answerRunning answers that a batch still runs, which of its calls have ended, and when to
// ask again.
func answerRunning(w http.ResponseWriter, ended []messages.Result) error {
	body, err := rawjson.Marshal(messages.State{Status: messages.BatchRunning, Results: ended})
	if err != nil {
		return err
	}
	w.Header().Set("Retry-After", seconds(askAgain))
	writeJSON(w, http.StatusAccepted, body)
	return nil
}

// withReply adds the stored reply of a refused batch to the error, because the reply may have
// steering messages.
func withReply(err error, reply messages.Reply) error {
	if reply.Status != messages.ReplyRefused {
		return err
	}
	p := problemOf(err)
	p.reply = &reply
	return p
}

// getBatch answers with the reply of a batch, or with its state or timeline up to now.
func (s *Server) getBatch(w http.ResponseWriter, q *request) error {
	query := q.URL.Query()
	if query.Get("timeline") != "" {
		timeline, err := q.client.Timeline(q.Context(), q.session, q.batch)
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, rawjson.MustMarshal(timeline))
		return nil
	}
	var options []client.GetOption
	switch results := query.Get("results"); results {
	case "":
	case "full":
		options = append(options, client.FullResults())
	default:
		return newProblem(http.StatusUnprocessableEntity, "invalid_query", "results may only be full")
	}
	reply, err := q.client.Get(q.Context(), q.session, q.batch, options...)
	if reply.Digest != "" {
		w.Header().Set(digestHeader, reply.Digest)
	}
	switch {
	case errors.Is(err, client.ErrRunning):
		return answerRunning(w, reply.Results)
	case err != nil:
		return withReply(err, reply)
	}
	body, err := rawjson.Marshal(reply)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, body)
	return nil
}

// deleteBatch aborts a batch.
func (s *Server) deleteBatch(w http.ResponseWriter, q *request) error {
	seq, err := q.client.Abort(q.Context(), q.session, q.batch, client.Reason{Text: q.URL.Query().Get("reason"), By: q.who.User})
	return answerControl(w, seq, err)
}

// batchOf makes a batch from the members of a request's body. It leaves each member as it was
// written.
func batchOf(q *request) ([]byte, error) {
	members, err := membersOf(q.body)
	if err != nil {
		return nil, err
	}
	// The fleet would refuse such a batch too, but it would store the refusal under this id.
	if _, ok := members["message"]; !ok {
		missing := messages.MissingMember("message", q.body)
		missing.Message += `. Want {"provider": "anthropic", "message": …}, where message is what the model's API gave you`
		return nil, missing
	}
	return join(q, members)
}

// callOf makes a batch with the one call in a request's body.
func callOf(q *request) ([]byte, error) {
	members, err := membersOf(q.body)
	if err != nil {
		return nil, err
	}
	call := map[string]json.RawMessage{"id": rawjson.Quote(string(q.batch)), "name": rawjson.Quote(""), "input": json.RawMessage("{}")}
	for _, name := range []string{"name", "input"} {
		if raw, ok := members[name]; ok {
			call[name] = raw
			delete(members, name)
		}
	}
	if rawjson.TypeOf(call["name"]) != "a string" {
		return nil, malformed("name is " + rawjson.TypeOf(call["name"]) + "; want the name of a tool")
	}
	for _, name := range []string{"message", "provider"} {
		if _, ok := members[name]; ok {
			return nil, malformed("a call has no " + name + "; PUT it below batches")
		}
	}
	calls := append(append([]byte(`{"calls":[`), rawjson.JoinMembers(call)...), "]}"...)
	members["provider"], members["message"] = rawjson.Quote(string(messages.Canonical)), calls
	return join(q, members)
}

// join writes a batch with the ids of the path. An id in the body must be the same as in the
// path.
func join(q *request, members map[string]json.RawMessage) ([]byte, error) {
	for name, id := range map[string]string{"id": string(q.batch), "session": string(q.session)} {
		var own string
		if raw, ok := members[name]; ok && (json.Unmarshal(raw, &own) != nil || own != id) {
			return nil, malformed(name + " is not that of the path; leave it out")
		}
		members[name] = rawjson.Quote(id)
	}
	if _, ok := members["v"]; !ok {
		members["v"] = rawjson.MustMarshal(messages.Version)
	}
	return rawjson.JoinMembers(members), nil
}

// membersOf returns the members of a body, which must be a JSON object.
func membersOf(body []byte) (map[string]json.RawMessage, error) {
	if len(body) == 0 {
		return nil, malformed("the body is empty; want a JSON object")
	}
	if err := rawjson.CheckSyntax(body); err != nil {
		return nil, malformed("the body: " + err.Error())
	}
	members, err := rawjson.Members(body)
	if err != nil {
		return nil, malformed("the body: " + err.Error())
	}
	return members, nil
}

func malformed(message string) error {
	return newProblem(http.StatusUnprocessableEntity, string(messages.ClassMalformedMessage), message)
}

// resultIn returns the result of the only call in a reply, with its output.
func resultIn(reply messages.Reply) ([]byte, error) {
	result, err := reply.Single()
	if err != nil {
		return nil, err
	}
	return rawjson.Marshal(result)
}
