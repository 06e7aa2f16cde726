package mcptool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// runner runs one tool of a server.
type runner struct {
	server  *Server
	promise schemas.Tool
	name    string // the server's name for the tool
	digest  string // the digest of the definition in force
	checks  []string
}

// newRunner returns the runner of a tool. The runner is a tool.Prober if the tool is
// checkable. It is a tool.Checker and a tool.Permitter if the program has checks.
func newRunner(s *Server, promise schemas.Tool, d Definition) tool.Runner {
	r := &runner{server: s, promise: promise, name: d.Name, digest: d.Digest()}
	if s.cfg.Server.Program {
		r.checks, _ = checksOf(d.Meta) // Promise has refused wrong checks
	}
	probes := promise.OnCrash == messages.OnCrashCheckable
	switch {
	case len(r.checks) > 0 && probes:
		return checkingProber{checking{r}, checkable{r}}
	case len(r.checks) > 0:
		return checking{r}
	case probes:
		return checkable{r}
	}
	return r
}

// Run runs the tool. If its server dies during the run, on_crash decides: a call that may be
// repeated runs once more, and a program with a probe is asked first.
func (r *runner) Run(ctx context.Context, call tool.Call) (tool.Output, error) {
	out, err := tool.Recover(ctx, r.promise, call, r.runOnce, r.probe)
	if err != nil {
		return tool.Output{}, r.failure(ctx, err)
	}
	return out, nil
}

// runOnce sends the call to a process.
func (r *runner) runOnce(ctx context.Context, call tool.Call) (tool.Output, error) {
	result, err := r.server.send(ctx, r.message(ctx, call, ""))
	if err != nil {
		return tool.Output{}, err
	}
	return r.output(ctx, result)
}

// probe asks a program whether a run was applied.
func (r *runner) probe(ctx context.Context, call tool.Call) (tool.Probed, error) {
	result, err := r.server.ask(ctx, r.message(ctx, call, probing))
	switch {
	case ctx.Err() != nil:
		return tool.Probed{}, context.Cause(ctx)
	case err != nil:
		return tool.Probed{}, fmt.Errorf("probe of %s: %w", r.promise.Name, err)
	case result.IsError:
		return tool.Probed{}, fmt.Errorf("probe of %s: it failed: %.200s", r.promise.Name, texts(result))
	}
	probed, err := tool.ReadProbed([]byte(texts(result)))
	if err != nil {
		return tool.Probed{}, fmt.Errorf("probe of %s: %w", r.promise.Name, err)
	}
	return probed, nil
}

// message returns what the server gets: the call, or a question about it.
func (r *runner) message(ctx context.Context, call tool.Call, question string) message {
	return message{
		tenant: call.Tenant, tool: r.name, digest: r.digest, meta: r.meta(ctx, call, question), arguments: call.Input, report: call.Progress,
		// A service has no process to kill, so its writes need no session of their own.
		alone: question == "" && !tool.Harmless(r.promise) && r.server.cfg.Server.URL == "",
	}
}

// meta returns the `_meta` of a call. Only local programs get the ids of the call's session
// and batch.
func (r *runner) meta(ctx context.Context, call tool.Call, question string) mcp.Meta {
	meta := mcp.Meta{
		metaPrefix + "key":     call.IdempotencyKey,
		metaPrefix + "fence":   strconv.FormatUint(call.Fence, 10), // a double may be too small for it
		metaPrefix + "attempt": call.Attempt,
	}
	if r.server.cfg.Server.Program {
		meta[metaPrefix+"session"] = string(call.Session)
		meta[metaPrefix+"batch"] = string(call.Batch)
		meta[metaPrefix+"call_id"] = string(call.ID)
		meta[metaPrefix+"index"] = call.Index
		meta[metaPrefix+"tenant"] = string(call.Tenant)
		if call.User != "" {
			meta[metaPrefix+"user"] = call.User
		}
		if len(call.Labels) > 0 {
			meta[metaPrefix+"labels"] = call.Labels
		}
		switch question {
		case "":
		case probing:
			meta[metaPrefix+"probe"] = true
		default:
			meta[metaPrefix+"check"] = question
		}
	}
	addTrace(ctx, meta)
	return meta
}

// failure returns the error that the model reads.
func (r *runner) failure(ctx context.Context, err error) error {
	var own *messages.Error
	var notRun *notRunError
	var lost *tool.LostError
	var said *jsonrpc.Error
	switch {
	case errors.As(err, &own): // the tool's own error
		return own
	case ctx.Err() != nil && errors.Is(err, tool.ErrNotStarted):
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &notRun):
		return &messages.Error{Code: notRun.code, Message: notRun.text, Retryable: notRun.retryable}
	case errors.As(err, &lost) && (tool.Harmless(r.promise) || lost.Unsent):
		return &messages.Error{Code: codeServerDown, Message: fmt.Sprintf("The server %s was lost while it ran %s.", r.server.Name(), r.name), Retryable: true}
	case errors.As(err, &lost):
		return tool.Unknown(r.promise.Name, fmt.Sprintf("the server %s was lost while it ran it", r.server.Name()))
	case errors.As(err, &said):
		return &messages.Error{Code: messages.CodeToolError, Message: clean(said.Message)}
	}
	return err
}

// output returns what the model reads of a result.
func (r *runner) output(ctx context.Context, result *mcp.CallToolResult) (tool.Output, error) {
	if result.IsError {
		failed := ownFailure(result)
		if note := r.server.cfg.Sandbox.Note(failed.Message); note != "" {
			tracing.MarkRefused(ctx)
			failed.Message += "\n" + note
		}
		return tool.Output{}, failed
	}
	blocks, err := contentOf(result)
	switch {
	case err != nil:
		return tool.Output{}, err
	}
	out := tool.Output{Content: blocks}
	switch {
	case len(blocks) == 0:
		out = tool.Text("")
	case len(blocks) == 1 && blocks[0].Type == "text":
		out = tool.Printed([]byte(blocks[0].Text))
	}
	if details, ok := result.Meta[metaPrefix+"details"]; ok {
		if raw, err := json.Marshal(details); err == nil {
			out.Details = raw
		}
	}
	return out, nil
}

// contentOf returns the content of a result as blocks. Structured content becomes one more block,
// unless a block repeats it already.
func contentOf(result *mcp.CallToolResult) ([]messages.Block, error) {
	var blocks []messages.Block
	for _, content := range result.Content {
		raw, err := json.Marshal(content)
		var block messages.Block
		if err == nil {
			err = json.Unmarshal(raw, &block)
		}
		if err != nil {
			return nil, fmt.Errorf("its result cannot be read: %w", err)
		}
		blocks = append(blocks, block)
	}
	if result.StructuredContent == nil || repeats(blocks, result.StructuredContent) {
		return blocks, nil
	}
	structured, err := tool.JSON(result.StructuredContent)
	if err != nil {
		return nil, err
	}
	return append(blocks, messages.Block{Type: "text", Text: string(structured.Value)}), nil
}

// repeats reports whether a block of text is the structured content, or one of its members.
func repeats(blocks []messages.Block, structured any) bool {
	members, ok := structured.(map[string]any)
	if raw, kept := structured.(json.RawMessage); kept {
		ok = json.Unmarshal(raw, &members) == nil
	}
	for _, block := range blocks {
		if block.Type != "text" {
			continue
		}
		if json.Valid([]byte(block.Text)) {
			return true // servers repeat structured content as text for older clients
		}
		if ok {
			for _, member := range members {
				if member == any(block.Text) {
					return true
				}
			}
		}
	}
	return false
}

// ownFailure returns the error of a result. A program may add its code, and whether a later run may
// succeed.
func ownFailure(result *mcp.CallToolResult) *messages.Error {
	failed := &messages.Error{Code: messages.CodeToolError, Message: texts(result)}
	if code, ok := result.Meta[metaPrefix+"code"].(string); ok && code != "" && len(code) <= 64 {
		failed.Code = messages.Code(clean(code))
	}
	failed.Retryable, _ = result.Meta[metaPrefix+"retryable"].(bool)
	return failed
}

// texts returns the texts of a result, one after the other.
func texts(result *mcp.CallToolResult) (all string) {
	for _, content := range result.Content {
		if text, ok := content.(*mcp.TextContent); ok {
			if all != "" {
				all += "\n"
			}
			all += text.Text
		}
	}
	return all
}
