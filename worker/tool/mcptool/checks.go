package mcptool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// The questions that a program can answer about a call, besides running it. The first two are
// also the words of the member checks in a definition's `_meta`.
const (
	semanticCheck    = "semantic_check"
	checkPermissions = "check_permissions"
	probing          = "probe"
)

// checksOf returns the checks that a definition names.
func checksOf(meta map[string]any) ([]string, error) {
	text, _ := meta["checks"].(string)
	words := strings.Fields(text)
	for _, word := range words {
		if word != semanticCheck && word != checkPermissions {
			return nil, fmt.Errorf("its _meta: %schecks has %.40q; want %s or %s", metaPrefix, word, semanticCheck, checkPermissions)
		}
	}
	return words, nil
}

// checkable is a runner of a program that can say whether an earlier run of a call was
// applied.
type checkable struct{ *runner }

// Probe asks the program whether an earlier run of the call was applied.
func (c checkable) Probe(ctx context.Context, call tool.Call) (tool.Probed, error) {
	return c.probe(ctx, call)
}

// checking is a runner of a program that checks calls itself.
type checking struct{ *runner }

// checkingProber is a runner that is both checking and checkable.
type checkingProber struct {
	checking
	tool.Prober
}

// Check asks the program, in the semantic phase, whether it accepts the input of a call. If
// the program answers with an error or cannot be asked, the call is refused.
func (c checking) Check(ctx context.Context, call tool.Call) error {
	if !slices.Contains(c.checks, semanticCheck) {
		return nil
	}
	result, err := c.ask(ctx, call, semanticCheck)
	if err != nil || !result.IsError {
		return err
	}
	refused := ownFailure(result)
	if refused.Code == messages.CodeToolError {
		refused.Code = messages.CodeInvalidArguments
	}
	return refused
}

// Permit asks the program, in the permissions phase, whether a call may run. The first line of
// the answer is the opinion, and the other lines are the reason.
func (c checking) Permit(ctx context.Context, call tool.Call) (tool.Permit, error) {
	if !slices.Contains(c.checks, checkPermissions) {
		return tool.Permit{}, nil
	}
	result, err := c.ask(ctx, call, checkPermissions)
	if err != nil {
		return tool.Permit{}, err
	}
	opinion, reason, _ := strings.Cut(texts(result), "\n")
	opinion = strings.TrimSpace(opinion)
	if result.IsError || !slices.Contains([]string{"allow", "ask", "deny"}, opinion) {
		return tool.Permit{}, errors.New("its answer is none of allow, ask and deny")
	}
	return tool.Permit{Opinion: opinion, Reason: clean(strings.TrimSpace(reason))}, nil
}

// ask asks the program about a call.
func (r *runner) ask(ctx context.Context, call tool.Call, question string) (*mcp.CallToolResult, error) {
	result, err := r.server.ask(ctx, r.message(ctx, call, question))
	if err == nil || ctx.Err() != nil {
		return result, err
	}
	var notRun *notRunError
	if errors.As(err, &notRun) {
		return nil, &messages.Error{Code: notRun.code, Message: notRun.text}
	}
	return nil, &messages.Error{Code: codeServerDown, Message: fmt.Sprintf("The server %s could not be asked about the call, so it was not run.", r.server.Name())}
}
