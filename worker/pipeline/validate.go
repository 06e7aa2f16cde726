package pipeline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// validate is the validate phase: it checks the arguments against the tool's schema. It does
// not convert values to the types in the schema. A violation says where it is and what was
// expected there, so that the model can correct itself. The size is checked before anything
// reads the arguments.
func (c *callRun) validate(context.Context) error {
	var known bool
	if c.tool, known = c.cfg.Registry.Version(c.job.Tool, c.job.ToolDigest); !known {
		return fail(messages.StatusUnknownTool, messages.CodeUnknownTool, "There is no tool named %.80q, or not in the version of this call.", c.job.Tool)
	}
	c.result.Kind = c.tool.Kind
	if len(c.input) > c.cfg.MaxInput {
		return fail(messages.StatusValidationError, messages.CodeTooLarge,
			"The arguments have %d bytes; the limit is %d. Do it in several smaller calls.", len(c.input), c.cfg.MaxInput)
	}
	schema, err := schemas.Compile(c.tool.InputSchema) // from the cache: the registry has compiled it
	if err != nil {
		c.log().Error("the schema of the tool cannot be compiled; correct its definition", "err", err)
		return fail(messages.StatusError, messages.CodeInternal,
			"The schema of %s cannot be used. It was not run.", c.job.Tool)
	}
	if err := schema.Validate(c.input); err != nil {
		f := fail(messages.StatusValidationError, messages.CodeInvalidArguments,
			"The arguments do not fit the schema of %s: %v", c.job.Tool, err)
		var violations *schemas.ValidationError
		if errors.As(err, &violations) {
			f.err.Details = json.RawMessage(rawjson.MustMarshal(violations))
		}
		return f
	}
	if got := rawjson.TypeOf(c.input); got != "an object" { // a schema may allow other types
		return fail(messages.StatusValidationError, messages.CodeInvalidArguments, "The arguments are wrong: want an object, got %s.", got)
	}
	return nil
}

func clone(raw json.RawMessage) json.RawMessage { return bytes.Clone(raw) }
