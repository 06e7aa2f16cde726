package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// Model asks a model for its next message. It returns the message in the form in which the next
// request has it, for example an assistant message, or the list of output items of the Responses
// API. It must end when ctx does, and must not change history.
type Model func(ctx context.Context, history []json.RawMessage) (message json.RawMessage, err error)

// Conversation is what [Client.Loop] works on, and what a program stores to go on after a crash.
type Conversation struct {
	Session  messages.SessionID `json:"session"`
	Provider messages.Provider  `json:"provider"`
	// History is valid for the provider at any time: each call in it is answered. Append the user's
	// message to it before a turn, while Message is nil.
	History []json.RawMessage `json:"history"`
	// Message is the model's newest message while its calls are not answered. It is not part of
	// History.
	Message json.RawMessage `json:"message,omitempty"`
	// Catalogue is the digest of the definitions of tools that the model is given, see
	// [messages.Batch]. May be empty.
	Catalogue string `json:"catalogue,omitempty"`
	// Rounds counts the answered messages of a turn that goes on. Loop sets it to 0 when the turn
	// ends.
	Rounds int `json:"rounds,omitempty"`
}

// Errors of [Client.Loop] after which the history is valid and another Loop may go on with it.
var (
	// ErrMaxRounds means that the model made calls in as many rounds as [MaxRounds] allows.
	ErrMaxRounds = errors.New("the model still makes calls after the last round that it has")
	// ErrWall means that the time of [Wall] is over. Calls that had not ended were aborted.
	ErrWall = errors.New("the time for this turn is over")
	// ErrAborted means that somebody aborted a batch of the turn.
	ErrAborted = errors.New("the calls of the model were aborted")
)

// Loop runs a turn: it asks the model, has the fleet run the calls of its message, appends message
// and reply to the history, and asks again. What was said to the session meanwhile is appended too.
// It returns nil when the model has made no calls and nothing was said.
//
// A turn stops with [ErrMaxRounds], [ErrWall] or [ErrAborted], with the error of the model or of
// [Save], with the error of ctx, or with an error of [Client.Run]. A *messages.Refusal means that
// nothing ran, and that the message is dropped: the history has to change before another Loop, for
// example by a message that says what was wrong.
//
// The id of each batch is made from the history before the message. So after a crash a Loop over
// the same history runs nothing twice: it gets the replies that are stored. If the model answers
// otherwise this time, the error is a refusal of the class batch_conflict. Programs that [Save]
// the conversation never see that one. A conversation that begins anew needs another session.
func (c *Client) Loop(ctx context.Context, v *Conversation, ask Model, options ...LoopOption) error {
	l := newLoop(c, v, ask, options)
	for {
		over, err := l.round(ctx)
		if over {
			v.Rounds = 0
		}
		if unsaved := l.store(ctx); unsaved != nil {
			return errors.Join(err, unsaved)
		}
		if over || err != nil {
			return err
		}
	}
}

// round asks the model, unless its message is there, and has the calls of the message run. over:
// the turn has ended, and err says why; nil: the model has made no calls.
func (l *loop) round(ctx context.Context) (over bool, err error) {
	v := l.conversation
	if v.Message == nil {
		if v.Message, err = l.askModel(ctx); err != nil {
			return errors.Is(err, ErrWall), err
		}
		if err := l.store(ctx); err != nil {
			v.Message = nil // nothing has run
			return false, err
		}
	}
	reply, err := l.runCalls(ctx)
	var refusal *messages.Refusal
	if errors.As(err, &refusal) && refusal.Class != messages.ClassBusy {
		v.Message = nil
	}
	if err != nil {
		return errors.Is(err, ErrWall), err
	}
	v.History = reply.Extend(append(v.History, parts(v.Message)...))
	v.Message = nil
	v.Rounds++
	switch {
	case reply.Done():
		return true, nil
	case reply.Status == messages.ReplyAborted && l.wall.cut:
		return true, ErrWall
	case reply.Status == messages.ReplyAborted:
		return true, ErrAborted
	case v.Rounds >= l.maxRounds:
		return true, ErrMaxRounds
	}
	return false, nil
}

// store saves the conversation. After one error, which it returns, it does nothing any more.
func (l *loop) store(ctx context.Context) error {
	if l.save == nil {
		return nil
	}
	if err := l.save(ctx, *l.conversation); err != nil {
		l.save = nil
		return fmt.Errorf("save the conversation: %w", err)
	}
	return nil
}

// askModel returns the model's next message.
func (l *loop) askModel(ctx context.Context) (json.RawMessage, error) {
	asking, done, err := l.wall.bound(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	message, err := l.ask(asking, slices.Clip(l.conversation.History))
	switch {
	case asking.Err() != nil:
		return nil, fmt.Errorf("ask the model: %w", context.Cause(asking))
	case err != nil:
		return nil, fmt.Errorf("ask the model: %w", err)
	}
	if err := rawjson.CheckSyntax(message); err != nil {
		return nil, fmt.Errorf("the model's message: %w", err)
	}
	return message, nil
}

// runCalls returns the reply for the message. When the time is over it has the batch aborted, which
// has a reply too.
func (l *loop) runCalls(ctx context.Context) (messages.Reply, error) {
	v := l.conversation
	batch := messages.Batch{
		ID: roundID(v.History), Session: v.Session, Provider: v.Provider, Message: steady(v.Message), Catalogue: v.Catalogue,
	}
	running, done := l.wall.watch(ctx, batch.ID)
	defer done()
	reply, err := l.client.Run(running, batch, l.run...)
	if err != nil && ctx.Err() == nil && running.Err() != nil {
		return reply, ErrWall
	}
	return reply, err
}

// roundID names the batch of the message that follows a history.
func roundID(history []json.RawMessage) messages.BatchID {
	var all []byte
	for _, message := range history {
		all = append(append(all, steady(message)...), '\n')
	}
	return messages.BatchID(fmt.Sprintf("round-%d-%.32s", len(history), messages.Digest(all)))
}

// steady returns a message in bytes that stay the same when it is stored and read again as JSON.
// One that breaks the rules for JSON stays as it is: the fleet has to see its mistake.
func steady(message json.RawMessage) json.RawMessage {
	if rawjson.Check(message) == nil {
		if canonical, err := rawjson.Canonical(message); err == nil {
			return canonical
		}
	}
	return message
}

// parts returns what a message adds to the history: the elements of a list, else itself.
func parts(message json.RawMessage) []json.RawMessage {
	if rawjson.TypeOf(message) == "an array" {
		return rawjson.Elements(message)
	}
	return []json.RawMessage{message}
}
