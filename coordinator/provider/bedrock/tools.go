package bedrock

import (
	"encoding/json"

	"github.com/toolfleet/toolfleet/coordinator/provider/export"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// toolDefinition is one element of Converse's toolConfig.tools: exactly one member is set.
type toolDefinition struct {
	ToolSpec   *toolSpec   `json:"toolSpec,omitempty"`
	CachePoint *cachePoint `json:"cachePoint,omitempty"`
}

type toolSpec struct {
	Name        string      `json:"name"`
	Description string      `json:"description,omitempty"`
	InputSchema inputSchema `json:"inputSchema"`
	Strict      bool        `json:"strict,omitempty"`
}

type inputSchema struct {
	JSON json.RawMessage `json:"json"`
}

type cachePoint struct {
	Type string `json:"type"`
}

// Tools returns the value of the request's toolConfig.tools.
func (c Codec) Tools(tools []schemas.Tool) (json.RawMessage, error) {
	return c.ToolsWith(tools, export.Options{})
}

// ToolsWith is [Codec.Tools] with the agent's options.
func (Codec) ToolsWith(tools []schemas.Tool, o export.Options) (json.RawMessage, error) {
	defs, err := export.Prepare(messages.Bedrock, tools, o)
	if err != nil {
		return nil, err
	}
	out := make([]toolDefinition, 0, len(defs)+1)
	for _, d := range defs {
		out = append(out, toolDefinition{ToolSpec: &toolSpec{d.Name, d.Description, inputSchema{d.Schema}, d.Strict}})
	}
	if o.Cache && len(out) > 0 {
		out = append(out, toolDefinition{CachePoint: &cachePoint{"default"}})
	}
	return rawjson.Marshal(out)
}
