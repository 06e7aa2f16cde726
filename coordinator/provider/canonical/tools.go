package canonical

import (
	"encoding/json"

	"github.com/toolfleet/toolfleet/coordinator/provider/export"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// toolDefinition is what an agent may want to know about a tool. Its members are named as
// in the tools file.
type toolDefinition struct {
	Name        string           `json:"name"`
	Description string           `json:"description,omitempty"`
	Kind        messages.Kind    `json:"kind"`
	OnCrash     messages.OnCrash `json:"on_crash,omitempty"`
	Risk        messages.Tier    `json:"risk,omitempty"`
	TimeoutMS   int64            `json:"timeout_ms,omitempty"`
	InputSchema json.RawMessage  `json:"input_schema"`
}

// Tools returns {"tools":[...]}. Each schema is the tool's own. Only its root gets a type.
func (c Codec) Tools(tools []schemas.Tool) (json.RawMessage, error) {
	return c.ToolsWith(tools, export.Options{})
}

// ToolsWith is [Codec.Tools] with the agent's options. The canonical dialect has neither
// strict tools nor a cache mark.
func (Codec) ToolsWith(tools []schemas.Tool, o export.Options) (json.RawMessage, error) {
	defs, err := export.Prepare(messages.Canonical, tools, o)
	if err != nil {
		return nil, err
	}
	out := make([]toolDefinition, len(defs))
	for i, d := range defs {
		kind := d.Tool.Kind
		if kind == "" {
			kind = messages.KindWrite
		}
		out[i] = toolDefinition{d.Name, d.Description, kind, d.Tool.OnCrash, d.Tool.Risk, d.Tool.TimeoutMS, d.Schema}
	}
	return rawjson.Marshal(struct {
		Tools []toolDefinition `json:"tools"`
	}{out})
}
