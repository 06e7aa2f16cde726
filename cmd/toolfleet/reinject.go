package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/coordinator/provider"
	"github.com/toolfleet/toolfleet/messages"
)

type reinjectCmd struct{}

// Help returns the text that --help shows below the command's usage.
func (reinjectCmd) Help() string {
	return `Reads {"provider","message","results"} from stdin and writes {"reinjection","calls"} to stdout. results[i]
belongs to the i-th call: {"output": any}, {"error": "text"}, {"content": [MCP blocks], "is_error": bool}, or
null for a lost call. A message that cannot be answered is {"error":{"class","message"}} and exit status 1.`
}

func (reinjectCmd) Run(a *command.App) error {
	if terminal.IsTerminal(a.Stdin) {
		return command.Usagef(`no request: pipe one in, for example '{"provider":"anthropic","message":{...},"results":[{"output":1}]}'`)
	}
	request, err := io.ReadAll(io.LimitReader(a.Stdin, maxInput))
	if err != nil {
		return fmt.Errorf("read stdin: %w", err)
	}
	answer, err := provider.Reinject(request)
	var refusal *messages.Refusal
	if errors.As(err, &refusal) {
		if err := a.Print(map[string]any{"error": refusal}); err != nil {
			return err
		}
		return command.ErrPrinted
	}
	if err != nil {
		return err
	}
	return a.PrintRaw(answer)
}
