// Package provider is the door to the dialects of the model providers: a [Codec] reads the tool calls
// out of an assistant message and writes what the agent appends to the conversation.
//
// One child speaks one dialect; wire holds what they share, export the rules of tool definitions, and
// codectest the suite that every codec passes. Codecs are pure: the same bytes in give the same bytes out.
//
// What every codec holds to: each call the client has to run is answered once, in call order, and
// nothing else is added; ids are echoed byte for byte; a message that is not the provider's shape is
// refused, because reading it as "no calls" would leave the agent waiting. Running the calls, and
// deciding about them, is others' work.
package provider

import (
	"encoding/json"
	"fmt"

	"github.com/toolfleet/toolfleet/coordinator/provider/anthropic"
	"github.com/toolfleet/toolfleet/coordinator/provider/bedrock"
	"github.com/toolfleet/toolfleet/coordinator/provider/canonical"
	"github.com/toolfleet/toolfleet/coordinator/provider/gemini"
	"github.com/toolfleet/toolfleet/coordinator/provider/openaichat"
	"github.com/toolfleet/toolfleet/coordinator/provider/openairesponses"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// Codec speaks one dialect. It is safe for any number of goroutines.
type Codec interface {
	// Decode reads the calls of an assistant message, in order; none is no error. The error is a
	// *messages.Refusal that names what is wrong and where. Arguments that cannot be read are the
	// InputError of their call, not an error.
	Decode(message json.RawMessage) ([]messages.ToolCall, error)
	// Encode writes what the agent appends: the answers to calls, one outcome for each in the same
	// order, a lost one as an error. It is null for no calls. The error means that the caller broke that rule.
	Encode(calls []messages.ToolCall, outcomes []messages.Outcome) (json.RawMessage, error)
	// Tools writes tool definitions as the provider's requests hold them, the same bytes from any order.
	Tools(tools []schemas.Tool) (json.RawMessage, error)
}

// For is the codec of a provider; the error is a *messages.Refusal that lists the known ones.
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
		Class:   messages.UnsupportedProvider,
		Message: fmt.Sprintf("provider %.80q is not known; known are %v", p, messages.Providers),
	}
}
