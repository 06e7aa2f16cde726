package messages

import "encoding/json"

// GetTools asks for the definitions of the tools that an agent may call.
type GetTools struct {
	// Provider names the dialect of the definitions. Default: canonical.
	Provider Provider `json:"provider,omitempty"`
	// Names selects tools; none selects all. A name that no tool has selects none.
	Names []string `json:"names,omitempty"`
	// Strict says which definitions the provider enforces: off, exact or nullable; "" is what suits
	// the provider. Cache ends the definitions with the provider's cache mark, where it has one.
	Strict string `json:"strict,omitempty"`
	Cache  bool   `json:"cache,omitempty"`
}

// ToolList answers a GetTools. For the same tools and the same request it is the same, byte for
// byte.
type ToolList struct {
	V        int      `json:"v"`
	Provider Provider `json:"provider,omitempty"`
	// Digest names exactly these definitions, whatever the dialect.
	Digest string `json:"digest,omitempty"`
	// Tools is the value of "tools" in a request of the provider, sorted by name.
	Tools json.RawMessage `json:"tools,omitempty"`
	Error *Refusal        `json:"error,omitempty"` // why there is no answer
}
