package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/messages"
)

// openDoors serves the request doors: run, which submits a batch and answers with its reply, and get,
// which answers with the reply of a batch again. Every coordinator serves them; each request reaches one.
func (c *Coordinator) openDoors(ctx context.Context) (stop func(), err error) {
	return c.conn.Serve(ctx, bus.Service{
		Name: "toolfleet", Version: "1.0.0", Description: "Runs the tool calls of a model's message.",
		Endpoints: []bus.Endpoint{
			{Name: "run", Subject: c.names.EveryBatch(messages.VerbRun), Handle: func(m bus.Msg) { c.runDoor(ctx, m) }},
			{Name: "get", Subject: c.names.EveryBatch(messages.VerbGet), Handle: func(m bus.Msg) { c.getDoor(ctx, m) }},
		},
	})
}

// visit is one request at the run door.
type visit struct {
	*Coordinator
	request messages.BatchKey
	msg     bus.Msg
	digest  string
	heard   chan bus.Msg // news about the batch, in the order in which the server sent it
}

func (c *Coordinator) runDoor(ctx context.Context, m bus.Msg) {
	_, key, err := c.names.Batch(m.Subject)
	if err != nil {
		c.refuseAtDoor(m, &messages.Refusal{Class: messages.SubjectMismatch, Message: err.Error()})
		return
	}
	v := &visit{Coordinator: c, request: key, msg: m, digest: messages.Digest(m.Data), heard: make(chan bus.Msg, 4096)}
	// One subscription for replies, refusals and events, so that they are heard in one order.
	unsubscribe, err := c.conn.Subscribe(c.names.Of("*", key), "", func(news bus.Msg) {
		select {
		case v.heard <- news:
		default: // a reply that is missed here is found in the journal
		}
	})
	if err != nil {
		c.refuseAtDoor(m, &messages.Refusal{Class: messages.Busy, Message: "Not connected. Try again.", RetryAfterMS: 1000})
		return
	}
	defer unsubscribe()
	_, err = c.conn.Append(ctx, c.names.Of(messages.VerbBatch, key), traceHeader(m.Header), m.Data)
	switch {
	case err == nil, errors.Is(err, bus.ErrExists), errors.Is(err, bus.ErrUnknown):
		v.wait(ctx) // one that runs already answers for this one, if it has the same body
	case errors.Is(err, bus.ErrFull):
		c.refuseAtDoor(m, &messages.Refusal{Class: messages.Busy, Message: "Too many batches are waiting. Try again.", RetryAfterMS: 1000})
	case errors.Is(err, bus.ErrTooLarge):
		c.refuseAtDoor(m, &messages.Refusal{Class: messages.TooLarge, Message: fmt.Sprintf(
			"The batch has %d bytes; the limit is %d.", len(m.Data), c.conn.MaxPayload()-headroom)})
	default:
		c.log.Warn("a batch could not be accepted", "batch", key, "err", err)
		c.refuseAtDoor(m, &messages.Refusal{Class: messages.Busy, Message: "The batch could not be stored. Try again.", RetryAfterMS: 1000})
	}
}

// wait passes the events on, if they were asked for, and then the reply. Replies are pushed; the look
// into the journal now and then is for one that was missed.
func (v *visit) wait(ctx context.Context) {
	looks := time.NewTicker(v.cfg.Poll)
	defer looks.Stop()
	progress := v.msg.Header.Get(messages.ProgressHeader) != ""
	for {
		select {
		case news := <-v.heard:
			verb, _, _ := v.names.Batch(news.Subject)
			switch {
			case verb == messages.VerbEvent && progress && news.Header.Get(messages.EventHeader) != string(messages.EventReply):
				v.respond(v.msg, news.Header, news.Data)
			case verb == messages.VerbReply, verb == messages.VerbRefused:
				if v.answer(ctx, news.Data, progress) {
					return
				}
			}
		case <-looks.C:
			stored, found, err := v.journal.Reply(ctx, v.request)
			if err == nil && found && v.answer(ctx, stored, progress) {
				return
			}
		case <-ctx.Done():
			return // the batch goes on; the agent asks the get door
		}
	}
}

// answer hands over a reply. One to another body under the same id is a conflict.
func (v *visit) answer(ctx context.Context, stored []byte, progress bool) bool {
	var reply messages.Reply
	if err := json.Unmarshal(stored, &reply); err != nil {
		v.log.Error("a reply that cannot be read", "batch", v.request, "err", err)
		return false
	}
	if reply.Digest != v.digest {
		if reply.Status == messages.Refused && reply.Error != nil && reply.Error.Class == messages.BatchConflict {
			return false // somebody else's refusal
		}
		v.refuseAtDoor(v.msg, &messages.Refusal{Class: messages.BatchConflict, Message: fmt.Sprintf(
			"A batch with this id and another body was submitted before (digest %s). Use a new id.", reply.Digest)})
		return true
	}
	body, err := v.journal.FullReply(ctx, stored)
	if err != nil {
		v.log.Error("a large reply cannot be fetched", "batch", v.request, "err", err)
		body = stored
	}
	if progress {
		event := messages.Event{
			V: messages.Version, Type: messages.EventReply, Session: reply.Session, Batch: reply.Batch, Index: -1,
			Counter: 1, Time: time.Now(), Status: reply.Status,
		}
		v.respond(v.msg, bus.Header{messages.EventHeader: {string(messages.EventReply)}}, messages.MustMarshal(event))
	}
	v.respondInChunks(v.msg, body)
	return true
}

// getDoor answers with the reply of a batch, or with how it stands.
func (c *Coordinator) getDoor(ctx context.Context, m bus.Msg) {
	_, key, err := c.names.Batch(m.Subject)
	if err != nil {
		c.refuseAtDoor(m, &messages.Refusal{Class: messages.SubjectMismatch, Message: err.Error()})
		return
	}
	var want struct {
		Results string `json:"results"`
	}
	if len(m.Data) > 0 {
		if err := json.Unmarshal(m.Data, &want); err != nil {
			c.refuseAtDoor(m, &messages.Refusal{Class: messages.MalformedMessage, Message: "get: " + err.Error()})
			return
		}
	}
	body, err := c.fetch(ctx, key, want.Results == "full")
	switch {
	case errors.Is(err, bus.ErrNotFound):
		c.respond(m, serviceError("unknown batch", "404"), messages.MustMarshal(messages.State{Status: "unknown"}))
	case err != nil:
		c.log.Warn("a reply could not be fetched", "batch", key, "err", err)
		c.refuseAtDoor(m, &messages.Refusal{Class: messages.Busy, Message: "The reply cannot be read at this moment. Try again.", RetryAfterMS: 1000})
	default:
		c.respondInChunks(m, body)
	}
}

// fetch is the body of the get door's answer. bus.ErrNotFound: never seen, or forgotten.
func (c *Coordinator) fetch(ctx context.Context, key messages.BatchKey, full bool) ([]byte, error) {
	// The log first: a batch leaves it only after its reply is stored, so between the two looks nothing is missed.
	_, open, err := c.journal.Open(ctx, key)
	if err != nil {
		return nil, err
	}
	stored, found, err := c.journal.Reply(ctx, key)
	switch {
	case err != nil:
		return nil, err
	case !found && open:
		return messages.MustMarshal(messages.State{Status: "running"}), nil
	case !found:
		return nil, bus.ErrNotFound
	}
	body, err := c.journal.FullReply(ctx, stored)
	if err != nil || !full {
		return body, err
	}
	return c.withOutputs(ctx, key, body)
}

// withOutputs puts the outputs back into the results of a reply, as far as the journal still has them.
func (c *Coordinator) withOutputs(ctx context.Context, key messages.BatchKey, body []byte) ([]byte, error) {
	var reply messages.Reply
	if err := json.Unmarshal(body, &reply); err != nil {
		return nil, fmt.Errorf("stored reply of batch %s: %w", key, err)
	}
	records, results, err := c.journal.Calls(ctx, key)
	if err != nil {
		return nil, err
	}
	for _, e := range records {
		if e.Record.Result != nil {
			results = append(results, *e.Record.Result)
		}
	}
	for _, r := range results {
		if r.Index < 0 || r.Index >= len(reply.Results) {
			continue
		}
		if err := c.journal.Resolve(ctx, &r); err != nil {
			return nil, err
		}
		reply.Results[r.Index].Outcome = r.Outcome
	}
	return messages.MustMarshal(reply), nil
}

// refuseAtDoor answers a request that cannot be served, with the reason in the way of a Reply.
func (c *Coordinator) refuseAtDoor(m bus.Msg, refusal *messages.Refusal) {
	b, _ := messages.DecodeBatch(m.Data)
	c.cfg.Metrics.refused(refusal.Class)
	code := "400"
	switch refusal.Class {
	case messages.Busy:
		code = "503"
	case messages.BatchConflict:
		code = "409"
	case messages.TooLarge:
		code = "413"
	}
	c.respond(m, serviceError(string(refusal.Class), code), messages.MustMarshal(refusedReply(b, messages.Digest(m.Data), refusal)))
}

func serviceError(text, code string) bus.Header {
	return bus.Header{bus.ServiceErrorHeader: {text}, bus.ServiceErrorCodeHeader: {code}}
}

// respondInChunks answers with a body of any size: in one message when it fits, else in several, each with
// its number and their count in the header [messages.ChunkHeader].
func (c *Coordinator) respondInChunks(m bus.Msg, body []byte) {
	size := c.conn.MaxPayload() - headroom
	if len(body) <= size {
		c.respond(m, nil, body)
		return
	}
	chunks := (len(body) + size - 1) / size
	for i := range chunks {
		part := body[i*size : min((i+1)*size, len(body))]
		c.respond(m, bus.Header{messages.ChunkHeader: {fmt.Sprintf("%d/%d", i+1, chunks)}}, part)
	}
}

// respond answers a request. Answers go to inboxes only: a request whose reply subject is one of ours asks
// us to publish there in its place.
func (c *Coordinator) respond(m bus.Msg, h bus.Header, body []byte) {
	if m.Reply == "" || c.names.Ours(m.Reply) {
		return
	}
	if err := c.conn.Respond(m, h, body); err != nil {
		c.log.Debug("an answer was not sent", "to", m.Subject, "err", err)
	}
}
