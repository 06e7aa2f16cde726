// Package anthropic translates Anthropic's Messages dialect. It reads the tool_use blocks in
// the content of the assistant message. It writes one user message that has only tool_result
// blocks: the provider refuses text before them, and text after them ends the model's turn.
//
// Server tools have other block types (server_tool_use, mcp_tool_use). Only blocks of exactly
// the type tool_use are calls to run. A call to a member of a toolset also has the name of the
// toolset, which is part of the tool's name. The result repeats it. The result does not repeat
// the caller of a programmatic call, because tool_result has no member for it.
package anthropic

import (
	"encoding/json"

	"github.com/toolfleet/toolfleet/coordinator/provider/dialect"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// Codec implements the dialect. It has no state.
type Codec struct{}

// Decode reads the calls of an assistant message. The error is a *messages.Refusal.
func (Codec) Decode(message json.RawMessage) ([]messages.ToolCall, error) {
	r, turn := dialect.Read(message)
	turn.Role("assistant")
	turn.Foreign("tool_calls", "function_call")
	content := turn.Get("content")
	if content.Is("a string") { // stored conversations have a text like this
		return r.Calls()
	}
	for _, block := range content.List() {
		switch blockType := block.Get("type").Text(); blockType {
		case "tool_use":
			r.Add(block, toolUse(block))
		default:
			block.ForeignType(blockType)
		}
	}
	return r.Calls()
}

func toolUse(block *dialect.Node) messages.ToolCall {
	call := messages.ToolCall{
		ID:        block.Get("id").ID(),
		Name:      block.Get("name").TextOr(""),
		Namespace: block.Get("toolset_name").TextOr(""),
		Caller:    block.Get("caller").Bounded().Raw(),
	}
	call.Input, call.InputError = block.Get("input").Object()
	return call
}

type message struct {
	Role    string       `json:"role"`
	Content []toolResult `json:"content"`
}

type toolResult struct {
	Type        string          `json:"type"`
	ToolUseID   json.RawMessage `json:"tool_use_id"`
	ToolsetName json.RawMessage `json:"toolset_name,omitempty"`
	Content     []block         `json:"content"`
	IsError     bool            `json:"is_error,omitempty"`
}

type block struct {
	Type   string          `json:"type"`
	Text   json.RawMessage `json:"text,omitempty"`
	Source *source         `json:"source,omitempty"`
}

type source struct {
	Type      string `json:"type"`
	MediaType string `json:"media_type"`
	Data      string `json:"data"`
}

// Encode writes the user message that answers the calls. outcomes has one outcome for each
// call, in the same order. Without calls, Encode writes null.
func (Codec) Encode(calls []messages.ToolCall, outcomes []messages.Outcome) (json.RawMessage, error) {
	answers, err := dialect.Answers(calls, outcomes)
	if err != nil || len(answers) == 0 {
		return json.RawMessage("null"), err
	}
	m := message{Role: "user"}
	for _, a := range answers {
		result := toolResult{
			Type:      "tool_result",
			ToolUseID: dialect.Quote(string(a.Call.ID)),
			Content:   content(a),
			IsError:   a.Failed,
		}
		if a.Call.Namespace != "" {
			result.ToolsetName = dialect.Quote(a.Call.Namespace)
		}
		m.Content = append(m.Content, result)
	}
	return rawjson.Marshal(m)
}

// content returns the answer as one or more blocks. It never returns blank text, because the
// API refuses it. An error may have only text, and so may the answer to a programmatic call.
func content(a dialect.Answer) []block {
	parts := a.Visible(!a.Failed && !programmatic(a.Call))
	blocks := make([]block, len(parts))
	for i, p := range parts {
		if p.Image != nil {
			blocks[i] = block{Type: "image", Source: &source{"base64", p.Image.MimeType(), p.Image.Data}}
		} else {
			blocks[i] = block{Type: "text", Text: dialect.Quote(p.Text)}
		}
	}
	return blocks
}

// programmatic reports whether code in the provider's sandbox made the call, not the model
// itself.
func programmatic(call messages.ToolCall) bool {
	var caller struct{ Type string }
	return json.Unmarshal(call.Caller, &caller) == nil && caller.Type != "direct"
}
