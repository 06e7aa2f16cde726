// Package bedrock translates the Converse dialect of Amazon Bedrock. It reads the toolUse
// blocks of the assistant message, or of the whole response. It writes one user message with
// toolResult blocks. A toolResult of a failed call has the status error.
//
// In a result, json must be an object and text must not be blank. A message that was printed
// from the Go structs of the AWS SDK is refused, because its members have other names than on
// the wire.
package bedrock

import (
	"encoding/json"

	"github.com/toolfleet/toolfleet/coordinator/provider/dialect"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// Codec implements the dialect. It has no state.
type Codec struct{}

// Decode reads the calls of an assistant message, or of a Converse response. The error is a
// *messages.Refusal.
func (Codec) Decode(message json.RawMessage) ([]messages.ToolCall, error) {
	r, turn := dialect.Read(message)
	if output := turn.Get("output"); !output.None() {
		turn = output.Get("message")
	}
	turn.Role("assistant")
	turn.Foreign("tool_calls", "function_call")
	for _, block := range turn.Get("content").List() {
		// The member type is of Anthropic's blocks. The other members come from printed Go
		// structs.
		block.Foreign("type", "Value", "ToolUse", "ToolUseId")
		use := block.Get("toolUse")
		if use.None() || use.Get("type").TextOr("") == "server_tool_use" {
			continue
		}
		r.Add(use, toolUse(use))
	}
	return r.Calls()
}

func toolUse(use *dialect.Node) messages.ToolCall {
	call := messages.ToolCall{ID: use.Get("toolUseId").ID(), Name: use.Get("name").TextOr("")}
	call.Input, call.InputError = use.Get("input").Object()
	return call
}

type message struct {
	Role    string  `json:"role"`
	Content []block `json:"content"`
}

type block struct {
	ToolResult toolResult `json:"toolResult"`
}

type toolResult struct {
	ToolUseID json.RawMessage `json:"toolUseId"`
	Content   []content       `json:"content"`
	// Status is left out on success, because not every model's adapter accepts it.
	Status string `json:"status,omitempty"`
}

// content has exactly one member set.
type content struct {
	Text  json.RawMessage `json:"text,omitempty"`
	JSON  json.RawMessage `json:"json,omitempty"`
	Image *image          `json:"image,omitempty"`
}

type image struct {
	Format string `json:"format"`
	Source source `json:"source"`
}

type source struct {
	Bytes string `json:"bytes"` // base64
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
		result := toolResult{ToolUseID: dialect.Quote(string(a.Call.ID)), Content: contentOf(a)}
		if a.Failed {
			result.Status = "error"
		}
		m.Content = append(m.Content, block{result})
	}
	return rawjson.Marshal(m)
}

func contentOf(a dialect.Answer) []content {
	if out := a.Outcome.Output; !a.Failed && len(out) > 0 && out[0] == '{' {
		return []content{{JSON: out}}
	}
	var list []content
	for _, p := range a.Visible(!a.Failed) {
		if p.Image != nil {
			list = append(list, content{Image: &image{p.Image.Format, source{p.Image.Data}}})
		} else {
			list = append(list, content{Text: dialect.Quote(p.Text)})
		}
	}
	return list
}
