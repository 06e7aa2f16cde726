// Package openairesponses translates OpenAI's Responses dialect. It reads the output list
// of a response, or the whole response. It writes a list with one function_call_output or
// custom_tool_call_output for each call.
//
// The call_id pairs a call with its output. The id of the item is not used. Some types of
// calls (computer, shell, patch, approval) are for the client, but need another type of
// answer. A message with such a call is refused: if the call were dropped, the agent would
// wait for ever. If the same list has the output of a call, the provider has run that call.
package openairesponses

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/coordinator/provider/dialect"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// Codec implements the dialect. It has no state.
type Codec struct{}

// notOurs lists the types of calls that are for the client but need another type of answer.
var notOurs = []string{
	"computer_call", "local_shell_call", "shell_call", "apply_patch_call", "mcp_approval_request", "tool_search_call",
}

// Decode reads the calls of an output list, or of a response. The error is a
// *messages.Refusal.
func (Codec) Decode(message json.RawMessage) ([]messages.ToolCall, error) {
	r, output := dialect.Read(message)
	if !output.Is("an array") {
		output = output.Get("output")
	}
	items := output.List()
	answered := answeredCalls(items)
	for _, item := range items {
		itemType := item.Get("type").Text()
		switch {
		case strings.HasSuffix(itemType, "_call") && answered[pairing(itemType, item)]:
		case itemType == "function_call":
			r.Add(item, functionCall(item))
		case itemType == "custom_tool_call":
			r.Add(item, customCall(item))
		case itemType == "tool_search_call" && item.Get("execution").TextOr("server") != "client":
		case slices.Contains(notOurs, itemType):
			item.RefuseAs(messages.ClassUnsupportedCall,
				"%s needs an answer of its own type, which the agent must give itself", itemType)
		default:
			item.ForeignType(itemType)
		}
	}
	return r.Calls()
}

// answeredCalls returns the pairing keys of the calls whose output is in the list.
func answeredCalls(items []*dialect.Node) map[string]bool {
	answered := map[string]bool{}
	for _, item := range items {
		if callType, ok := strings.CutSuffix(item.Get("type").Text(), "_output"); ok {
			answered[pairing(callType, item)] = true
		}
	}
	return answered
}

// pairing returns the key that a call has in common with its output. It returns "" for an item
// without a call_id.
func pairing(callType string, item *dialect.Node) string {
	id := item.Get("call_id")
	if !id.Is("a string") {
		return ""
	}
	return callType + " " + id.Text()
}

func functionCall(item *dialect.Node) messages.ToolCall {
	call := anyCall(item)
	call.Input, call.InputError = item.Get("arguments").Arguments()
	if cutOff(item) {
		call.Input, call.InputError = nil, cutOffText
	}
	return call
}

func customCall(item *dialect.Node) messages.ToolCall {
	call := anyCall(item)
	call.Custom = true
	call.Input, call.InputError = item.Get("input").FreeText()
	if cutOff(item) {
		call.Input, call.InputError = nil, cutOffText
	}
	return call
}

func anyCall(item *dialect.Node) messages.ToolCall {
	return messages.ToolCall{
		ID:        item.Get("call_id").ID(),
		Name:      item.Get("name").TextOr(""),
		Namespace: item.Get("namespace").TextOr(""),
		Caller:    item.Get("caller").Bounded().Raw(),
	}
}

const cutOffText = "The call was cut off before its arguments were complete (status incomplete). Send it again, whole."

// cutOff reports whether the provider marked the call as incomplete. Its arguments are then
// cut off, even if they are valid JSON by chance.
func cutOff(item *dialect.Node) bool { return item.Get("status").TextOr("") == "incomplete" }

type output struct {
	Type      string          `json:"type"`
	CallID    json.RawMessage `json:"call_id"`
	Name      json.RawMessage `json:"name,omitempty"`
	Namespace json.RawMessage `json:"namespace,omitempty"`
	Caller    json.RawMessage `json:"caller,omitempty"`
	Output    any             `json:"output"` // text as a JSON string, or a list of parts
}

type part struct {
	Type     string          `json:"type"`
	Text     json.RawMessage `json:"text,omitempty"`
	ImageURL string          `json:"image_url,omitempty"`
	Detail   string          `json:"detail,omitempty"`
}

// Encode writes the list of outputs that answers the calls. outcomes has one outcome for each
// call, in the same order. Without calls, Encode writes null.
func (Codec) Encode(calls []messages.ToolCall, outcomes []messages.Outcome) (json.RawMessage, error) {
	answers, err := dialect.Answers(calls, outcomes)
	if err != nil || len(answers) == 0 {
		return json.RawMessage("null"), err
	}
	list := make([]output, len(answers))
	for i, a := range answers {
		list[i] = output{
			Type:   "function_call_output",
			CallID: dialect.Quote(string(a.Call.ID)),
			Caller: echoedCaller(a.Call),
			Output: outputOf(a),
		}
		if a.Call.Custom {
			list[i].Type = "custom_tool_call_output"
		} else if a.Call.Namespace != "" { // a custom call's output has no namespace
			list[i].Name, list[i].Namespace = dialect.Quote(a.Call.Name), dialect.Quote(a.Call.Namespace)
		}
	}
	return rawjson.Marshal(list)
}

// outputOf returns text, or a list of parts if there are images.
func outputOf(a dialect.Answer) any {
	if !a.HasImage() {
		return dialect.Quote(a.MarkedText())
	}
	var parts []part
	for _, p := range a.MarkedParts() {
		if p.Image != nil {
			// The image of a custom call must have a detail. The image of a function call may
			// have one.
			parts = append(parts, part{Type: "input_image", ImageURL: p.Image.DataURL(), Detail: "auto"})
		} else {
			parts = append(parts, part{Type: "input_text", Text: dialect.Quote(p.Text)})
		}
	}
	return parts
}

// echoedCaller returns the caller of a call that a program made, because the output must go
// back to that program. For any other call it returns nil.
func echoedCaller(call messages.ToolCall) json.RawMessage {
	var caller struct{ Type string }
	if json.Unmarshal(call.Caller, &caller) != nil || caller.Type == "direct" {
		return nil
	}
	return call.Caller
}
