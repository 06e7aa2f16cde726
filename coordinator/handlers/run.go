package handlers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/logfields"
	"github.com/toolfleet/toolfleet/coordinator/submission"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// runRequest is one request to run a batch.
type runRequest struct {
	handlers *Handlers
	key      wire.BatchKey
	msg      bus.Msg
	digest   string
	progress bool // the requester wants events
	// published receives the events, replies and refusals of the batch. If the channel is
	// full, messages are dropped. If the reply is dropped, the handler finds it in the
	// journal.
	published chan bus.Msg
}

// run stores a batch in the log and answers with its reply.
func (h *Handlers) run(ctx context.Context, m bus.Msg) {
	_, key, err := h.names.Batch(m.Subject)
	if err != nil {
		h.refuse(m, &messages.Refusal{Class: messages.ClassSubjectMismatch, Message: err.Error()})
		return
	}
	r := &runRequest{
		handlers: h, key: key, msg: m, digest: messages.Digest(m.Data), published: make(chan bus.Msg, 256),
		progress: m.Header.Get(messages.ProgressHeader) != "",
	}
	unsubscribe, err := r.subscribe()
	if err != nil {
		r.refuseBusy("Not connected. Try again.")
		return
	}
	defer unsubscribe()
	// By this time the batch has ended, even if the handler missed every message.
	ctx, cancel := context.WithTimeout(ctx, 2*h.cfg.BatchTTL+time.Minute)
	defer cancel()
	_, err = h.conn.Append(ctx, h.names.Of(wire.VerbBatch, key), kept(ctx, m.Header), m.Data)
	switch {
	case err == nil, errors.Is(err, bus.ErrUnknown):
		r.wait(ctx)
	case errors.Is(err, bus.ErrExists):
		// Either the batch is open. Then its reply also answers this request, if the bodies
		// are equal. Or the batch has its reply and is about to leave the log.
		if !r.check(ctx, notStored) {
			r.wait(ctx)
		}
	case errors.Is(err, bus.ErrFull): // a full log gives this error even for a batch that it has
		if !r.check(ctx, "Too many batches are waiting. Try again.") {
			r.wait(ctx)
		}
	case errors.Is(err, bus.ErrTooLarge):
		h.refuse(m, &messages.Refusal{Class: messages.ClassTooLarge, Message: fmt.Sprintf(
			"The batch has %d bytes; the limit is %d.", len(m.Data), h.conn.MaxBody())})
	default:
		logfields.Batch(tracing.Extract(ctx, m.Header), h.log, key).Warn("a batch could not be stored in the log; its agent is asked to send it again", "err", err)
		r.refuseBusy("The batch could not be stored. Try again.")
	}
}

// kept returns the headers of a request that its stored batch keeps: the trace context, and
// the signed statement of who asks.
func kept(ctx context.Context, h bus.Header) bus.Header {
	out := bus.Header{}
	tracing.Inject(tracing.Extract(ctx, h), out)
	if who := h.Get(messages.PrincipalHeader); who != "" {
		out.Set(messages.PrincipalHeader, who)
	}
	return out
}

// subscribe subscribes to the reply of the batch and to refusals under its id. If the
// requester wants events, it also subscribes to these. Messages arrive in the order in which
// they were published, so the events come before the reply.
func (r *runRequest) subscribe() (unsubscribe func(), err error) {
	names := r.handlers.names
	subjects := []string{names.Of(wire.VerbReply, r.key), names.Of(wire.VerbRefused, r.key)}
	if r.progress {
		subjects = append(subjects, names.Of(wire.VerbEvent, r.key))
	}
	return r.handlers.conn.SubscribeInOrder(subjects, func(m bus.Msg) {
		select {
		case r.published <- m:
		default:
		}
	})
}

// waitingEvery is the time between two waiting events. Requesters that want events get them.
const waitingEvery = 10 * time.Second

// wait passes on events, if the requester wants them, and then the reply. At intervals it also
// reads the log and the journal. There it finds a reply whose message was lost. If the batch
// was never stored, it finds that too.
func (r *runRequest) wait(ctx context.Context) {
	polls := time.NewTicker(r.handlers.cfg.Poll)
	defer polls.Stop()
	waiting := time.NewTicker(waitingEvery)
	defer waiting.Stop()
	for {
		select {
		case m := <-r.published:
			if r.isEvent(m) {
				r.forward(m)
			} else if r.answer(ctx, m.Data) {
				return
			}
		case <-polls.C:
			if r.check(ctx, notStored) {
				return
			}
		case <-waiting.C:
			if r.progress {
				r.publish(messages.Event{Type: messages.EventWaiting, Index: -1})
			}
		case <-ctx.Done(): // the batch goes on, and a new request can wait for its reply
			r.refuseBusy("This coordinator is shutting down. Ask again: the batch goes on, and is not run twice.")
			return
		}
	}
}

const notStored = "The batch is not stored. Send it again."

// isEvent reports whether a message is an event, judged by its subject: a worker may
// publish any body as an event.
func (r *runRequest) isEvent(m bus.Msg) bool {
	return m.Subject == r.handlers.names.Of(wire.VerbEvent, r.key)
}

// forward passes an event on. It leaves out the event of the reply, because answer makes that
// event itself and sends it last.
func (r *runRequest) forward(event bus.Msg) {
	if kind := event.Header.Get(messages.EventHeader); kind != string(messages.EventReply) {
		r.handlers.conn.Answer(r.msg, bus.Header{messages.EventHeader: {kind}}, event.Data)
	}
}

// publish sends an event that this handler made to the requester.
func (r *runRequest) publish(e messages.Event) {
	b, _ := messages.DecodeBatch(r.msg.Data)
	b = submission.Identified(b, r.key)
	e.V, e.Session, e.Batch, e.Time = messages.Version, b.Session, b.ID, time.Now()
	r.handlers.conn.Answer(r.msg, bus.Header{messages.EventHeader: {string(e.Type)}}, rawjson.MustMarshal(e))
}

// check reads the log and the journal. If the batch has its reply, check answers with it. If
// the batch is in neither, check refuses the request with the given reason. It reads the log
// first: a batch leaves the log only after its reply is stored, so at least one of the two
// reads finds the batch.
func (r *runRequest) check(ctx context.Context, reason string) (answered bool) {
	_, open, err := r.handlers.journal.Open(ctx, r.key)
	if err != nil {
		return false
	}
	stored, found, err := r.handlers.journal.Reply(ctx, r.key)
	switch {
	case err != nil:
		return false
	case found:
		return r.answer(ctx, stored)
	case open:
		return false
	}
	r.refuseBusy(reason)
	return true
}

func (r *runRequest) refuseBusy(reason string) {
	r.handlers.refuse(r.msg, &messages.Refusal{Class: messages.ClassBusy, Message: reason, RetryAfterMS: 500})
}

// answer sends a stored reply. If the reply is for another body under the same id, it answers
// that the request is in conflict with that batch.
func (r *runRequest) answer(ctx context.Context, stored []byte) bool {
	h := r.handlers
	var reply messages.Reply
	if err := json.Unmarshal(stored, &reply); err != nil {
		logfields.Batch(ctx, h.log, r.key).Error("the reply of a batch cannot be read; inspect it in the stream of replies", "err", err)
		return false
	}
	if reply.Digest != r.digest {
		if reply.Status == messages.ReplyRefused && reply.Error != nil && reply.Error.Class == messages.ClassBatchConflict {
			return false // the stored refusal is about another request
		}
		h.refuse(r.msg, &messages.Refusal{Class: messages.ClassBatchConflict, Message: fmt.Sprintf(
			"A batch with this id and another body was submitted before (digest %s). Use a new id.", reply.Digest)})
		return true
	}
	body, err := h.journal.FullReply(ctx, stored)
	if err != nil {
		logfields.Batch(ctx, h.log, r.key).Error("a large reply cannot be fetched from the object store; the answer has a reference to it instead", "err", err)
		body = stored
	}
	if r.progress {
		// Events that were published before the reply are sent before it.
		for len(r.published) > 0 {
			if m := <-r.published; r.isEvent(m) {
				r.forward(m)
			}
		}
		r.publish(messages.Event{Type: messages.EventReply, Index: -1, Counter: 1, Status: reply.Status})
	}
	h.conn.AnswerInChunks(r.msg, h.givenOut(ctx, r.key, body))
	return true
}

// refuse answers a request with a refusal in the form of a Reply.
func (h *Handlers) refuse(m bus.Msg, refusal *messages.Refusal) {
	b, _ := messages.DecodeBatch(m.Data)
	if _, key, err := h.names.Batch(m.Subject); err == nil {
		b = submission.Identified(b, key)
	}
	h.cfg.Refused(refusal.Class)
	code := "400"
	switch refusal.Class {
	case messages.ClassBusy:
		code = "503"
	case messages.ClassBatchConflict:
		code = "409"
	case messages.ClassTooLarge:
		code = "413"
	}
	refused := submission.Refused(b, messages.Digest(m.Data), refusal)
	h.conn.AnswerError(m, string(refusal.Class), code, rawjson.MustMarshal(refused))
}
