package httpapi

import (
	"encoding/json"
	"net/http"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/internal/httpapi/access"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// maxControl bounds the body of a control: a steering message may have 256 KiB.
const maxControl = 300 << 10

// steer stores a message for the next reply of the session.
func (s *Server) steer(w http.ResponseWriter, q *request) error {
	control, err := s.controlOf(q, q.body)
	if err != nil {
		return err
	}
	if len(control.Steer) == 0 || len(control.Abort) > 0 {
		return malformed(`want {"steer": message}, and no abort`)
	}
	seq, err := q.client.Steer(q.Context(), q.session, control.Steer, control.When, reasonOf(control))
	return answerControl(w, seq, err)
}

// abort ends a batch, or every batch that the session has at this moment.
func (s *Server) abort(w http.ResponseWriter, q *request) error {
	body := q.body
	if len(body) == 0 {
		body = []byte("{}")
	}
	control, err := s.controlOf(q, body)
	if err != nil {
		return err
	}
	batch, all := control.Batch()
	var seq uint64
	switch {
	case len(control.Steer) > 0:
		return malformed("a body with steer does not abort; POST it to steer")
	case batch != "":
		seq, err = q.client.Abort(q.Context(), q.session, batch, reasonOf(control))
	case all, len(control.Abort) == 0:
		seq, err = q.client.AbortSession(q.Context(), q.session, reasonOf(control))
	default:
		return malformed("abort is neither the id of a batch nor true")
	}
	return answerControl(w, seq, err)
}

// controlOf reads a control. Where requests need no token, the body says who asks (By). Elsewhere
// By is the user of the token.
func (s *Server) controlOf(q *request, body []byte) (control messages.Control, err error) {
	if _, err := membersOf(body); err != nil {
		return control, err
	}
	if err := json.Unmarshal(body, &control); err != nil {
		return control, malformed("the body is not a control: " + err.Error())
	}
	switch s.cfg.Access.(type) {
	case access.Here, access.Anybody:
	default:
		control.By = q.who.User
	}
	return control, nil
}

func reasonOf(c messages.Control) client.Reason { return client.Reason{Text: c.Reason, By: c.By} }

// answerControl says that a control is stored and in force.
func answerControl(w http.ResponseWriter, seq uint64, err error) error {
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, rawjson.MustMarshal(messages.ControlAnswer{OK: true, Seq: seq}))
	return nil
}
