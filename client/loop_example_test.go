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

// An agent for the Messages API of Anthropic. ask stands for the request to the provider.
func ExampleClient_Loop_anthropic() {
	c, stop := connect()
	defer stop()

	ask := scripted(
		`{"role":"assistant","content":[
			{"type":"tool_use","id":"toolu_1","name":"look_up","input":{}},
			{"type":"tool_use","id":"toolu_2","name":"note","input":{}}]}`,
		`{"role":"assistant","content":[{"type":"text","text":"There are 12, and I have noted it."}]}`,
	)
	chat := client.Conversation{
		Session: "conversation-1", Provider: messages.Anthropic,
		History: []json.RawMessage{json.RawMessage(`{"role":"user","content":"How many are there? Note it."}`)},
	}
	err := c.Loop(context.Background(), &chat, ask, client.MaxRounds(8), client.MaxDuration(time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	for _, message := range chat.History[2:] {
		fmt.Println(string(message))
	}
	// Output:
	// {"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","content":[{"type":"text","text":"12 items"}]},{"type":"tool_result","tool_use_id":"toolu_2","content":[{"type":"text","text":"noted"}]}]}
	// {"role":"assistant","content":[{"type":"text","text":"There are 12, and I have noted it."}]}
}

// An agent for the Responses API of OpenAI: a message is the list of output items.
func ExampleClient_Loop_openAI() {
	c, stop := connect()
	defer stop()

	ask := scripted(
		`[{"type":"reasoning","id":"rs_1","summary":[]},
		  {"type":"function_call","id":"fc_1","call_id":"call_1","name":"look_up","arguments":"{}"}]`,
		`[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"There are 12."}]}]`,
	)
	chat := client.Conversation{
		Session: "conversation-2", Provider: messages.OpenAIResponses,
		History: []json.RawMessage{json.RawMessage(`{"role":"user","content":"How many are there?"}`)},
	}
	if err := c.Loop(context.Background(), &chat, ask); err != nil {
		log.Fatal(err)
	}
	for _, item := range chat.History[2:] {
		fmt.Println(string(item))
	}
	// Output:
	// {"type":"function_call","id":"fc_1","call_id":"call_1","name":"look_up","arguments":"{}"}
	// {"type":"function_call_output","call_id":"call_1","output":"12 items"}
	// {"type":"message","role":"assistant","content":[{"type":"output_text","text":"There are 12."}]}
}

// A program that stores the conversation goes on after a crash and runs nothing twice.
func ExampleSaveWith() {
	c, stop := connect()
	defer stop()
	ctx := context.Background()

	var stored []byte // stands for a file or a row
	store := func(_ context.Context, v client.Conversation) (err error) {
		stored, err = json.Marshal(v)
		return err
	}
	chat := client.Conversation{
		Session: "conversation-3", Provider: messages.Anthropic,
		History: []json.RawMessage{json.RawMessage(`{"role":"user","content":"Note it."}`)},
	}
	crash := errors.New("the program ends here")
	ask := func(_ context.Context, history []json.RawMessage) (json.RawMessage, error) {
		if len(history) > 1 {
			return nil, crash
		}
		return json.RawMessage(`{"role":"assistant","content":[{"type":"tool_use","id":"toolu_1","name":"note","input":{}}]}`), nil
	}
	fmt.Println(errors.Is(c.Loop(ctx, &chat, ask, client.SaveWith(store)), crash))

	var again client.Conversation // in another process
	if err := json.Unmarshal(stored, &again); err != nil {
		log.Fatal(err)
	}
	ask = scripted(``, `{"role":"assistant","content":[{"type":"text","text":"Noted."}]}`)
	fmt.Println(c.Loop(ctx, &again, ask, client.SaveWith(store)), len(again.History))
	// Output:
	// true
	// <nil> 4
}

// scripted returns a model that answers with the messages of the script, one after another.
func scripted(script ...string) client.ModelFunc {
	return func(_ context.Context, history []json.RawMessage) (json.RawMessage, error) {
		answered := 0
		for _, message := range history {
			var m struct{ Role, Type string }
			if err := json.Unmarshal(message, &m); err != nil {
				return nil, err
			}
			if m.Role == "assistant" || m.Type == "function_call" {
				answered++
			}
		}
		return json.RawMessage(script[answered]), nil
	}
}
