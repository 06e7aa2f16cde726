package anthropic

import (
	"encoding/json"

	"github.com/toolfleet/toolfleet/coordinator/provider/export"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// toolDefinition is a custom tool of the Messages API.
type toolDefinition struct {
	Name         string          `json:"name"`
	Description  string          `json:"description,omitempty"`
	InputSchema  json.RawMessage `json:"input_schema"`
	Strict       bool            `json:"strict,omitempty"`
	CacheControl *cacheControl   `json:"cache_control,omitempty"`
}

type cacheControl struct {
	Type string `json:"type"`
}

// Tools returns the value of the request's "tools".
func (c Codec) Tools(tools []schemas.Tool) (json.RawMessage, error) {
	return c.ToolsWith(tools, export.Options{})
}

// ToolsWith is [Codec.Tools] with the agent's options.
func (Codec) ToolsWith(tools []schemas.Tool, o export.Options) (json.RawMessage, error) {
	defs, err := export.Prepare(messages.Anthropic, tools, o)
	if err != nil {
		return nil, err
	}
	out := make([]toolDefinition, len(defs))
	for i, d := range defs {
		out[i] = toolDefinition{Name: d.Name, Description: d.Description, InputSchema: d.Schema, Strict: d.Strict}
	}
	// A cache mark covers everything before it, so the mark on the last tool covers all tools.
	if o.Cache && len(out) > 0 {
		out[len(out)-1].CacheControl = &cacheControl{"ephemeral"}
	}
	return rawjson.Marshal(out)
}
