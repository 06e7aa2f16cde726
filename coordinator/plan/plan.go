// Package plan puts the calls of a batch into ordered stages.
//
// The stages keep the order in which the model wrote the calls. Consecutive calls that may
// overlap form one stage. Any other call is a stage of its own. A stage starts when the
// previous stage has ended:
//
//	[Grep Glob Read Bash Grep]  ->  [Grep Glob Read] [Bash] [Grep]
//
// A read after a write sees the effect of the write. A read before the write does not see it.
//
// A tool may have several versions. [Tools] decides which one a call uses.
//
// The package is pure: no clock, no I/O, no goroutine. With the same calls and the same
// tools, every coordinator makes the same plan.
package plan

import (
	"encoding/json"
	"fmt"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/schemas/safety"
)

// Plan holds the calls of a batch and the stages in which they run.
type Plan struct {
	Calls  []Call
	Stages [][]int // indices into Calls, in call order
}

// Call is one call with the plan's decisions about it.
type Call struct {
	wire.PlannedCall
	ID     messages.CallID
	Input  json.RawMessage
	Reason string // why the call may or may not overlap other calls, for people
	// Tool is the definition of the tool: for example its timeout, and what may be done after
	// a crash.
	Tool schemas.Tool
}

// Claims reports whether a worker must claim the call before it runs. It is true for every
// write.
func (c Call) Claims() bool { return c.Kind == messages.KindWrite }

// New plans the calls with the tools of the catalog. It refuses a call if its tool is unknown
// or its arguments could not be read. A refused call has its result from the start, and does
// not delay other calls.
func New(calls []messages.ToolCall, catalog schemas.Catalog) Plan {
	return With(calls, Tools{Current: catalog})
}

// With is like New, for a batch that may name the versions of tools that its calls use. It
// also refuses a call if its version is gone.
func With(calls []messages.ToolCall, tools Tools) Plan {
	planned := make([]Call, len(calls))
	for i, c := range calls {
		planned[i] = classify(c, tools)
	}
	return Plan{Calls: planned, Stages: stages(planned)}
}

// classify decides whether a call can run, and whether it may overlap other calls.
func classify(c messages.ToolCall, tools Tools) Call {
	choice := tools.Choose(c.Tool(), c.Input)
	if choice.Gone != "" && tools.Kept != nil && tools.Kept(c.Index) {
		choice = tools.keep(c.Tool())
	}
	tool := choice.Tool
	call := Call{
		PlannedCall: wire.PlannedCall{Index: c.Index, Tool: c.Tool(), Kind: tool.Kind},
		ID:          c.ID, Input: c.Input, Tool: tool,
	}
	if choice.Gone == "" {
		call.ToolDigest, call.Pool = tool.Digest, tool.Pool
	}
	switch {
	case !choice.Known:
		call.refuse(messages.StatusUnknownTool, messages.CodeUnknownTool, unknownTool(c.Tool(), tools.Current))
	case c.InputError != "":
		call.refuse(messages.StatusValidationError, messages.CodeInvalidArguments, c.InputError)
	case choice.Gone != "" && tool.Name == "":
		call.refuse(messages.StatusUnknownTool, messages.CodeToolVersionGone, choice.Gone)
	case choice.Gone != "":
		call.refuse(messages.StatusValidationError, messages.CodeToolVersionGone, choice.Gone)
		call.Refused.Err.Details = choice.Details
	default:
		call.ConcurrencySafe, call.Reason = safety.Classify(tool, c.Input)
		call.Fixed = call.ConcurrencySafe && !safety.DependsOnInput(tool)
		if call.Claims() {
			call.InputHash = wire.InputHash(c.Input)
		}
	}
	return call
}

// refuse gives the call a result, so that it never runs.
func (c *Call) refuse(status messages.Status, code messages.Code, message string) {
	c.Reason = "never runs: " + string(code)
	c.Refused = &messages.Result{
		V: messages.Version, Index: c.Index, CallID: c.ID, Tool: c.PlannedCall.Tool, Kind: c.Kind,
		Status: status, Outcome: messages.Failed(code, message),
	}
}

// unknownTool returns the error text for an unknown tool. It names some tools that the
// model can call instead.
func unknownTool(name string, catalog schemas.Catalog) string {
	const most = 20
	message := fmt.Sprintf("There is no tool named %.80q.", name)
	if name == "" {
		message = messages.NoName
	}
	tools := catalog.Tools()
	if len(tools) == 0 {
		return message + " No worker has announced any tool yet."
	}
	for i, t := range tools {
		switch {
		case i == most:
			return message + fmt.Sprintf(" and %d more.", len(tools)-most)
		case i == 0:
			message += " Tools that exist: " + t.Name
		default:
			message += ", " + t.Name
		}
	}
	if len(tools) > 0 {
		message += "."
	}
	return message
}

// stages groups the calls and sets the stage of each call. A refused call never runs, so it
// counts as a call that may overlap others.
func stages(calls []Call) [][]int {
	var stages [][]int
	open := false // the last stage accepts more calls that may overlap
	for i := range calls {
		together := calls[i].ConcurrencySafe || calls[i].Refused != nil
		if !open || !together {
			stages = append(stages, nil)
		}
		last := len(stages) - 1
		stages[last] = append(stages[last], i)
		calls[i].Stage = last
		open = together
	}
	return stages
}

// Adopt returns the plan with the decisions of a record that another coordinator has stored
// first. It returns an error if the record has another number of calls.
func (p Plan) Adopt(record wire.PlanRecord) (Plan, error) {
	if len(record.Calls) != len(p.Calls) {
		return p, fmt.Errorf("the stored plan has %d calls, the batch has %d", len(record.Calls), len(p.Calls))
	}
	calls := make([]Call, len(p.Calls))
	for i, c := range p.Calls {
		calls[i] = c
		calls[i].PlannedCall = record.Calls[i]
		if calls[i].Tool.Digest != record.Calls[i].ToolDigest {
			calls[i].Reason = "as planned with an earlier definition of the tool"
		}
	}
	return Plan{Calls: calls, Stages: stages(calls)}, nil
}

// Record returns the decisions about all calls, for the first plan record.
func (p Plan) Record() []wire.PlannedCall {
	record := make([]wire.PlannedCall, len(p.Calls))
	for i, c := range p.Calls {
		record[i] = c.PlannedCall
	}
	return record
}
