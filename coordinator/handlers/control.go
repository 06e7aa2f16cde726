package handlers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// Size limits of the parts of a control, which is an abort or a steering message. Results and
// replies repeat these texts.
const (
	maxReason   = 1000      // bytes
	maxBy       = 200       // bytes
	maxSteering = 256 << 10 // bytes
)

// control stores a control of a session. A control is an abort of one batch or of all batches,
// or a steering message for the next reply. The handler answers when the control is durable.
// From then on every coordinator that drives a batch of the session follows the control.
func (h *Handlers) control(ctx context.Context, m bus.Msg) {
	tenant, session, err := h.names.Session(m.Subject)
	if err != nil {
		h.refuseControl(m, "400", &messages.Refusal{Class: messages.ClassSubjectMismatch, Message: err.Error()})
		return
	}
	control, err := decodeControl(m.Data)
	if err != nil {
		h.refuseControl(m, "400", &messages.Refusal{Class: messages.ClassMalformedMessage, Message: "control: " + err.Error()})
		return
	}
	seq, err := h.journal.WriteControl(ctx, tenant, session, control)
	if err != nil {
		h.log.Warn("a control could not be stored; the requester is asked to try again", "session", session, "tenant", tenant, "err", err)
		h.refuseControl(m, "503", &messages.Refusal{Class: messages.ClassBusy, Message: "It could not be stored. Try again.", RetryAfterMS: 500})
		return
	}
	h.log.Info("control stored", "session", session, "tenant", tenant, "abort", len(control.Abort) > 0, "by", control.By)
	h.conn.Answer(m, nil, rawjson.MustMarshal(messages.ControlAnswer{OK: true, Seq: seq}))
	h.driver.ResumeSuspended(ctx, tenant, session)
}

func (h *Handlers) refuseControl(m bus.Msg, code string, refusal *messages.Refusal) {
	h.conn.AnswerError(m, string(refusal.Class), code, rawjson.MustMarshal(messages.ControlAnswer{Error: refusal}))
}

// decodeControl reads a control: an abort or a steering message. It returns an error if no
// coordinator could carry it out.
func decodeControl(body []byte) (messages.Control, error) {
	var control messages.Control
	if err := rawjson.Check(body); err != nil {
		return control, err
	}
	if err := json.Unmarshal(body, &control); err != nil {
		return control, errors.New("not an object of the form {\"abort\": ...} or {\"steer\": ...}")
	}
	batch, all := control.AbortTarget()
	switch {
	case control.V != messages.Version && control.V != 0:
		return control, fmt.Errorf("v is %d; this coordinator speaks %d", control.V, messages.Version)
	case len(control.Abort) == 0 && len(control.Steer) == 0:
		return control, errors.New("neither abort nor steer")
	case string(control.Steer) == "null":
		return control, errors.New("steer is null; want a message")
	case len(control.Abort) > 0 && !all && batch == "":
		return control, errors.New("abort is neither a batch id nor true")
	case len(batch) > messages.MaxID:
		return control, fmt.Errorf("abort has %d bytes; the limit is %d", len(batch), messages.MaxID)
	case len(control.Reason) > maxReason || len(control.By) > maxBy:
		return control, fmt.Errorf("reason has %d bytes and by %d; the limits are %d and %d", len(control.Reason), len(control.By), maxReason, maxBy)
	case len(control.Steer) > maxSteering:
		return control, fmt.Errorf("steer has %d bytes; the limit is %d", len(control.Steer), maxSteering)
	}
	switch control.When {
	case "", messages.SteerAfterBatch, messages.SteerBetweenGroups, messages.SteerImmediate:
		return control, nil
	}
	return control, fmt.Errorf("when is %.40q; want after_batch, between_groups or immediate", control.When)
}
