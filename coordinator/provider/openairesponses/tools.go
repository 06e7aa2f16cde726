package openairesponses

import (
	"encoding/json"

	"github.com/toolfleet/toolfleet/coordinator/provider/export"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// toolDefinition is a function tool of the Responses API.
type toolDefinition struct {
	Type        string          `json:"type"`
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters"`
	Strict      bool            `json:"strict"` // always sent: a missing flag means true
}

// Tools returns the value of the request's "tools".
func (c Codec) Tools(tools []schemas.Tool) (json.RawMessage, error) {
	return c.ToolsWith(tools, export.Options{})
}

// ToolsWith is [Codec.Tools] with the agent's options.
func (Codec) ToolsWith(tools []schemas.Tool, o export.Options) (json.RawMessage, error) {
	defs, err := export.Prepare(messages.OpenAIResponses, tools, o)
	if err != nil {
		return nil, err
	}
	out := make([]toolDefinition, len(defs))
	for i, d := range defs {
		out[i] = toolDefinition{"function", d.Name, d.Description, d.Schema, d.Strict}
	}
	return rawjson.Marshal(out)
}
