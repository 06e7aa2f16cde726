// Package canonical translates toolfleet's own dialect. It is for agents whose provider uses
// no other dialect of toolfleet:
//
//	in   {"calls":[{"id","name","input"}]}
//	out  {"results":[{"id","name", "output" | "error" | "content" with "is_error"}]}
//
// Content blocks have MCP's form and are passed through unchanged.
package canonical

import (
	"encoding/json"

	"github.com/toolfleet/toolfleet/coordinator/provider/dialect"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// Codec implements the dialect. It has no state.
type Codec struct{}

// Decode reads the calls. The error is a *messages.Refusal.
func (Codec) Decode(message json.RawMessage) ([]messages.ToolCall, error) {
	r, turn := dialect.Read(message)
	for _, n := range turn.Get("calls").List() {
		call := messages.ToolCall{ID: n.Get("id").ID(), Name: n.Get("name").TextOr("")}
		call.Input, call.InputError = n.Get("input").Object()
		r.Add(n, call)
	}
	return r.Calls()
}

type reply struct {
	Results []result `json:"results"`
}

// result has exactly one of Output, Error and Content set.
type result struct {
	ID      json.RawMessage `json:"id"`
	Name    json.RawMessage `json:"name"`
	Output  json.RawMessage `json:"output,omitempty"`
	Error   json.RawMessage `json:"error,omitempty"`
	Content *[]block        `json:"content,omitempty"`
	IsError bool            `json:"is_error,omitempty"`
}

// block is a messages.Block whose text is written byte for byte. A text block has the member
// text even if the text is empty.
type block struct {
	messages.Block
	Text json.RawMessage `json:"text,omitempty"`
}

// Encode writes the results of the calls. outcomes has one outcome for each call, in the same
// order. Without calls, Encode writes null.
func (Codec) Encode(calls []messages.ToolCall, outcomes []messages.Outcome) (json.RawMessage, error) {
	answers, err := dialect.Answers(calls, outcomes)
	if err != nil || len(answers) == 0 {
		return json.RawMessage("null"), err
	}
	m := reply{make([]result, len(answers))}
	for i, a := range answers {
		m.Results[i] = resultOf(a)
	}
	return rawjson.Marshal(m)
}

func resultOf(a dialect.Answer) result {
	r := result{ID: dialect.Quote(string(a.Call.ID)), Name: dialect.Quote(a.Call.Name)}
	switch o := a.Outcome; {
	case o.Err != nil:
		r.Error = dialect.Quote(a.Text())
	case o.Content != nil:
		r.Content, r.IsError = blocks(o.Content), o.IsError
	default:
		r.Output, r.IsError = o.Output, o.IsError
	}
	return r
}

func blocks(content []messages.Block) *[]block {
	list := make([]block, len(content))
	for i, b := range content {
		list[i].Block = b
		if b.Type == "text" || b.Text != "" {
			list[i].Text = dialect.Quote(b.Text)
		}
	}
	return &list
}
