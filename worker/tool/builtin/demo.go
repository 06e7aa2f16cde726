package builtin

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/sandbox"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/base"
	"github.com/toolfleet/toolfleet/worker/tool/builtin/rootdir"
)

// Bounds of the demo builtins.
const (
	maxSleep  = 24 * time.Hour
	maxBlob   = 64 << 20
	sleepTick = time.Second           // the longest time between two progress reports of a sleep
	sleepWord = 20 * time.Millisecond // a shorter sleep reports no progress
)

// demo makes the spec of a builtin that needs no root and changes nothing.
func demo(name, description, schema string, run tool.Func) spec {
	return spec{
		promise: func() schemas.Tool {
			return schemas.Tool{Name: name, Description: description, Kind: messages.KindRead, InputSchema: json.RawMessage(schema)}
		},
		runner: func(*rootdir.Root, *sandbox.Box) tool.Runner { return run },
	}
}

func noopSpec() spec {
	return demo("noop", "Returns its input unchanged. For tests and demonstrations.", `{"type": "object"}`,
		func(_ context.Context, call tool.Call) (tool.Output, error) {
			return tool.Output{Value: call.Input}, nil
		})
}

func sleepSpec() spec {
	return demo("sleep", `Waits for the given time, then returns {"ms": n}. For tests and demonstrations.`, `{
		"type": "object",
		"properties": {"ms": {"type": "integer", "minimum": 0, "maximum": 86400000, "description": "How long to wait, in milliseconds."}},
		"required": ["ms"]
	}`, sleep)
}

// sleep reports progress at each quarter of its time, and also every second if it takes long.
// It reads only its own argument, because load runs add other arguments to tell calls apart.
func sleep(ctx context.Context, call tool.Call) (tool.Output, error) {
	ms, err := number(call, "ms", int(maxSleep.Milliseconds()))
	if err != nil {
		return tool.Output{}, err
	}
	total := time.Duration(ms) * time.Millisecond
	start := time.Now()
	done := time.NewTimer(total)
	defer done.Stop()
	tick := time.NewTicker(max(min(sleepTick, total/4), time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return tool.Output{}, context.Cause(ctx)
		case <-done.C:
			return tool.JSON(map[string]int{"ms": ms})
		case <-tick.C:
			if slept := time.Since(start); call.Progress != nil && slept < total && total >= sleepWord {
				call.Progress(messages.Progress{
					Fraction: float64(slept) / float64(total),
					Text:     fmt.Sprintf("slept %s of %s", slept.Round(time.Millisecond), total),
				})
			}
		}
	}
}

func failSpec() spec {
	return demo("fail", "Fails with the given message. For tests and demonstrations.", `{
		"type": "object",
		"properties": {"message": {"type": "string", "maxLength": 10000, "description": "What to fail with."}}
	}`, func(_ context.Context, call tool.Call) (tool.Output, error) {
		var args struct{ Message string }
		if err := json.Unmarshal(call.Input, &args); err != nil || args.Message == "" {
			args.Message = "failed as asked"
		}
		return tool.Output{}, &messages.Error{Code: messages.CodeToolError, Message: args.Message}
	})
}

func blobSpec() spec {
	return demo("blob", `Returns a text of that many letters "x". For tests and demonstrations.`, `{
		"type": "object",
		"properties": {"bytes": {"type": "integer", "minimum": 0, "maximum": 67108864, "description": "The length of the text."}},
		"required": ["bytes"]
	}`, func(_ context.Context, call tool.Call) (tool.Output, error) {
		n, err := number(call, "bytes", maxBlob)
		if err != nil {
			return tool.Output{}, err
		}
		return tool.Text(strings.Repeat("x", n)), nil
	})
}

// number returns the named argument, which must be a whole number from 0 to most.
func number(call tool.Call, name string, most int) (int, error) {
	members, err := rawjson.Object(call.Input)
	if err != nil {
		return 0, base.Refuse(messages.CodeInvalidArguments, "the input is no JSON object")
	}
	var n base.Whole
	if err := json.Unmarshal(members[name], &n); err != nil || n < 0 || int(n) > most {
		return 0, base.Refuse(messages.CodeInvalidArguments, "%s: want a whole number from 0 to %s", name, base.Thousands(most))
	}
	return int(n), nil
}
