// Command agent-go is a minimal agent loop: ask the model, let the fleet run its calls, append both
// to the history, until the model makes no calls. Its model is scripted (script.go), so it needs a
// fleet but no API key.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log"
	"os"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/fleet"
	"github.com/toolfleet/toolfleet/messages"
)

func main() {
	ctx := context.Background()
	agent, err := client.Connect(ctx, fleet.Options{URL: os.Getenv("NATS_URL")})
	if err != nil {
		log.Fatal(err)
	}
	defer agent.Close()
	session := messages.SessionID("chat-" + rand.Text())
	history := []json.RawMessage{json.RawMessage(`{"role":"user","content":"What is left to do? Keep the list up to date."}`)}
	for {
		message := askModel(history) // the call of your provider's SDK goes here
		history = append(history, message)
		reply, err := agent.Run(ctx, messages.Batch{
			Session: session, ID: messages.BatchID(fmt.Sprint("turn-", len(history))),
			Provider: messages.Anthropic, Message: message,
		})
		if err != nil {
			log.Fatal(err)
		}
		if reply.Done() { // no calls
			break
		}
		history = reply.Extend(history)
	}
	show(history)
}
