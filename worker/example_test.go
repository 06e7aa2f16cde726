package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/fleet"
	"github.com/toolfleet/toolfleet/worker"
	"github.com/toolfleet/toolfleet/worker/tool"
)

type shoutIn struct {
	Text string `json:"text" jsonschema:"the text to shout"`
}

// Example serves a first tool. A program with nothing else to do calls worker.Main(shout)
// instead of Run.
func Example() {
	shout := worker.New("shout", "Says a text louder.", worker.Compute,
		func(_ context.Context, in shoutIn) (string, error) { return strings.ToUpper(in.Text) + "!", nil })

	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	err := worker.Run(ctx, worker.Options{
		Fleet: fleet.Options{URL: serverURL}, // for example nats://localhost:4222
		OnReady: func() {
			fmt.Println("takes calls")
			stop() // other programs stop at a signal
		},
	}, shout)
	if err != nil {
		log.Fatal(err)
	}
	definition, _ := shout.Definition()
	fmt.Println(definition.Name, definition.Kind, definition.Timeout())
	fmt.Println(string(definition.InputSchema))
	// Output:
	// takes calls
	// shout compute 2s
	// {"additionalProperties":false,"properties":{"text":{"description":"the text to shout","type":"string"}},"required":["text"],"type":"object"}
}

type pages struct {
	URLs []string `json:"urls" jsonschema:"pages to fetch"`
	Most int      `json:"most,omitempty" jsonschema:"characters of each, default 1000"`
}

type page struct {
	URL  string `json:"url"`
	Text string `json:"text"`
}

// ExampleNew has a tool with Go types as input and output, which reports its progress. If a
// page cannot be fetched for now, the worker tries the whole call again.
func ExampleNew() {
	get := func(url string) (string, error) { // stands for an HTTP request
		if strings.Contains(url, "busy") {
			return "", errors.New("503 Service Unavailable")
		}
		return "text of " + url, nil
	}
	fetch := func(ctx context.Context, in pages) (found []page, err error) {
		for i, url := range in.URLs {
			worker.Progress(ctx, float64(i)/float64(len(in.URLs)), url)
			text, err := get(url)
			if err != nil {
				return nil, worker.TryAgain(worker.Errorf("fetch_failed", "%s: %v", url, err))
			}
			found = append(found, page{url, text})
		}
		return found, nil
	}
	t := worker.New("fetch", "Fetches web pages.", worker.Read, fetch,
		worker.Timeout(20*time.Second),
		worker.Retry(4, time.Second, 10*time.Second),
		worker.Require("size(input.urls) <= 10", "At most ten pages at once."))

	definition, err := t.Definition()
	fmt.Println(definition.Timeout(), definition.Retry.Attempts, err)
	fmt.Println(fetch(context.Background(), pages{URLs: []string{"a.example"}}))
	_, err = fetch(context.Background(), pages{URLs: []string{"busy.example"}})
	fmt.Println(err)
	// Output:
	// 20s 4 <nil>
	// [{a.example text of a.example}] <nil>
	// fetch_failed: busy.example: 503 Service Unavailable
}

type payment struct {
	To     string      `json:"to"`
	Amount json.Number `json:"amount" jsonschema:"in EUR"` // the digits as the model wrote them
}

type receipt struct {
	ID string `json:"id"`
}

// ExampleCheckable is a write that must not happen twice. The bank remembers payments by their
// key, so after a lost worker the probe can ask the bank whether it has the payment.
func ExampleCheckable() {
	bank := map[string]string{} // stands for the bank: receipts by idempotency key
	pay := func(ctx context.Context, in payment) (receipt, error) {
		key := worker.CallOf(ctx).IdempotencyKey
		bank[key] = in.To + " got " + in.Amount.String()
		return receipt{bank[key]}, nil
	}
	wasPaid := func(ctx context.Context, in payment) (*receipt, bool, error) {
		id, found := bank[worker.CallOf(ctx).IdempotencyKey]
		if !found {
			return nil, false, nil
		}
		return &receipt{id}, true, nil
	}
	t := worker.New("pay", "Pays somebody.", worker.Write, pay, worker.Checkable(wasPaid),
		worker.Risk("high")) // a person is asked
	definition, err := t.Definition()
	fmt.Println(definition.OnCrash, definition.Risk, err)
	// Output: checkable high <nil>
}

// ExampleTool_Try tests a tool without a fleet. The second call of Try stands for the attempt
// after a lost one: the probe finds that the lost attempt has paid, so the tool does not run.
func ExampleTool_Try() {
	paid := map[string]string{}
	pay := worker.New("pay", "Pays somebody.", worker.Write,
		func(ctx context.Context, in payment) (receipt, error) {
			if in.To == "" {
				return receipt{}, worker.Errorf("nobody", "there is nobody to pay")
			}
			call := worker.CallOf(ctx)
			paid[call.IdempotencyKey] = in.To
			fmt.Println("paid by attempt", call.Attempt)
			return receipt{"r-1"}, nil
		},
		worker.Checkable(func(ctx context.Context, in payment) (*receipt, bool, error) {
			_, found := paid[worker.CallOf(ctx).IdempotencyKey]
			return &receipt{"r-1"}, found, nil
		}))
	for _, call := range []tool.Call{
		{Input: []byte(`{"to":"Ann","amount":5}`)},
		{Input: []byte(`{"to":"Ann","amount":5}`), Attempt: 2},
		{Input: []byte(`{"to":"","amount":5}`)},
		{Input: []byte(`{"to":"Ann"}`)},
	} {
		result, err := pay.Try(context.Background(), call)
		if err != nil {
			log.Fatal(err)
		}
		if result.Err != nil {
			fmt.Println(result.Status, result.Err.Code)
		} else {
			fmt.Println(result.Status, string(result.Output))
		}
	}
	// Output:
	// paid by attempt 1
	// ok {"id":"r-1"}
	// ok {"id":"r-1"}
	// error nobody
	// validation_error invalid_arguments
}
