package handlers

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// makeQueue makes the consumer of a queue for a worker that has no right to make consumers.
// With that right, a worker could make the server publish on any subject of the account.
func (h *Handlers) makeQueue(ctx context.Context, m bus.Msg) {
	err := h.queue(ctx, m)
	if err == nil {
		h.conn.Answer(m, nil, rawjson.MustMarshal(map[string]int{"v": messages.Version}))
		return
	}
	code := "503"
	if errors.Is(err, provision.ErrTooManyConsumers) {
		code = provision.TooManyConsumersCode
	}
	h.log.Warn("a worker asked for a queue and did not get it", "subject", m.Subject, "err", err)
	h.conn.AnswerError(m, err.Error(), code, nil)
}

func (h *Handlers) queue(ctx context.Context, m bus.Msg) error {
	token, err := h.names.QueueIn(m.Subject)
	if err != nil {
		return err
	}
	var request wire.QueueRequest
	if err := json.Unmarshal(m.Data, &request); err != nil {
		return err
	}
	want, err := provision.RequestedConsumer(h.names, token, request)
	if err != nil {
		return err
	}
	err = provision.EnsureConsumer(ctx, h.conn, want)
	if errors.Is(err, bus.ErrNoStream) {
		select {
		case h.conn.Missing() <- struct{}{}: // the worker asks again when the stream is there
		default:
		}
	}
	return err
}
