// Package openaichat translates OpenAI's Chat Completions dialect, which many other servers
// use too. It reads the tool_calls of the assistant message, or of a whole completion. It
// writes a list that has one message of role tool for each call. The content of such a message
// is a string.
//
// Arguments are a JSON string that the model wrote. If the string is broken JSON, the answer
// of the call says what is wrong. The dialect has no flag for failures, and tool messages have
// no images. So failures and images become text.
package openaichat

import (
	"encoding/json"

	"github.com/toolfleet/toolfleet/coordinator/provider/dialect"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// Codec implements the dialect. It has no state.
type Codec struct{}

// Decode reads the calls of an assistant message, or of the first choice of a completion. The
// error is a *messages.Refusal.
func (Codec) Decode(message json.RawMessage) ([]messages.ToolCall, error) {
	r, turn := dialect.Read(message)
	if choices := turn.Get("choices"); !choices.None() {
		turn = choices.First().Get("message")
	}
	if legacy := turn.Get("function_call"); !legacy.None() {
		legacy.RefuseAs(messages.ClassUnsupportedCall,
			"the single function_call of old has no id to answer; ask the model with tools instead of functions")
	}
	turn.Role("assistant")
	checkContent(turn)
	calls := turn.Get("tool_calls")
	if calls.None() {
		return r.Calls()
	}
	for _, call := range calls.List() {
		r.Add(call, toolCall(call))
	}
	return r.Calls()
}

// checkContent refuses a message that is not an assistant message of this dialect: one without
// role, content and calls, or one whose content has the calls of another dialect.
func checkContent(turn *dialect.Node) {
	content := turn.Get("content")
	switch {
	case content.None():
		if turn.Get("role").None() && turn.Get("tool_calls").None() {
			turn.Refuse("has no role, no content and no tool_calls: no assistant message")
		}
	case content.Is("an array"):
		for _, part := range content.List() {
			part.ForeignType(part.Get("type").Text())
		}
	default:
		content.Text()
	}
}

func toolCall(n *dialect.Node) messages.ToolCall {
	call := messages.ToolCall{ID: n.Get("id").ID()}
	switch kind(n) {
	case "function":
		function := n.Get("function")
		call.Name = function.Get("name").TextOr("")
		call.Input, call.InputError = function.Get("arguments").Arguments()
	case "custom":
		custom := n.Get("custom")
		call.Custom = true
		call.Name = custom.Get("name").TextOr("")
		call.Input, call.InputError = custom.Get("input").FreeText()
	default:
		n.Get("type").RefuseAs(messages.ClassUnsupportedCall, "want function or custom, got %.40q", kind(n))
	}
	return call
}

// kind returns the type of a call. If the type is missing, as with some servers, it infers the
// type.
func kind(n *dialect.Node) string {
	kind := n.Get("type").TextOr("")
	if kind != "" {
		return kind
	}
	if !n.Get("custom").None() {
		return "custom"
	}
	return "function"
}

type message struct {
	Role       string          `json:"role"`
	ToolCallID json.RawMessage `json:"tool_call_id"`
	Content    json.RawMessage `json:"content"`
}

// Encode writes the list of tool messages that answers the calls. outcomes has one outcome for
// each call, in the same order. Without calls, Encode writes null.
func (Codec) Encode(calls []messages.ToolCall, outcomes []messages.Outcome) (json.RawMessage, error) {
	answers, err := dialect.Answers(calls, outcomes)
	if err != nil || len(answers) == 0 {
		return json.RawMessage("null"), err
	}
	list := make([]message, len(answers))
	for i, a := range answers {
		list[i] = message{"tool", dialect.Quote(string(a.Call.ID)), dialect.Quote(a.MarkedText())}
	}
	return rawjson.Marshal(list)
}
