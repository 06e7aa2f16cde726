package worker

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// Tool is a tool with the code that runs it, made by [New] or [Custom]. If its definition has
// a mistake, the Tool holds the error, and [Tool.Definition], [Run] and [Main] report it.
type Tool struct {
	definition schemas.Tool
	runner     tool.Runner
	err        error
}

// New makes a tool from a function. The name is 1 to 64 of [a-zA-Z0-9_-]. The description
// is for the model. The kind is [Read], [Write] or [Compute]. It has no default, because it
// decides what may run at the same time and what may run again.
//
// In is the type of the arguments: a struct, or a map with string keys. New makes the JSON
// Schema for the model from it. A field is required unless its json tag has omitempty or
// omitzero. The field's jsonschema tag is its description. Arguments with a property that no
// field has are refused. A type that contains itself has no such schema: see [InputSchema].
// Arguments that fit the schema but not In are refused before the tool runs. A json.Number
// keeps the digits of a number as they were written. In a field of type any, a number becomes
// a json.Number.
//
// Out is what the model reads. A string is text, a [tool.Output] is used as it is, and any
// other value becomes JSON.
//
// run gets a context that ends when the tool's time is up or the call is aborted. When the
// context ends, run must return and leave nothing running. [CallOf] and [Progress] need that
// context. Many goroutines may call run at once. If run returns an error, the model reads that
// error as the result: see [Errorf] and [TryAgain].
func New[In, Out any](name, description string, kind messages.Kind, run func(ctx context.Context, in In) (Out, error), options ...Option) Tool {
	p := promise{Tool: schemas.Tool{Name: name, Description: description, Kind: kind}}
	for _, option := range options {
		option(&p)
	}
	r := runner[In, Out]{run: run}
	err := errors.Join(p.complete(reflect.TypeFor[In]()), r.adopt(p))
	if err != nil {
		return Tool{err: fmt.Errorf("tool %s: %w", name, err)}
	}
	if p.probe != nil {
		return Custom(p.Tool, checkable[In, Out]{r, p.probe.(func(context.Context, In) (*Out, bool, error))})
	}
	return Custom(p.Tool, r)
}

// Custom makes a tool from a definition and a runner. It is for the runners of package
// worker/tool and below, and for tools that handle input and output as JSON.
func Custom(definition schemas.Tool, runner tool.Runner) Tool {
	var registry tool.Registry
	if err := registry.Add(definition, runner); err != nil {
		return Tool{err: err}
	}
	definition, err := definition.WithDefaults()
	return Tool{definition, runner, err}
}

// Definition returns what the worker announces about the tool, with all defaults set.
func (t Tool) Definition() (schemas.Tool, error) {
	if t.runner == nil && t.err == nil {
		return t.definition, errors.New("a tool is made by worker.New or worker.Custom")
	}
	return t.definition, t.err
}

// complete checks rules that only tools in Go can break. If no option gave a schema, complete
// makes one from In.
func (p *promise) complete(in reflect.Type) error {
	switch {
	case p.Kind == "":
		return errors.New("its kind is missing: want worker.Read, worker.Write or worker.Compute")
	case p.OnCrash != "" && p.Kind != Write:
		return fmt.Errorf("Idempotent and Checkable are for writes; a %s may always be run again", p.Kind)
	case p.OnCrash == messages.OnCrashIdempotent && p.probe != nil:
		return errors.New("Idempotent and Checkable: want one of them")
	case p.InputSchema != nil:
		return checkRoot(p.InputSchema)
	}
	schema, err := inputSchema(in)
	p.InputSchema = schema
	return err
}

// checkRoot refuses a schema whose root is not an object.
func checkRoot(schema json.RawMessage) error {
	var root struct{ Type any }
	if err := json.Unmarshal(schema, &root); err != nil {
		return fmt.Errorf("input_schema: %w", err)
	}
	if root.Type != "object" {
		return errors.New("input_schema: its root must have type: object, because the arguments of a call are one")
	}
	return nil
}

// runner makes the function of a tool a [tool.Runner] and a [tool.Checker].
type runner[In, Out any] struct {
	run    func(context.Context, In) (Out, error)
	checks []func(context.Context, In) error
}

// adopt takes the functions that options gave. It refuses functions whose types do not fit the
// types of the tool.
func (r *runner[In, Out]) adopt(p promise) error {
	if r.run == nil {
		return errors.New("it has no function to run")
	}
	for _, check := range p.checks {
		own, ok := check.(func(context.Context, In) error)
		if !ok {
			return fmt.Errorf("Check has a %T; want a %T", check, own)
		}
		r.checks = append(r.checks, own)
	}
	if own, ok := p.probe.(func(context.Context, In) (*Out, bool, error)); p.probe != nil && !ok {
		return fmt.Errorf("Checkable has a %T; want a %T", p.probe, own)
	}
	return nil
}

// Run runs the tool.
func (r runner[In, Out]) Run(ctx context.Context, call tool.Call) (tool.Output, error) {
	in, err := decode[In](call.Input)
	if err != nil {
		return tool.Output{}, err
	}
	out, err := r.run(withCall(ctx, call), in)
	if err != nil {
		return tool.Output{}, err
	}
	return encode(out)
}

// Check refuses arguments that do not fit In, and arguments that a function of the option
// [Check] refuses.
func (r runner[In, Out]) Check(ctx context.Context, call tool.Call) error {
	in, err := decode[In](call.Input)
	if err != nil {
		return err
	}
	for _, check := range r.checks {
		if err := check(withCall(ctx, call), in); err != nil {
			return err
		}
	}
	return nil
}

// checkable is a runner whose tool has a probe: see [Checkable].
type checkable[In, Out any] struct {
	runner[In, Out]
	probe func(context.Context, In) (*Out, bool, error)
}

// Probe asks the tool whether a lost run was applied.
func (c checkable[In, Out]) Probe(ctx context.Context, call tool.Call) (tool.Probed, error) {
	in, err := decode[In](call.Input)
	if err != nil {
		return tool.Probed{}, err
	}
	out, applied, err := c.probe(withCall(ctx, call), in)
	switch {
	case err != nil:
		return tool.Probed{}, err
	case out != nil && !applied:
		return tool.Probed{}, errors.New("the probe gives an output of a run that it says was not applied")
	case out == nil:
		return tool.Probed{Applied: applied}, nil
	}
	output, err := encode(*out)
	return tool.Probed{Applied: true, Output: output}, err
}

// decode reads arguments that already fit the schema. Its error is for the model.
func decode[In any](input json.RawMessage) (in In, err error) {
	d := json.NewDecoder(bytes.NewReader(input))
	d.UseNumber()
	d.DisallowUnknownFields()
	err = d.Decode(&in)
	var wrong *json.UnmarshalTypeError
	switch {
	case err == nil:
		return in, nil
	case errors.As(err, &wrong):
		return in, Errorf(messages.CodeInvalidArguments, "%s: %s does not fit here; want %s", cmp.Or(wrong.Field, "arguments"), wrong.Value, wrong.Type)
	}
	return in, Errorf(messages.CodeInvalidArguments, "The arguments cannot be read: %v", err)
}

func encode(out any) (tool.Output, error) {
	switch out := out.(type) {
	case string:
		return tool.Text(out), nil
	case tool.Output:
		return out, nil
	}
	return tool.JSON(out)
}
