package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/messages"
)

// An agent sends the message of its model, unchanged, and appends the reinjection to the
// conversation.
func Example() {
	options, _, stop := startFleet() // for example fleet.Options{URL: "nats://localhost:4222"}
	defer stop()
	ctx := context.Background()
	c, err := client.Connect(ctx, options)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	history := []json.RawMessage{json.RawMessage(`{"role":"user","content":"How many are there?"}`)}
	message := json.RawMessage(`{"role":"assistant","content":[{"type":"tool_use","id":"toolu_1","name":"look_up","input":{}}]}`)
	reply, err := c.Run(ctx, messages.Batch{ID: "turn-1", Session: "conversation-1", Provider: messages.Anthropic, Message: message})
	if err != nil {
		log.Fatal(err)
	}
	history = reply.Extend(append(history, message))
	fmt.Println(reply.Status, reply.Done(), len(history))
	fmt.Println(string(history[2]))
	// Output:
	// completed false 3
	// {"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":[{"type":"text","text":"12 items"}]}]}
}

// Progress is shown while Run waits. A refused batch is an error with a class.
func ExampleClient_Run() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()

	reply, err := c.Run(ctx, batch("turn-1", "look_up", "no_such_tool"), client.OnEvent(func(e messages.Event) {
		if e.Type == messages.EventResult {
			fmt.Println(e.Tool, e.Result.Status)
		}
	}))
	fmt.Println(reply.Status, err)

	_, err = c.Run(ctx, batch("turn-1", "look_up")) // the same id with another body
	var refusal *messages.Refusal
	if errors.As(err, &refusal) {
		fmt.Println("refused:", refusal.Class)
	}
	// Output:
	// look_up ok
	// no_such_tool unknown_tool
	// completed <nil>
	// refused: batch_conflict
}

// Follow yields every durable event once, also those from before it was called.
func ExampleClient_Follow() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()

	if err := c.Submit(ctx, batch("turn-1", "note")); err != nil {
		log.Fatal(err)
	}
	for event, err := range c.Follow(ctx, "conversation", "turn-1") {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(event.Type, event.Tool)
	}
	// Output:
	// start note
	// running note
	// end note
	// result note
	// reply
}

// Watch yields the events of every batch of a session. With WatchSince, these include batches that
// have ended.
func ExampleClient_Watch() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()

	began := time.Now()
	for _, id := range []messages.BatchID{"turn-1", "turn-2"} {
		if _, err := c.Run(ctx, batch(id, "note")); err != nil {
			log.Fatal(err)
		}
	}
	replies := 0
	for event, err := range c.Watch(ctx, "conversation", client.WatchSince(began)) {
		if err != nil {
			log.Fatal(err)
		}
		if event.Type == messages.EventReply {
			fmt.Println(event.Batch, event.Status)
			if replies++; replies == 2 {
				break
			}
		}
	}
	// Output:
	// turn-1 completed
	// turn-2 completed
}

// A list comes in pages of 64 batches.
func ExampleClient_Batches() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()

	began := time.Now()
	if _, err := c.Run(ctx, batch("turn-1", "note")); err != nil {
		log.Fatal(err)
	}
	for page := (client.ListOptions{Since: began}); ; {
		list, err := c.Batches(ctx, "conversation", page)
		if err != nil {
			log.Fatal(err)
		}
		for _, b := range list.Batches {
			fmt.Println(b.Batch, b.Status)
		}
		if !list.More {
			break
		}
		page = client.ListOptions{After: list.Place}
	}
	// Output: turn-1 completed
}

// The reply of a batch can be had again, with the outputs in its results.
func ExampleClient_Get() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()

	_, err := c.Get(ctx, "conversation", "turn-1")
	fmt.Println(errors.Is(err, client.ErrUnknown))

	if err := c.Submit(ctx, batch("turn-1", "look_up")); err != nil {
		log.Fatal(err)
	}
	if _, err := c.Await(ctx, "conversation", "turn-1"); err != nil {
		log.Fatal(err)
	}
	reply, err := c.Get(ctx, "conversation", "turn-1", client.FullResults())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(reply.Status, string(reply.Results[0].Output))
	// Output:
	// true
	// completed "12 items"
}

// An aborted batch has a reply too.
func ExampleClient_Abort() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()

	if err := c.Submit(ctx, batch("turn-1", "wait")); err != nil {
		log.Fatal(err)
	}
	if _, err := c.Abort(ctx, "conversation", "turn-1", client.Reason{By: "the user", Text: "it takes too long"}); err != nil {
		log.Fatal(err)
	}
	reply, err := c.Await(ctx, "conversation", "turn-1")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(reply.Status, reply.Results[0].Status)
	// Output: aborted aborted
}

// A message to the model comes with the next reply of its session.
func ExampleClient_Steer() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()

	message := json.RawMessage(`{"role":"user","content":"Use the other account."}`)
	if _, err := c.Steer(ctx, "conversation", message, messages.SteerAfterBatch, client.Reason{By: "the user"}); err != nil {
		log.Fatal(err)
	}
	reply, err := c.Run(ctx, batch("turn-1", "look_up"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(reply.Steering))
	// Output: [{"role":"user","content":"Use the other account."}]
}

// A person allows a call. The decision is bound to the question, and signed.
func ExampleClient_Decide() {
	options, keyFile, stop := startFleet()
	defer stop()
	ctx := context.Background()
	c, err := client.Connect(ctx, options)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	alice, err := client.ReadSigner("alice", keyFile)
	if err != nil {
		log.Fatal(err)
	}
	// An agent runs a batch with a call that needs a person.
	if err := c.Submit(ctx, batch("turn-1", "refund")); err != nil {
		log.Fatal(err)
	}

	for pending, err := range c.WatchApprovals(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		q, err := c.Approval(ctx, pending.Session, pending.Batch, pending.Index)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(q.Line)
		decision, err := alice.Sign(q, messages.Decision{Verdict: messages.VerdictApprove})
		if err != nil {
			log.Fatal(err)
		}
		answer, err := c.Decide(ctx, decision)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(answer.State)
		break
	}
	reply, err := c.Await(ctx, "conversation", "turn-1")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(reply.Results[0].Status)
	// Output:
	// refund
	// granted
	// ok
}
