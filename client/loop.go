package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// ModelFunc asks a model for its next message. It returns the message in the form that the next
// request needs, for example an assistant message, or the list of output items of the Responses
// API. It must return when ctx ends, and must not change history.
type ModelFunc func(ctx context.Context, history []json.RawMessage) (message json.RawMessage, err error)

// Conversation is the state of [Client.Loop]. A program stores it to go on after a crash.
type Conversation struct {
	Session  messages.SessionID `json:"session"`
	Provider messages.Provider  `json:"provider"`
	// History is valid for the provider at any time: each call in it is answered. Append the user's
	// message to it before a turn, while Message is nil.
	History []json.RawMessage `json:"history"`
	// Message is the model's newest message, until its calls are answered. It is not part of
	// History.
	Message json.RawMessage `json:"message,omitempty"`
	// Catalogue is the digest of the tool definitions that the model was given; see
	// [messages.Batch]. May be empty.
	Catalogue string `json:"catalogue,omitempty"`
	// Round is the round number of the batch with Message. 0: the batch has no number, because
	// an earlier version stored the message.
	Round int `json:"round,omitempty"`
	// Rounds counts the answered messages of an unfinished turn.
	Rounds int `json:"rounds,omitempty"`
	// Began is when the unfinished turn began. [MaxDuration] counts from this time.
	Began time.Time `json:"began,omitzero"`
	// Batches are the batches of the answered messages of an unfinished turn. [MaxDuration]
	// does not count the time in which they waited for people.
	Batches []messages.BatchID `json:"batches,omitempty"`
}

// endTurn clears the counts of the turn, so that the next Loop begins a new turn. A message
// that is still unanswered keeps its round, because the number is part of its batch.
func (v *Conversation) endTurn() {
	v.Rounds, v.Began, v.Batches = 0, time.Time{}, nil
}

// take sets the model's newest message.
func (v *Conversation) take(message json.RawMessage) { v.Message, v.Round = message, v.Rounds+1 }

// drop removes the model's newest message: it was answered, or none of its calls has run.
func (v *Conversation) drop() { v.Message, v.Round = nil, 0 }

// Errors of [Client.Loop]. The history is valid after them, and another Loop may go on with it.
var (
	// ErrMaxRounds means that the model still made calls in the last round that [MaxRounds] allows.
	ErrMaxRounds = errors.New("the model still makes calls after the last round that it has")
	// ErrMaxDuration means that the time of [MaxDuration] is over. Calls that had not ended were
	// aborted.
	ErrMaxDuration = errors.New("the time for this turn is over")
	// ErrAborted means that somebody aborted a batch of the turn.
	ErrAborted = errors.New("the calls of the model were aborted")
)

// Loop runs a turn: it asks the model, lets the fleet run the calls of the model's message,
// appends message and reply to the history, and asks the model again. It also appends steering
// messages of the session. It returns nil when the model has made no calls and there is no
// steering message.
//
// A turn ends early with [ErrMaxRounds], [ErrMaxDuration] or [ErrAborted], with the error
// of the model or of [SaveWith], with the error of ctx, or with an error of [Client.Run].
// After a *messages.Refusal nothing ran and the message is dropped: change the history
// before another Loop, for example by a message about the mistake.
//
// After an error, the next Loop begins a new turn, with rounds and time of its own. There are
// two exceptions in which it continues the old turn: ctx has ended, or Message is still
// unanswered.
//
// After a crash, call Loop with the conversation that [SaveWith] stored last: it goes on
// with the same turn, and rounds and time are counted from the turn's beginning. A program
// without SaveWith begins the turn again, with the same conversation as before. The id of
// each batch is a hash of the history before the message, so nothing runs twice: Loop gets
// the stored replies. If the model answers differently this time, the error is a refusal of
// the class batch_conflict. A new conversation needs another session.
func (c *Client) Loop(ctx context.Context, v *Conversation, ask ModelFunc, options ...LoopOption) error {
	l := newLoop(c, v, ask, options)
	if err := l.begin(ctx); err != nil {
		l.endFailed(ctx)
		return err
	}
	for {
		over, err := l.round(ctx)
		if over {
			v.endTurn()
		} else if err != nil {
			l.endFailed(ctx)
		}
		if unsaved := l.store(ctx); unsaved != nil {
			l.endFailed(ctx)
			return errors.Join(err, unsaved)
		}
		if over || err != nil {
			return err
		}
	}
}

// endFailed ends the turn after an error, so that the user's next message begins a new turn
// with a time limit of its own. The turn stays open if another Loop can continue it: ctx has
// ended (for example because the program ends), or a message is unanswered.
func (l *loop) endFailed(ctx context.Context) {
	if ctx.Err() == nil && l.conversation.Message == nil {
		l.conversation.endTurn()
	}
}

// begin begins a turn if none is open.
func (l *loop) begin(ctx context.Context) error {
	if !l.conversation.Began.IsZero() {
		return nil
	}
	l.conversation.Began = time.Now()
	if l.wall.limit == 0 {
		return nil
	}
	return l.store(ctx) // the time counts, even if the program ends while it asks the model
}

// round asks the model if there is no unanswered message, and runs the calls of the message.
// over reports whether the turn has ended; err is the reason, or nil if the model made no
// calls.
func (l *loop) round(ctx context.Context) (over bool, err error) {
	v := l.conversation
	if v.Message == nil {
		message, err := l.askModel(ctx)
		if err != nil {
			return errors.Is(err, ErrMaxDuration), err
		}
		v.take(message)
		if err := l.store(ctx); err != nil {
			v.drop() // nothing has run
			return false, err
		}
	}
	reply, err := l.runCalls(ctx)
	var refusal *messages.Refusal
	if errors.As(err, &refusal) && refusal.Class != messages.ClassBusy {
		v.drop()
	}
	if err != nil {
		return errors.Is(err, ErrMaxDuration), err
	}
	v.History = reply.Extend(append(v.History, parts(v.Message)...))
	v.drop()
	v.Rounds++
	v.Batches = append(v.Batches, reply.Batch)
	switch {
	case reply.Done():
		return true, nil
	case reply.Status == messages.ReplyAborted && l.wall.cut:
		return true, ErrMaxDuration
	case reply.Status == messages.ReplyAborted:
		return true, ErrAborted
	case v.Rounds >= l.maxRounds:
		return true, ErrMaxRounds
	}
	return false, nil
}

// store saves the conversation. After its first error it does nothing.
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

// runCalls returns the reply for the message. If the turn's time is over, it aborts the batch and
// returns the reply of the aborted batch.
func (l *loop) runCalls(ctx context.Context) (messages.Reply, error) {
	v := l.conversation
	batch := messages.Batch{
		ID: roundID(v.History), Session: v.Session, Provider: v.Provider, Message: steady(v.Message),
		Catalogue: v.Catalogue, Round: v.Round,
	}
	running, done := l.wall.watch(ctx, batch.ID)
	defer done()
	reply, err := l.client.Run(running, batch, l.run...)
	if err != nil && ctx.Err() == nil && running.Err() != nil {
		return reply, ErrMaxDuration
	}
	return reply, err
}

// roundID returns the id of the batch that follows a history: a hash of the history.
func roundID(history []json.RawMessage) messages.BatchID {
	var all []byte
	for _, message := range history {
		all = append(append(all, steady(message)...), '\n')
	}
	return messages.BatchID(fmt.Sprintf("round-%d-%.32s", len(history), messages.Digest(all)))
}

// steady returns a message in canonical JSON. The id of its batch then stays the same when the
// message is stored and read again. An invalid message is returned unchanged: the fleet
// reports the mistake.
func steady(message json.RawMessage) json.RawMessage {
	if rawjson.Check(message) == nil {
		if canonical, err := rawjson.Canonical(message); err == nil {
			return canonical
		}
	}
	return message
}

// parts returns what a message adds to the history: its elements if it is a list, else the message
// itself.
func parts(message json.RawMessage) []json.RawMessage {
	if rawjson.TypeOf(message) == "an array" {
		return rawjson.Elements(message)
	}
	return []json.RawMessage{message}
}
