package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// openDoors serves the request doors: run, which submits a batch and answers with its reply, get, which answers
// with the reply of a batch again, control, and those for people: decide, show and list. Every coordinator serves them; each request reaches one.
// The doors are open until ctx ends; who is inside then may stay until work does.
func (c *Coordinator) openDoors(ctx, work context.Context) (stop func(), err error) {
	return c.conn.Serve(ctx, bus.Service{
		Name: "toolfleet", Version: "1.0.0", Description: "Runs the tool calls of a model's message.",
		Metadata: map[string]string{"policy": c.cfg.Policy},
		Endpoints: []bus.Endpoint{
			{Name: "run", Subject: c.names.EveryBatch(wire.VerbRun), Handle: func(m bus.Msg) { c.runDoor(work, m) }},
			{Name: "get", Subject: c.names.EveryBatch(wire.VerbGet), Handle: func(m bus.Msg) { c.getDoor(work, m) }},
			{Name: "control", Subject: c.names.EverySession(wire.VerbControl), Handle: func(m bus.Msg) { c.controlDoor(work, m) }},
			{Name: "decide", Subject: c.names.EveryCall(wire.VerbDecide), Handle: func(m bus.Msg) { c.decideDoor(work, m) }},
			{Name: "show", Subject: c.names.EveryCall(wire.VerbShow), Handle: func(m bus.Msg) { c.showDoor(work, m) }},
			{Name: "list", Subject: c.names.OfTenant(wire.VerbList, "*"), Handle: func(m bus.Msg) { c.listDoor(work, m) }},
		},
	})
}

// visit is one request at the run door.
type visit struct {
	*Coordinator
	request  wire.BatchKey
	msg      bus.Msg
	digest   string
	progress bool         // the events are wanted too
	news     chan bus.Msg // events, replies and refusals as they come; a reply that found no room is found in the journal
}

func (c *Coordinator) runDoor(ctx context.Context, m bus.Msg) {
	_, key, err := c.names.Batch(m.Subject)
	if err != nil {
		c.refuseAtDoor(m, &messages.Refusal{Class: messages.ClassSubjectMismatch, Message: err.Error()})
		return
	}
	v := &visit{
		Coordinator: c, request: key, msg: m, digest: messages.Digest(m.Data), news: make(chan bus.Msg, 256),
		progress: m.Header.Get(messages.ProgressHeader) != "",
	}
	unsubscribe, err := v.listen()
	if err != nil {
		v.busy("Not connected. Try again.")
		return
	}
	defer unsubscribe()
	// A visit outlives no batch, whatever is missed.
	ctx, cancel := context.WithTimeout(ctx, 2*c.cfg.BatchTTL+time.Minute)
	defer cancel()
	_, err = c.conn.Append(ctx, c.names.Of(wire.VerbBatch, key), passOn(ctx, m.Header), m.Data)
	switch {
	case err == nil, errors.Is(err, bus.ErrUnknown):
		v.wait(ctx)
	case errors.Is(err, bus.ErrExists): // it runs, and answers for this one if it has the same body; or it has its reply and is about to leave the log
		if !v.look(ctx, notStored) {
			v.wait(ctx)
		}
	case errors.Is(err, bus.ErrFull): // which it also says of a batch that it holds, or that has its reply
		if !v.look(ctx, "Too many batches are waiting. Try again.") {
			v.wait(ctx)
		}
	case errors.Is(err, bus.ErrTooLarge):
		c.refuseAtDoor(m, &messages.Refusal{Class: messages.ClassTooLarge, Message: fmt.Sprintf(
			"The batch has %d bytes; the limit is %d.", len(m.Data), c.conn.MaxPayload()-headroom)})
	default:
		c.logAbout(tracing.Extract(ctx, m.Header), key).Warn("a batch could not be accepted", "err", err)
		v.busy("The batch could not be stored. Try again.")
	}
}

// listen hears of the batch: its reply, refusals under its id, and its events if they are wanted. What was told before the reply was
// stored comes before the reply.
func (v *visit) listen() (unsubscribe func(), err error) {
	subjects := []string{v.names.Of(wire.VerbReply, v.request), v.names.Of(wire.VerbRefused, v.request)}
	if v.progress {
		subjects = append(subjects, v.names.Of(wire.VerbEvent, v.request))
	}
	return v.conn.SubscribeInOrder(subjects, func(news bus.Msg) {
		select {
		case v.news <- news:
		default:
		}
	})
}

// aliveEvery is how often whoever asked for events hears that the batch is still open.
const aliveEvery = 10 * time.Second

// wait passes the events on, if they were asked for, and then the reply. Replies are pushed; the look
// into the log and the journal now and then is for one that was missed, and for a batch that was never
// stored.
func (v *visit) wait(ctx context.Context) {
	looks := time.NewTicker(v.cfg.Poll)
	defer looks.Stop()
	alive := time.NewTicker(aliveEvery)
	defer alive.Stop()
	for {
		select {
		case news := <-v.news:
			if v.isEvent(news) {
				v.pass(news)
			} else if v.answer(ctx, news.Data) {
				return
			}
		case <-looks.C:
			if v.look(ctx, notStored) {
				return
			}
		case <-alive.C:
			if v.progress {
				v.tell(messages.Event{Type: messages.EventWaiting, Index: -1})
			}
		case <-ctx.Done(): // the batch goes on; asked again, another coordinator waits for it
			v.busy("This coordinator is shutting down. Ask again: the batch goes on, and is not run twice.")
			return
		}
	}
}

const notStored = "The batch is not stored. Send it again."

// isEvent goes by the subject: workers may say what they like on that of events.
func (v *visit) isEvent(news bus.Msg) bool {
	return news.Subject == v.names.Of(wire.VerbEvent, v.request)
}

func (v *visit) pass(event bus.Msg) {
	if event.Header.Get(messages.EventHeader) != string(messages.EventReply) { // that one we tell ourselves, last
		v.respond(v.msg, bus.Header{messages.EventHeader: {event.Header.Get(messages.EventHeader)}}, event.Data)
	}
}

// tell makes an event of our own.
func (v *visit) tell(e messages.Event) {
	b, _ := messages.DecodeBatch(v.msg.Data)
	b = identified(b, v.request)
	e.V, e.Session, e.Batch, e.Time = messages.Version, b.Session, b.ID, time.Now()
	v.respond(v.msg, bus.Header{messages.EventHeader: {string(e.Type)}}, rawjson.MustMarshal(e))
}

// look finds out how the batch stands when no news come. The log comes first: a batch leaves it only after
// its reply is stored, so between the two looks nothing is missed. One that is in neither is answered busy, with the
// reason why.
func (v *visit) look(ctx context.Context, why string) (answered bool) {
	_, open, err := v.journal.Open(ctx, v.request)
	if err != nil {
		return false
	}
	stored, found, err := v.journal.Reply(ctx, v.request)
	switch {
	case err != nil:
		return false
	case found:
		return v.answer(ctx, stored)
	case open:
		return false
	}
	v.busy(why)
	return true
}

func (v *visit) busy(why string) {
	v.refuseAtDoor(v.msg, &messages.Refusal{Class: messages.ClassBusy, Message: why, RetryAfterMS: 500})
}

// answer hands over a reply. One to another body under the same id is a conflict.
func (v *visit) answer(ctx context.Context, stored []byte) bool {
	var reply messages.Reply
	if err := json.Unmarshal(stored, &reply); err != nil {
		v.logAbout(ctx, v.request).Error("a reply that cannot be read", "err", err)
		return false
	}
	if reply.Digest != v.digest {
		if reply.Status == messages.ReplyRefused && reply.Error != nil && reply.Error.Class == messages.ClassBatchConflict {
			return false // somebody else's refusal
		}
		v.refuseAtDoor(v.msg, &messages.Refusal{Class: messages.ClassBatchConflict, Message: fmt.Sprintf(
			"A batch with this id and another body was submitted before (digest %s). Use a new id.", reply.Digest)})
		return true
	}
	body, err := v.journal.FullReply(ctx, stored)
	if err != nil {
		v.logAbout(ctx, v.request).Error("a large reply cannot be fetched", "err", err)
		body = stored
	}
	if v.progress {
		for len(v.news) > 0 { // where the reply was found and not heard
			if news := <-v.news; v.isEvent(news) {
				v.pass(news)
			}
		}
		v.tell(messages.Event{Type: messages.EventReply, Index: -1, Counter: 1, Status: reply.Status})
	}
	v.respondInChunks(v.msg, body)
	return true
}

// getDoor answers with the reply of a batch, or with how it stands, with what has happened to it so far, or with the batches of
// its session.
func (c *Coordinator) getDoor(ctx context.Context, m bus.Msg) {
	_, key, err := c.names.Batch(m.Subject)
	if err != nil {
		c.refuseAtDoor(m, &messages.Refusal{Class: messages.ClassSubjectMismatch, Message: err.Error()})
		return
	}
	var want messages.Get
	if len(m.Data) > 0 {
		if err := json.Unmarshal(m.Data, &want); err != nil {
			c.refuseAtDoor(m, &messages.Refusal{Class: messages.ClassMalformedMessage, Message: "get: " + err.Error()})
			return
		}
	}
	var body []byte
	switch {
	case want.Batches:
		body, err = c.batches(ctx, key, want)
	case want.Timeline:
		body, err = c.timeline(ctx, key)
	default:
		body, err = c.fetch(ctx, key, want.Results == "full")
	}
	switch {
	case errors.Is(err, bus.ErrNotFound):
		c.respond(m, serviceError("unknown batch", "404"), rawjson.MustMarshal(messages.State{Status: "unknown"}))
	case err != nil:
		c.logAbout(ctx, key).Warn("what became of a batch could not be fetched", "err", err)
		c.refuseAtDoor(m, &messages.Refusal{Class: messages.ClassBusy, Message: "What became of the batch cannot be read at this moment. Try again.", RetryAfterMS: 1000})
	default:
		c.respondInChunks(m, body)
	}
}

// fetch is the body of the get door's answer. bus.ErrNotFound: never seen, or forgotten.
func (c *Coordinator) fetch(ctx context.Context, key wire.BatchKey, full bool) ([]byte, error) {
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
		return rawjson.MustMarshal(messages.State{Status: "running"}), nil
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
func (c *Coordinator) withOutputs(ctx context.Context, key wire.BatchKey, body []byte) ([]byte, error) {
	var reply messages.Reply
	if err := json.Unmarshal(body, &reply); err != nil {
		return nil, fmt.Errorf("stored reply of batch %s: %w", key, err)
	}
	known, err := c.journal.Calls(ctx, key)
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
		if err := c.journal.Resolve(ctx, &e.Result); err != nil {
			c.logOf(ctx, e.Key, e.Result.CallID).Error("a stored outcome is gone", "err", err)
			continue
		}
		reply.Results[e.Key.Index].Outcome = e.Result.Outcome
	}
	return rawjson.MustMarshal(reply), nil
}

// refuseAtDoor answers a request that cannot be served, with the reason in the way of a Reply.
func (c *Coordinator) refuseAtDoor(m bus.Msg, refusal *messages.Refusal) {
	b, _ := messages.DecodeBatch(m.Data)
	if _, key, err := c.names.Batch(m.Subject); err == nil {
		b = identified(b, key)
	}
	c.cfg.Metrics.refused(refusal.Class)
	code := "400"
	switch refusal.Class {
	case messages.ClassBusy:
		code = "503"
	case messages.ClassBatchConflict:
		code = "409"
	case messages.ClassTooLarge:
		code = "413"
	}
	c.respond(m, serviceError(string(refusal.Class), code), rawjson.MustMarshal(refusedReply(b, messages.Digest(m.Data), refusal)))
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
