package tool_test

import (
	"context"
	"errors"
	"testing"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/tooltest"
)

// goTool returns a Make of a tool that is a Go function.
func goTool(run func(ctx context.Context, call tool.Call, dir string) (tool.Output, error)) tooltest.Make {
	return func(_ *testing.T, dir string) (tool.Runner, string) {
		return tool.Func(func(ctx context.Context, call tool.Call) (tool.Output, error) { return run(ctx, call, dir) }), `{"n":1}`
	}
}

func applyOnce(_ context.Context, call tool.Call, dir string) (tool.Output, error) {
	return tool.Text("applied"), tooltest.ApplyOnce(dir, call.IdempotencyKey)
}

func TestGoTools(t *testing.T) {
	tooltest.Run(t, tooltest.Runner{
		Echo: goTool(func(_ context.Context, call tool.Call, _ string) (tool.Output, error) {
			return tool.JSON(call.Input)
		}),
		Fail: goTool(func(context.Context, tool.Call, string) (tool.Output, error) {
			return tool.Output{}, errors.New(tooltest.Failure)
		}),
		FailForNow: goTool(func(context.Context, tool.Call, string) (tool.Output, error) {
			return tool.Output{}, &messages.Error{Code: messages.CodeToolError, Message: tooltest.Failure, Retryable: true}
		}),
		Wait: goTool(func(ctx context.Context, call tool.Call, _ string) (tool.Output, error) {
			if ctx.Err() == nil {
				call.Progress(messages.Progress{Text: "running"})
			}
			<-ctx.Done()
			return tool.Output{}, context.Cause(ctx)
		}),
		Report: goTool(func(_ context.Context, call tool.Call, _ string) (tool.Output, error) {
			for _, text := range tooltest.Reports {
				call.Progress(messages.Progress{Text: text})
			}
			return tool.Output{}, nil
		}),
		Describe: goTool(func(_ context.Context, call tool.Call, _ string) (tool.Output, error) {
			return tool.Text(tooltest.Description(call)), nil
		}),
		Apply: goTool(applyOnce),
		BadText: goTool(func(context.Context, tool.Call, string) (tool.Output, error) {
			return tool.Text(tooltest.BadText), nil
		}),
		Checkable: func(_ *testing.T, dir string) (tool.Runner, string) {
			return tool.NewProber(
				func(ctx context.Context, call tool.Call) (tool.Output, error) { return applyOnce(ctx, call, dir) },
				func(ctx context.Context, call tool.Call) (tool.Probed, error) {
					return tool.Probed{Applied: ctx.Err() == nil && tooltest.Applied(dir, call.IdempotencyKey)}, context.Cause(ctx)
				},
			), `{}`
		},
		Cannot: map[string]string{
			"Flood": "the worker's pipeline cuts the output of a Go tool",
			"Crash": "the worker's pipeline recovers the panic of a Go tool",
		},
	})
}
