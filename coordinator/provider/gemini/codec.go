// Package gemini translates the generateContent dialect of Google's Gemini. It reads the
// functionCall parts of the model's content, or of the whole response. It writes one user
// content that has exactly one functionResponse part for each call.
//
// Ids are optional. If a call has an id, its response has the same id. If it has none, the
// response has none: the provider then pairs calls with responses by order and name. A
// response is always wrapped as {"output": value} or {"error": text}, because the provider
// would misread an object that itself has such keys. Parts named toolCall and toolResponse are
// for server tools, and are not calls to run.
package gemini

import (
	"encoding/json"

	"github.com/toolfleet/toolfleet/coordinator/provider/dialect"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// Codec implements the dialect. It has no state.
type Codec struct{}

// Decode reads the calls of a content, or of a response's first candidate. The error is a
// *messages.Refusal.
func (Codec) Decode(message json.RawMessage) ([]messages.ToolCall, error) {
	r, turn := dialect.Read(message)
	if candidates := turn.Get("candidates"); !candidates.None() {
		candidate := candidates.First()
		turn = candidate.Get("content")
		if empty(candidate, turn) {
			return r.Calls()
		}
	}
	turn.Role("model")
	turn.Foreign("tool_calls", "function_call", "functionCall")
	parts := turn.Get("parts")
	if parts.None() && !turn.Get("role").None() { // the SDKs leave out an empty list
		return r.Calls()
	}
	for _, part := range parts.List() {
		call := part.Get("functionCall")
		if call.None() {
			call = part.Get("function_call") // messages printed from Python have this name
		}
		if !call.None() {
			r.Add(call, functionCall(call))
		}
	}
	return r.Calls()
}

// empty reports whether a candidate is finished and has no parts, for example because of
// MALFORMED_FUNCTION_CALL.
func empty(candidate, content *dialect.Node) bool {
	finished := !candidate.Get("finishReason").None() || !candidate.Get("finish_reason").None()
	return finished && (content.None() || content.Get("parts").None())
}

func functionCall(n *dialect.Node) messages.ToolCall {
	call := messages.ToolCall{ID: messages.CallID(n.Get("id").TextOr("")), Name: n.Get("name").TextOr("")}
	if call.Name == "" {
		n.Get("name").RefuseAs(messages.ClassMissingName, "is missing or empty: the response must repeat it")
	}
	call.Input, call.InputError = n.Get("args").Object()
	if n.Get("willContinue").Is("a boolean") && string(n.Get("willContinue").Raw()) == "true" {
		call.Input, call.InputError = nil, "The call was cut off before its arguments were complete. Send it again, whole."
	}
	return call
}

type content struct {
	Role  string `json:"role"`
	Parts []part `json:"parts"`
}

type part struct {
	FunctionResponse functionResponse `json:"functionResponse"`
}

type functionResponse struct {
	ID       json.RawMessage `json:"id,omitempty"`
	Name     json.RawMessage `json:"name"`
	Response response        `json:"response"`
	Parts    []mediaPart     `json:"parts,omitempty"`
}

// response has exactly one member set.
type response struct {
	Output json.RawMessage `json:"output,omitempty"`
	Error  json.RawMessage `json:"error,omitempty"`
}

// mediaPart is an image within the response. Beside the response it would be one part too
// many: there must be one part for each call.
type mediaPart struct {
	InlineData inlineData `json:"inlineData"`
}

type inlineData struct {
	MimeType string `json:"mimeType"`
	Data     string `json:"data"`
}

// Encode writes the content that answers the calls. outcomes has one outcome for each call, in
// the same order. Without calls, Encode writes null.
func (Codec) Encode(calls []messages.ToolCall, outcomes []messages.Outcome) (json.RawMessage, error) {
	answers, err := dialect.Answers(calls, outcomes)
	if err != nil || len(answers) == 0 {
		return json.RawMessage("null"), err
	}
	c := content{Role: "user"}
	for _, a := range answers {
		r := functionResponse{Name: dialect.Quote(a.Call.Name)}
		if a.Call.ID != "" {
			r.ID = dialect.Quote(string(a.Call.ID))
		}
		r.Response, r.Parts = responseOf(a)
		c.Parts = append(c.Parts, part{r})
	}
	return rawjson.Marshal(c)
}

func responseOf(a dialect.Answer) (response, []mediaPart) {
	switch {
	case a.Failed:
		return response{Error: dialect.Quote(a.Text())}, nil
	case a.Outcome.Output != nil:
		return response{Output: a.Outcome.Output}, nil
	}
	text, images := a.Attach(func(i dialect.Image) bool { return i.Format != "gif" })
	var parts []mediaPart
	for _, image := range images {
		parts = append(parts, mediaPart{inlineData{image.MimeType(), image.Data}})
	}
	return response{Output: dialect.Quote(text)}, parts
}
