package gemini

import (
	"encoding/json"

	"github.com/toolfleet/toolfleet/coordinator/provider/export"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// toolDefinitions is the single element of generateContent's tools.
type toolDefinitions struct {
	FunctionDeclarations []functionDeclaration `json:"functionDeclarations"`
}

// functionDeclaration has its schema as JSON Schema. The older member "parameters" accepts
// only a part of JSON Schema.
type functionDeclaration struct {
	Name                 string          `json:"name"`
	Description          string          `json:"description,omitempty"`
	ParametersJSONSchema json.RawMessage `json:"parametersJsonSchema"`
}

// Tools returns the value of the request's "tools".
func (c Codec) Tools(tools []schemas.Tool) (json.RawMessage, error) {
	return c.ToolsWith(tools, export.Options{})
}

// ToolsWith is [Codec.Tools] with the agent's options. Gemini has neither strict tools nor a
// cache mark.
func (Codec) ToolsWith(tools []schemas.Tool, o export.Options) (json.RawMessage, error) {
	defs, err := export.Prepare(messages.Gemini, tools, o)
	if err != nil {
		return nil, err
	}
	if len(defs) == 0 {
		return json.RawMessage("[]"), nil
	}
	out := make([]functionDeclaration, len(defs))
	for i, d := range defs {
		out[i] = functionDeclaration{d.Name, d.Description, d.Schema}
	}
	return rawjson.Marshal([]toolDefinitions{{out}})
}
