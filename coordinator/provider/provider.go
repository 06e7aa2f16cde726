// Package provider translates the dialects of the model providers. A [Codec] reads the tool
// calls of an assistant message and writes what the agent appends to the conversation.
//
// Each child package implements one dialect. Three packages are for all codecs: dialect has
// shared code, export the rules of tool definitions, and codectest the tests that every codec
// passes. Codecs are pure: the same input gives the same bytes.
//
// Every codec keeps these rules. It answers each call that the client has to run once, in call
// order, and adds no other answer. It returns ids byte for byte. It refuses a message that
// does not have the provider's form. If it read such a message as one without calls, the agent
// would wait for ever. Other packages plan the calls and run them.
package provider

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/toolfleet/toolfleet/coordinator/provider/anthropic"
	"github.com/toolfleet/toolfleet/coordinator/provider/bedrock"
	"github.com/toolfleet/toolfleet/coordinator/provider/canonical"
	"github.com/toolfleet/toolfleet/coordinator/provider/export"
	"github.com/toolfleet/toolfleet/coordinator/provider/gemini"
	"github.com/toolfleet/toolfleet/coordinator/provider/openaichat"
	"github.com/toolfleet/toolfleet/coordinator/provider/openairesponses"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// Codec translates one dialect. It is safe for concurrent use.
type Codec interface {
	// Decode reads the calls of an assistant message, in order. A message without calls is no
	// error. The error is a *messages.Refusal that says what is wrong and where. If only the
	// arguments of a call cannot be read, Decode returns no error, and the call has an
	// InputError.
	Decode(message json.RawMessage) ([]messages.ToolCall, error)
	// Encode writes what the agent appends: the answers to the calls. outcomes must have one
	// outcome for each call, in the same order. If the numbers differ, Encode returns an
	// error. It answers a lost outcome with an error for the model. Without calls, it writes
	// null.
	Encode(calls []messages.ToolCall, outcomes []messages.Outcome) (json.RawMessage, error)
	// Tools writes tool definitions in the form of the provider's requests. The order of tools
	// does not change the bytes.
	Tools(tools []schemas.Tool) (json.RawMessage, error)
	// ToolsWith is like Tools, with options of the agent.
	ToolsWith(tools []schemas.Tool, o export.Options) (json.RawMessage, error)
}

// For returns the codec of a provider. The error is a *messages.Refusal that lists the known
// providers.
func For(p messages.Provider) (Codec, error) {
	switch p {
	case messages.Anthropic:
		return anthropic.Codec{}, nil
	case messages.OpenAIChat:
		return openaichat.Codec{}, nil
	case messages.OpenAIResponses:
		return openairesponses.Codec{}, nil
	case messages.Bedrock:
		return bedrock.Codec{}, nil
	case messages.Gemini:
		return gemini.Codec{}, nil
	case messages.Canonical:
		return canonical.Codec{}, nil
	}
	return nil, &messages.Refusal{
		Class:   messages.ClassUnsupportedProvider,
		Message: fmt.Sprintf("provider %.80q is not known%s; known are %v", p, meant(p), messages.Providers),
	}
}

// meant returns the question "did you mean" for the error text, with the known providers that
// begin like this name. It returns "" if there are none.
func meant(p messages.Provider) string {
	var names []string
	name := strings.ToLower(string(p))
	for _, known := range messages.Providers {
		if name != "" && (strings.HasPrefix(string(known), name) || strings.HasPrefix(name, string(known))) {
			names = append(names, string(known))
		}
	}
	if len(names) == 0 {
		return ""
	}
	return ", did you mean " + strings.Join(names, " or ") + "?"
}
