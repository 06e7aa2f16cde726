package tool_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// ExampleFunc is a tool that handles its input and output as JSON, with a schema from
// elsewhere. Most tools are made by worker.New instead.
func ExampleFunc() {
	echo := tool.Func(func(_ context.Context, call tool.Call) (tool.Output, error) {
		return tool.Output{Value: call.Input}, nil
	})
	made := worker.Custom(schemas.Tool{
		Name: "echo", Kind: messages.KindCompute,
		InputSchema: json.RawMessage(`{"type":"object","properties":{"level":{"enum":["low","high"]}}}`),
	}, echo)
	definition, err := made.Definition()
	if err != nil {
		log.Fatal(err)
	}
	out, err := echo.Run(context.Background(), tool.Call{Input: json.RawMessage(`{"level":"low"}`)})
	fmt.Println(definition.Name, string(out.Value), err)
	// Output: echo {"level":"low"} <nil>
}

// ExampleNewProber is a write with a probe. The probe finds out whether a run whose worker was
// lost was applied.
func ExampleNewProber() {
	notes := map[string]string{} // what was written, by idempotency key
	runner := tool.NewProber(
		func(_ context.Context, call tool.Call) (tool.Output, error) {
			notes[call.IdempotencyKey] = "noted"
			return tool.Text("noted"), nil
		},
		func(_ context.Context, call tool.Call) (tool.Probed, error) {
			note, found := notes[call.IdempotencyKey]
			return tool.Probed{Applied: found, Output: tool.Text(note)}, nil
		})
	call := tool.Call{IdempotencyKey: "5f1c"}
	for range 2 {
		probed, err := runner.(tool.Prober).Probe(context.Background(), call)
		fmt.Println(probed.Applied, err)
		_, _ = runner.Run(context.Background(), call)
	}
	// Output:
	// false <nil>
	// true <nil>
}
