package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"strings"
	"sync"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// A Go program registers a tool of its own and serves it to the fleet.
func Example() {
	var tools tool.Registry
	err := tools.Add(schemas.Tool{
		Name:        "shout",
		Description: "Says a text louder.",
		Kind:        messages.KindCompute,
		InputSchema: json.RawMessage(`{"type":"object","properties":{"text":{"type":"string","maxLength":200}},"required":["text"],"additionalProperties":false}`),
	}, tool.Func(func(_ context.Context, call tool.Call) (tool.Output, error) {
		var input struct{ Text string }
		if err := json.Unmarshal(call.Input, &input); err != nil {
			return tool.Output{}, err
		}
		return tool.Text(strings.ToUpper(input.Text) + "!"), nil
	}))
	if err != nil {
		log.Fatal(err)
	}

	ctx, stop := context.WithCancel(context.Background())
	conn, err := bus.Connect(ctx, bus.Options{URL: serverURL})
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	w, err := worker.New(conn, &tools, worker.Config{Slots: 10})
	if err != nil {
		log.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := w.Run(ctx); err != nil { // until ctx ends
			log.Fatal(err)
		}
	})

	for _, promise := range tools.Promises() {
		fmt.Println(promise.Name, promise.Kind, promise.Timeout())
	}
	stop()
	serving.Wait()
	// Output: shout compute 2s
}
