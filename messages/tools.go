package messages

import "encoding/json"

// GetTools asks for the definitions of the tools that an agent may call.
type GetTools struct {
	// Provider names the dialect of the definitions. Default: canonical.
	Provider Provider `json:"provider,omitempty"`
	// Names selects tools by name; an empty list selects all tools. A name that no tool has
	// selects nothing.
	Names []string `json:"names,omitempty"`
	// Strict says which definitions the provider enforces on its model: [StrictOff],
	// [StrictExact] or [StrictNullable]. "" chooses the value that suits the provider.
	Strict string `json:"strict,omitempty"`
	// Cache puts the provider's cache mark at the end of the definitions, where it has one.
	Cache bool `json:"cache,omitempty"`
}

// The values of [GetTools.Strict].
const (
	StrictOff      = "off"      // none
	StrictExact    = "exact"    // definitions that can be enforced without a change of meaning
	StrictNullable = "nullable" // also definitions whose optional properties become required and nullable
)

// ToolList answers a GetTools. The answer for the same tools and the same request is always
// the same, byte for byte.
type ToolList struct {
	V        int      `json:"v"`
	Provider Provider `json:"provider,omitempty"`
	// Digest names exactly these definitions, whatever the dialect.
	Digest string `json:"digest,omitempty"`
	// Tools is the value of "tools" in a request of the provider, sorted by name.
	Tools json.RawMessage `json:"tools,omitempty"`
	Error *Refusal        `json:"error,omitempty"` // why there is no answer
}
