package plan

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/schemas/safety"
)

// Tools has everything that decides the version of a tool for a call. Workers may serve
// several versions of a tool at the same time: during a rolling update, or because their tools
// file has several.
//
//	the batch names no catalogue             the current version
//	its catalogue does not have the tool     the current version
//	a worker serves the version in it        that version
//	no worker does, the input fits current   the current version
//	otherwise                                none: the call is refused with tool_version_gone
//
// A catalogue that is no longer known is treated as if it had each tool in a version that no
// worker serves.
type Tools struct {
	// Current has each tool in its current version: the newest version that is served.
	Current schemas.Catalog
	// Named is the catalogue of the batch, or nil if the batch names none or an unknown
	// one.
	Named *schemas.Catalog
	// Unknown says that the batch names a catalogue that is no longer known.
	Unknown bool
	// Served reports whether a worker serves exactly this definition. It must be set if
	// Named is.
	Served func(schemas.Tool) bool
	// Kept reports whether a call may have run already, because a record or a job of it
	// exists. Such a call is not refused. It keeps the version in the catalogue, or the
	// current version if the catalogue has none. nil: no call may have run.
	Kept func(index int) bool
}

// Choice is the version of a tool that a call uses.
type Choice struct {
	Tool  schemas.Tool
	Known bool // the tool exists, or existed when the catalogue was made
	// Gone says, for the model, why no version can be used. If it is set, Tool is the current
	// version, if there is one.
	Gone    string
	Details any // with Gone: how the input breaks the schema of the current version
}

// Choose returns the version that a call with this input uses.
func (t Tools) Choose(name string, input json.RawMessage) Choice {
	current, has := t.Current.Lookup(name)
	named, isNamed := t.named(name)
	switch {
	case isNamed && (named.Digest == current.Digest || t.Served(named)):
		return Choice{Tool: named, Known: true}
	case !has && isNamed:
		return Choice{Known: true, Gone: fmt.Sprintf("Not run: there is no tool named %s any more.", name)}
	case !has:
		return Choice{}
	case !isNamed && !t.Unknown:
		return Choice{Tool: current, Known: true}
	}
	return orGone(current, input)
}

// keep returns the choice for a call that may have run already: the version in the catalogue,
// or the current version if the catalogue has none.
func (t Tools) keep(name string) Choice {
	tool, has := t.named(name)
	if !has {
		tool, has = t.Current.Lookup(name)
	}
	return Choice{Tool: tool, Known: has}
}

// Differs reports whether a call uses another version than the one in the batch's catalogue.
func (t Tools) Differs(name string, input json.RawMessage) bool {
	named, isNamed := t.named(name)
	return isNamed && t.Choose(name, input).Tool.Digest != named.Digest
}

// orGone returns the current version if the input fits it. Otherwise Gone in the result says
// why the input does not fit.
func orGone(current schemas.Tool, input json.RawMessage) Choice {
	choice := Choice{Tool: current, Known: true}
	schema, err := schemas.Compile(current.InputSchema)
	if err == nil {
		err = schema.Validate(input)
	}
	if err == nil {
		return choice
	}
	choice.Gone = fmt.Sprintf("Not run: the definition of %s that you were given is gone, and the arguments do not fit the current one: %v", current.Name, err)
	var violations *schemas.ValidationError
	if errors.As(err, &violations) {
		choice.Details = json.RawMessage(rawjson.MustMarshal(violations))
	}
	return choice
}

// Instead returns the choice for a planned call that has not started and whose version no
// worker serves any more. The choice is not Known if the current version would need another
// plan.
func (t Tools) Instead(c Call) Choice {
	current, has := t.Current.Lookup(c.PlannedCall.Tool)
	if !has || current.Digest == c.ToolDigest || current.Kind != c.Kind {
		return Choice{}
	}
	choice := orGone(current, c.Input)
	if choice.Gone != "" {
		return choice
	}
	safe, _ := safety.Classify(current, c.Input)
	if c.ConcurrencySafe && !safe || c.Fixed && safety.DependsOnInput(current) {
		return Choice{}
	}
	return choice
}

// Waits reports whether to wait for workers before a version is chosen. It is true if the
// catalogue of the batch has an older version, and no worker serves that version or the
// current one. Workers may be about to start.
func (t Tools) Waits(name string) bool {
	named, isNamed := t.named(name)
	current, has := t.Current.Lookup(name)
	return isNamed && has && named.Digest != current.Digest && !t.Served(named) && !t.Served(current)
}

func (t Tools) named(name string) (schemas.Tool, bool) {
	if t.Named == nil {
		return schemas.Tool{}, false
	}
	return t.Named.Lookup(name)
}
