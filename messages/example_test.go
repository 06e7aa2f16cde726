package messages_test

import (
	"encoding/json"
	"fmt"

	"github.com/toolfleet/toolfleet/messages"
)

// The reinjection of the OpenAI dialects is a list. What was said to the model meanwhile comes
// after it.
func ExampleReply_Extend() {
	reply := messages.Reply{
		Reinjection: json.RawMessage(`[{"role":"tool","tool_call_id":"call_1","content":"12"},{"role":"tool","tool_call_id":"call_2","content":"7"}]`),
		Steering:    json.RawMessage(`[{"role":"user","content":"Hurry up."}]`),
		Results:     make([]messages.Result, 2),
	}
	fmt.Println(reply.Done())
	for _, message := range reply.Extend(nil) {
		fmt.Println(string(message))
	}
	// Output:
	// false
	// {"role":"tool","tool_call_id":"call_1","content":"12"}
	// {"role":"tool","tool_call_id":"call_2","content":"7"}
	// {"role":"user","content":"Hurry up."}
}
