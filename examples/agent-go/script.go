package main

import (
	"encoding/json"
	"fmt"
	"log"
)

// script holds the messages of the model, turn by turn.
var script = []string{
	`{"role":"assistant","content":[
		{"type":"text","text":"I look for what is left."},
		{"type":"tool_use","id":"toolu_01","name":"Grep","input":{"pattern":"TODO","path":"examples/project/src","output_mode":"content"}},
		{"type":"tool_use","id":"toolu_02","name":"Read","input":{"file_path":"examples/project/todo.txt"}}]}`,
	`{"role":"assistant","content":[
		{"type":"text","text":"I write the list anew and check it."},
		{"type":"tool_use","id":"toolu_03","name":"Bash","input":{"command":"cd examples/project && grep -rn TODO src | LC_ALL=C sort > todo.txt"}},
		{"type":"tool_use","id":"toolu_04","name":"Read","input":{"file_path":"examples/project/todo.txt"}}]}`,
	`{"role":"assistant","content":[{"type":"text","text":"Three things are left. The list in todo.txt is up to date."}]}`,
}

// askModel stands for a request to a provider. It takes the history and returns the assistant
// message as the provider would give it.
func askModel(history []json.RawMessage) json.RawMessage {
	return json.RawMessage(script[len(history)/2])
}

// show prints a conversation, one line per block.
func show(history []json.RawMessage) {
	for _, raw := range history {
		var message struct {
			Role    string
			Content json.RawMessage
		}
		var blocks []struct {
			Type, Text, Name, ID string
			ToolUseID            string `json:"tool_use_id"`
			IsError              bool   `json:"is_error"`
		}
		if err := json.Unmarshal(raw, &message); err != nil {
			log.Fatal(err)
		}
		if json.Unmarshal(message.Content, &blocks) != nil { // the content is plain text
			var text string
			_ = json.Unmarshal(message.Content, &text)
			fmt.Printf("%s: %s\n", message.Role, text)
		}
		for _, b := range blocks {
			switch {
			case b.Type == "tool_use":
				fmt.Printf("%s: call %s of %s\n", message.Role, b.ID, b.Name)
			case b.Type == "tool_result" && b.IsError:
				fmt.Printf("%s: error of %s\n", message.Role, b.ToolUseID)
			case b.Type == "tool_result":
				fmt.Printf("%s: result of %s\n", message.Role, b.ToolUseID)
			default:
				fmt.Printf("%s: %s\n", message.Role, b.Text)
			}
		}
	}
}
