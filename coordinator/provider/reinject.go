package provider

import (
	"encoding/json"

	"github.com/toolfleet/toolfleet/coordinator/provider/dialect"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// Reinject runs the codecs without a fleet: it answers a provider's message with results that
// the caller already has. The request is {"provider","message","results"}. results[i] is for
// the i-th call. It is {"output": any}, {"error": "text"}, {"content": [MCP blocks],
// "is_error": bool}, or null. If a result is null or missing, its call is answered with an
// error. If a result has several of these members, error counts before content, and content
// before output.
//
// The answer is {"reinjection","calls"}. Each call is {"id","name","input"} or
// {"id","name","input_error"}. A call with an input_error is answered with that error, and a
// call without a name with the error unknown_tool. In both cases the given result is ignored.
// The error of Reinject is a *messages.Refusal.
func Reinject(request []byte) ([]byte, error) {
	r, root := dialect.Read(request)
	p, results := root.Get("provider").Text(), root.Get("results").Bounded()
	if message := root.Get("message"); message.None() {
		message.Refuse("is missing")
	}
	if _, err := r.Calls(); err != nil {
		return nil, err
	}
	codec, err := For(messages.Provider(p))
	if err != nil {
		return nil, err
	}
	calls, err := codec.Decode(root.Get("message").Raw())
	if err != nil {
		return nil, err
	}
	outcomes := readResults(results, calls)
	if _, err := r.Calls(); err != nil {
		return nil, err
	}
	reinjection, err := codec.Encode(calls, outcomes)
	if err != nil {
		return nil, &messages.Refusal{Class: messages.ClassInternal, Message: err.Error()}
	}
	return rawjson.Marshal(answer{reinjection, callsOf(calls)})
}

type answer struct {
	Reinjection json.RawMessage `json:"reinjection"`
	Calls       []call          `json:"calls"`
}

// call is a call in the answer of Reinject.
type call struct {
	ID         json.RawMessage `json:"id"`
	Name       json.RawMessage `json:"name"`
	Namespace  json.RawMessage `json:"namespace,omitempty"`
	Input      json.RawMessage `json:"input,omitempty"`
	InputError string          `json:"input_error,omitempty"`
}

func callsOf(calls []messages.ToolCall) []call {
	list := make([]call, len(calls))
	for i, c := range calls {
		list[i] = call{ID: dialect.Quote(string(c.ID)), Name: dialect.Quote(c.Name), Input: c.Input, InputError: c.InputError}
		if c.Namespace != "" {
			list[i].Namespace = dialect.Quote(c.Namespace)
		}
	}
	return list
}

// readResults returns one outcome for each call.
func readResults(results *dialect.Node, calls []messages.ToolCall) []messages.Outcome {
	outcomes := make([]messages.Outcome, len(calls))
	if !results.None() {
		list := results.List()
		if len(list) > len(calls) {
			results.Refuse("has %d results for %d calls", len(list), len(calls))
			return nil
		}
		for i, n := range list {
			outcomes[i] = readResult(n)
		}
	}
	for i, c := range calls {
		switch {
		case c.Name == "":
			outcomes[i] = messages.Failed(messages.CodeUnknownTool, messages.NoName)
		case c.InputError != "":
			outcomes[i] = messages.Failed(messages.CodeInvalidArguments, c.InputError)
		}
	}
	return outcomes
}

func readResult(n *dialect.Node) (o messages.Outcome) {
	if n.None() {
		return o
	}
	o.IsError = string(n.Get("is_error").Raw()) == "true"
	switch failure, content := n.Get("error"), n.Get("content"); {
	case !failure.None():
		o.Err = &messages.Error{Message: failure.Text()}
	case !content.None():
		o.Content = []messages.Block{}
		for _, b := range content.List() {
			o.Content = append(o.Content, readBlock(b))
		}
	default:
		o.Output = n.Get("output").Bytes()
	}
	return o
}

func readBlock(n *dialect.Node) (b messages.Block) {
	n.Get("type").Text()
	if err := json.Unmarshal(n.Bytes(), &b); err != nil {
		n.Refuse("is no MCP content block: %v", err)
	}
	b.Text = n.Get("text").TextOr("") // byte for byte; encoding/json replaces lone surrogates
	return b
}
