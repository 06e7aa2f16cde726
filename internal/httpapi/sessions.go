package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/internal/httpapi/access"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// maxControl is the limit, in bytes, of a body that aborts or steers a session. A steering
// message may have 256 KiB.
const maxControl = 300 << 10

// steer stores a message for the next reply of the session.
func (s *Server) steer(w http.ResponseWriter, q *request) error {
	control, err := s.controlOf(q, q.body, "steer", "when")
	if err != nil {
		return err
	}
	if len(control.Steer) == 0 {
		return malformed(`steer is missing; want {"steer": message}`)
	}
	seq, err := q.client.Steer(q.Context(), q.session, control.Steer, control.When, reasonOf(control))
	return answerControl(w, seq, err)
}

// abort aborts the batch that the body names. If the body names none, abort aborts every batch
// that the session has at this moment.
func (s *Server) abort(w http.ResponseWriter, q *request) error {
	body := q.body
	if len(body) == 0 {
		body = []byte("{}")
	}
	control, err := s.controlOf(q, body, "abort")
	if err != nil {
		return err
	}
	batch, all := control.AbortTarget()
	var seq uint64
	switch {
	case batch != "":
		seq, err = q.client.Abort(q.Context(), q.session, batch, reasonOf(control))
	case all, len(control.Abort) == 0:
		seq, err = q.client.AbortSession(q.Context(), q.session, reasonOf(control))
	default:
		return malformed("abort is neither the id of a batch nor true")
	}
	return answerControl(w, seq, err)
}

// controlOf reads an abort or a steering message from a body. The body may have the members
// listed in own, and the members reason, by and v. Any other member is refused: if abort had a
// typing error in its name, for example, the request would abort the whole session. Where
// requests need no token, the body says who sends the control (By). Otherwise By is the user
// of the token.
func (s *Server) controlOf(q *request, body []byte, own ...string) (control messages.Control, err error) {
	if _, err := membersOf(body); err != nil {
		return control, err
	}
	known := append(own, "reason", "by", "v")
	if name, at := rawjson.Stranger(body, known...); at > 0 {
		return control, malformed(fmt.Sprintf("%.80q at byte %d is no member of this request; it may have %s",
			name, at, strings.Join(known, ", ")))
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

// answerControl answers that an abort or a steering message is stored and in force.
func answerControl(w http.ResponseWriter, seq uint64, err error) error {
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, rawjson.MustMarshal(messages.ControlAnswer{OK: true, Seq: seq}))
	return nil
}
