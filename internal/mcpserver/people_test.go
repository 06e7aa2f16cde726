package mcpserver_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/internal/mcpserver"
	"github.com/toolfleet/toolfleet/messages"
)

// A call waits for a person: the server answers within its bound, and answers a later call
// too. Once the person has allowed it, a request with the same id gets the result.
func TestACallThatWaitsForAPersonIsAnswered(t *testing.T) {
	inFleet(t, func(t *testing.T, f *testFleet) {
		c, _ := f.dial(mcpserver.Config{AnswerWithin: time.Millisecond}, nil, "s")
		r, err := c.CallTool(t.Context(), call("refund", `{"n":1}`, "toolfleet/id", "mine"))
		must(t, err)
		if r.IsError || !strings.Contains(text(r), "A person has to allow this call of refund") || !strings.Contains(text(r), `"toolfleet/id": "mine"`) {
			t.Errorf("got error %t, %q", r.IsError, text(r))
		}
		r, err = c.CallTool(t.Context(), call("note", `{"n":2}`, "toolfleet/id", "behind"))
		must(t, err)
		if r.IsError || !strings.Contains(text(r), "waits for an earlier call of refund") {
			t.Errorf("behind it: got error %t, %q", r.IsError, text(r))
		}
		f.allow(t)
		later, _ := f.dial(mcpserver.Config{}, nil, "s")
		r, err = later.CallTool(t.Context(), call("refund", `{"n":1}`, "toolfleet/id", "mine"))
		must(t, err)
		if r.IsError || text(r) != `{"n":1}` {
			t.Errorf("asked again: got error %t, %q", r.IsError, text(r))
		}
		f.untilCall("s", "behind", messages.StatusOK)
		if want := []string{`refund{"n":1}`, `note{"n":2}`}; !slices.Equal(f.history(), want) {
			t.Errorf("the runs are %v, want %v", f.history(), want)
		}
		// The same id with other arguments is an error of the client.
		r, err = later.CallTool(t.Context(), call("refund", `{"n":2}`, "toolfleet/id", "mine"))
		must(t, err)
		if !r.IsError || !strings.Contains(text(r), "batch_conflict") {
			t.Errorf("other arguments: got error %t, %q", r.IsError, text(r))
		}
	})
}

// allow lets alice approve the only open question.
func (f *testFleet) allow(t *testing.T) {
	t.Helper()
	var open []messages.Pending
	f.until("there is a question", func() bool {
		var err error
		open, err = f.client.Approvals(t.Context())
		return err == nil && len(open) == 1
	})
	question, err := f.client.Approval(t.Context(), open[0].Session, open[0].Batch, open[0].Index)
	must(t, err)
	file := filepath.Join(t.TempDir(), "alice.nk")
	must(t, f.alice.Write(file))
	signer, err := client.ReadSigner("alice", file)
	must(t, err)
	signed, err := signer.Sign(question, messages.Decision{Verdict: messages.VerdictApprove})
	must(t, err)
	_, err = f.client.Decide(t.Context(), signed)
	must(t, err)
}

// A client asks for progress: it gets what happens to its call, with increasing numbers.
func TestProgress(t *testing.T) {
	inFleet(t, func(t *testing.T, f *testFleet) {
		var mu sync.Mutex
		var last float64
		var told []string
		c, _ := f.dial(mcpserver.Config{}, &mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			mu.Lock()
			defer mu.Unlock()
			if r.Params.ProgressToken != "mine" || r.Params.Progress <= last {
				t.Errorf("%v: %v after %v", r.Params.ProgressToken, r.Params.Progress, last)
			}
			last = r.Params.Progress
			told = append(told, r.Params.Message)
		}}, "s")
		var calls sync.WaitGroup
		calls.Go(func() {
			if _, err := c.CallTool(t.Context(), call("gate", `{}`, "progressToken", "mine")); err != nil {
				t.Error(err)
			}
		})
		f.until("the run is told", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return slices.Contains(told, "gate runs")
		})
		close(f.gate)
		calls.Wait()
	})
}

// A tool reports progress as soon as it starts: the client still gets it.
func TestTheFirstProgressIsNotLost(t *testing.T) {
	inFleet(t, func(t *testing.T, f *testFleet) {
		const calls = 50
		var mu sync.Mutex
		told := map[any]chan struct{}{} // by the token of a call; closed when the client has the progress
		c, _ := f.dial(mcpserver.Config{}, &mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			mu.Lock()
			defer mu.Unlock()
			if ch := told[r.Params.ProgressToken]; ch != nil && strings.Contains(r.Params.Message, "half") {
				close(ch)
				delete(told, r.Params.ProgressToken)
			}
		}}, "s")
		for i := range calls {
			token, heard := fmt.Sprint("call-", i), make(chan struct{})
			mu.Lock()
			told[token] = heard
			mu.Unlock()
			var calls sync.WaitGroup
			calls.Go(func() {
				if _, err := c.CallTool(t.Context(), call("steps", `{}`, "progressToken", token)); err != nil {
					t.Error(err)
				}
			})
			f.waitEntered(1)
			select {
			case <-heard:
			case <-time.After(30 * time.Second):
				t.Fatalf("call %d: its progress is lost", i)
			}
			f.steps <- struct{}{}
			calls.Wait()
		}
	})
}
