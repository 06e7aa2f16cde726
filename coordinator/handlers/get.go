package handlers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/toolfleet/toolfleet/coordinator/logfields"
	"github.com/toolfleet/toolfleet/coordinator/submission"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// get answers with what the request asks for: the reply of a batch, its status, its history,
// or the list of the batches of its session.
func (h *Handlers) get(ctx context.Context, m bus.Msg) {
	_, key, err := h.names.Batch(m.Subject)
	if err != nil {
		h.refuse(m, &messages.Refusal{Class: messages.ClassSubjectMismatch, Message: err.Error()})
		return
	}
	var want messages.Get
	if len(m.Data) > 0 {
		if err := json.Unmarshal(m.Data, &want); err != nil {
			h.refuse(m, &messages.Refusal{Class: messages.ClassMalformedMessage, Message: "get: " + err.Error()})
			return
		}
	}
	var body []byte
	switch {
	case want.Batches:
		body, err = h.list(ctx, key, want)
	case want.Timeline:
		body, err = h.history(ctx, key)
	default:
		body, err = h.reply(ctx, key, want)
	}
	switch {
	case errors.Is(err, bus.ErrNotFound):
		h.conn.AnswerError(m, "unknown batch", "404", rawjson.MustMarshal(messages.State{Status: messages.BatchUnknown}))
	case err != nil:
		logfields.Batch(ctx, h.log, key).Warn("a batch could not be read; the requester is asked to try again", "err", err)
		h.refuse(m, &messages.Refusal{Class: messages.ClassBusy, Message: "What became of the batch cannot be read at this moment. Try again.", RetryAfterMS: 1000})
	default:
		h.conn.AnswerInChunks(m, body)
	}
}

// reply returns the reply of a batch, or the status of an open batch. It returns
// bus.ErrNotFound for an unknown batch: one that was never stored, or whose reply was deleted
// because of its age.
func (h *Handlers) reply(ctx context.Context, key wire.BatchKey, want messages.Get) ([]byte, error) {
	// Read the log first. A batch leaves the log only after its reply is stored, so one of
	// the two reads finds it.
	_, open, err := h.journal.Open(ctx, key)
	if err != nil {
		return nil, err
	}
	stored, found, err := h.journal.Reply(ctx, key)
	switch {
	case err != nil:
		return nil, err
	case !found && open && want.Results == messages.ResultsFull:
		state, err := h.ended(ctx, key)
		if errors.Is(err, errReplied) {
			return h.reply(ctx, key, want)
		}
		return state, err
	case !found && open:
		return rawjson.MustMarshal(messages.State{Status: messages.BatchRunning}), nil
	case !found:
		return nil, bus.ErrNotFound
	}
	body, err := h.journal.FullReply(ctx, stored)
	if err != nil {
		return nil, err
	}
	if want.Results == messages.ResultsFull {
		return h.withOutputs(ctx, key, body)
	}
	return h.givenOut(ctx, key, body), nil
}

// withOutputs adds the outputs that the journal still has to the results of a reply.
func (h *Handlers) withOutputs(ctx context.Context, key wire.BatchKey, body []byte) ([]byte, error) {
	var reply messages.Reply
	if err := json.Unmarshal(body, &reply); err != nil {
		return nil, fmt.Errorf("stored reply of batch %s: %w", key, err)
	}
	known, err := h.journal.Calls(ctx, key)
	if err != nil {
		return nil, err
	}
	for _, e := range known.Records {
		if e.Record.Result != nil {
			known.Results = append(known.Results, journal.ResultEntry{Key: e.Key, Result: *e.Record.Result})
		}
	}
	for _, e := range known.Results {
		if e.Key.Index >= len(reply.Results) {
			continue
		}
		if err := h.journal.Resolve(ctx, &e.Result); err != nil {
			logfields.Call(ctx, h.log, e.Key, e.Result.CallID).Error("a large outcome is missing in the object store; the reply shows the call without its output", "err", err)
			continue
		}
		reply.Results[e.Key.Index].Outcome = e.Result.Outcome
	}
	return rawjson.MustMarshal(reply.WithAppend()), nil
}

// givenOut adds the member append to a stored reply. If the member cannot be added, givenOut
// returns the reply unchanged, because agents can do without the member.
func (h *Handlers) givenOut(ctx context.Context, key wire.BatchKey, stored []byte) []byte {
	body, err := submission.GivenOut(stored)
	if err != nil {
		logfields.Batch(ctx, h.log, key).Error("a stored reply cannot be read and is given out without append", "err", err)
	}
	return body
}
