package client

import (
	"context"
	"time"
)

// LoopOption is an option of [Client.Loop].
type LoopOption func(*loop)

// MaxRounds limits how many messages with calls are run in one turn. Default 5.
func MaxRounds(n int) LoopOption { return func(l *loop) { l.maxRounds = n } }

// MaxDuration limits the duration of a turn, including the model's time. Time in which the
// fleet waits for a person does not count. By default there is no limit. If a turn goes on
// in another Loop, or in another process, its time is still counted from
// [Conversation.Began]; the time between the two Loops counts too.
//
// When the time is over, the running batch is aborted. A write that is stopped in the
// middle may end with an unknown outcome.
func MaxDuration(d time.Duration) LoopOption { return func(l *loop) { l.wall.limit = d } }

// SaveWith makes Loop store the conversation after each change: before the calls of a
// message run, when they are answered, and, with [MaxDuration], when a turn begins. A Loop
// over the stored conversation continues there, without asking the model again. An error of
// store ends the Loop.
func SaveWith(store func(context.Context, Conversation) error) LoopOption {
	return func(l *loop) { l.save = store }
}

// RunOptions gives options to each [Client.Run] of the Loop, for example [OnEvent].
func RunOptions(options ...RunOption) LoopOption {
	return func(l *loop) { l.run = append(l.run, options...) }
}

// loop is one [Client.Loop].
type loop struct {
	client       *Client
	conversation *Conversation
	ask          ModelFunc

	maxRounds int
	save      func(context.Context, Conversation) error // nil: nothing is saved
	run       []RunOption
	wall      *wallTime
}

func newLoop(c *Client, v *Conversation, ask ModelFunc, options []LoopOption) *loop {
	l := &loop{client: c, conversation: v, ask: ask, maxRounds: 5, wall: newWallTime(c, v)}
	for _, option := range options {
		option(l)
	}
	return l
}
