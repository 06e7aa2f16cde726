package mcptool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// Program is a long-lived program that answers questions and serves no tools. Like a [Server],
// it has a pool of processes, which are started again with backoff. It is safe for concurrent
// use.
type Program struct{ server *Server }

// NewProgram returns a program. It starts no process. The first process starts with
// [Program.Warm] or with the first question.
func NewProgram(cfg Config) *Program { return &Program{newServer(cfg)} }

// Warm starts the first process, if there is none.
func (p *Program) Warm(ctx context.Context) error { return p.server.Warm(ctx) }

// Close ends the processes. The caller makes sure that no question is open. Close may be called
// twice.
func (p *Program) Close() { p.server.Close() }

// AskError says why a program gave no answer. Its text quotes nothing that the program said.
type AskError struct {
	error
	Started bool   // the question reached the program
	Said    string // what the program said, for debugging; it may hold secrets
}

func (e *AskError) Unwrap() error { return e.error }

// Ask calls a tool of the program and returns the text of its result. If the process dies, Ask
// sends the question once more, to another process. If ctx ends first, Ask tells the program,
// and kills its process if it does not end the call. Every error is an *AskError, except the
// cause of ctx.
func (p *Program) Ask(ctx context.Context, tenant messages.TenantID, name string, arguments json.RawMessage) (string, error) {
	m := message{tenant: tenant, tool: name, meta: mcp.Meta{}, arguments: arguments}
	addTrace(ctx, m.meta)
	result, err := p.server.ask(ctx, m)
	var lost *tool.LostError
	var notRun *notRunError
	var said *jsonrpc.Error
	switch {
	case err != nil && ctx.Err() != nil:
		return "", context.Cause(ctx)
	case errors.As(err, &notRun):
		return "", &AskError{error: notRun}
	case errors.As(err, &lost):
		return "", &AskError{error: fmt.Errorf("its process ended twice: %w", lost.Err), Started: true}
	case errors.As(err, &said):
		return "", &AskError{error: fmt.Errorf("it answered the call of its tool %s with the error %d", name, said.Code), Started: true, Said: clean(said.Message)}
	case err != nil:
		return "", &AskError{error: err, Started: true}
	case result.IsError:
		return "", &AskError{error: fmt.Errorf("its tool %s answered with an error", name), Started: true, Said: clean(texts(result))}
	}
	return texts(result), nil
}
