package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// shelf is a store that the tools of calls write and read. It records the order of the writes.
type shelf struct {
	mu     sync.Mutex
	values map[string]json.RawMessage
	order  []string
}

// tools registers rd {k}, which reads the shelf, and wr {k,v}, which writes it.
func (s *shelf) tools(f *fleet) {
	s.values = map[string]json.RawMessage{}
	type args struct {
		K string          `json:"k"`
		V json.RawMessage `json:"v"`
	}
	f.tool(schemas.Tool{Name: "rd", Kind: messages.KindRead}, func(_ context.Context, c tool.Call) (tool.Output, error) {
		var a args
		if err := json.Unmarshal(c.Input, &a); err != nil {
			return tool.Output{}, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		v, ok := s.values[a.K]
		if !ok {
			return tool.Text("nothing"), nil
		}
		return tool.Output{Value: v}, nil
	})
	f.tool(schemas.Tool{Name: "wr"}, func(_ context.Context, c tool.Call) (tool.Output, error) {
		var a args
		if err := json.Unmarshal(c.Input, &a); err != nil {
			return tool.Output{}, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.values[a.K] = a.V
		s.order = append(s.order, string(a.V))
		return tool.Text("written"), nil
	})
}

// answers returns the ids and the texts of the results in a reinjection of any dialect.
func answers(t testing.TB, p messages.Provider, reinjection []byte) (ids, texts []string) {
	t.Helper()
	var v any
	if err := json.Unmarshal(reinjection, &v); err != nil {
		t.Fatalf("reinjection %s: %v", reinjection, err)
	}
	field := func(v any, names ...string) any {
		for _, n := range names {
			if list, ok := v.([]any); ok {
				v = list[0]
			}
			m, ok := v.(map[string]any)
			if !ok {
				return nil
			}
			v = m[n]
		}
		return v
	}
	text := func(v any) string {
		if s, ok := v.(string); ok {
			return s
		}
		b, _ := json.Marshal(v)
		return string(b)
	}
	switch p {
	case messages.Anthropic:
		for _, b := range field(v, "content").([]any) {
			ids, texts = append(ids, text(field(b, "tool_use_id"))), append(texts, text(field(b, "content", "text")))
		}
	case messages.OpenAIChat:
		for _, m := range v.([]any) {
			ids, texts = append(ids, text(field(m, "tool_call_id"))), append(texts, text(field(m, "content")))
		}
	case messages.OpenAIResponses:
		for _, m := range v.([]any) {
			ids, texts = append(ids, text(field(m, "call_id"))), append(texts, text(field(m, "output")))
		}
	case messages.Bedrock:
		for _, b := range field(v, "content").([]any) {
			ids, texts = append(ids, text(field(b, "toolResult", "toolUseId"))), append(texts, text(field(b, "toolResult", "content", "text")))
		}
	case messages.Gemini:
		for _, b := range field(v, "parts").([]any) {
			ids, texts = append(ids, text(field(b, "functionResponse", "id"))), append(texts, text(field(b, "functionResponse", "response", "output")))
		}
	case messages.Canonical:
		for _, r := range field(v, "results").([]any) {
			ids, texts = append(ids, text(field(r, "id"))), append(texts, text(field(r, "output")))
		}
	}
	return ids, texts
}

// A batch writes a value and then reads it, many times in every dialect. The read's answer has
// the written value: results are matched to calls by their ids, never by the order in which
// they finish.
func TestWriteThenReadReadsWhatWasWritten(t *testing.T) {
	f := newFleet(t, natstest.Server(t, natstest.Fast))
	defer f.close()
	var s shelf
	s.tools(f)
	f.worker(worker.Config{})
	f.worker(worker.Config{})
	f.coordinator(coordinator.Config{})
	for _, p := range messages.Providers {
		t.Run(string(p), func(t *testing.T) {
			var group sync.WaitGroup
			defer group.Wait()
			for n := range 8 {
				group.Go(func() {
					for m := range repeats(25, 25) {
						k := fmt.Sprintf("%s-%d-%d", p, n, m)
						session := fmt.Sprintf("s-%s-%d", p, n)
						rd, wr := call{"rd", fmt.Sprintf(`{"k":%q}`, k)}, call{"wr", fmt.Sprintf(`{"k":%q,"v":"v%d"}`, k, m)}
						b := batchIn(p, session, k, rd, wr, rd)
						wantTexts := []string{"nothing", "written", fmt.Sprint("v", m)}
						if m%2 == 0 {
							b = batchIn(p, session, k, wr, rd)
							wantTexts = wantTexts[1:]
						}
						ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
						defer cancel()
						reply, err := f.client.Run(ctx, b)
						if err != nil {
							t.Errorf("%s: %v", k, err)
							return
						}
						ids, texts := answers(t, p, reply.Reinjection)
						if want := []string{"c0", "c1", "c2"}[:len(wantTexts)]; !cmp.Equal(ids, want) || !cmp.Equal(texts, wantTexts) {
							t.Errorf("%s: ids %v and answers %v, want %v and %v", k, ids, texts, want, wantTexts)
						}
					}
				})
			}
		})
	}
}

func TestWindowAndTotality(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var now, most atomic.Int32
		f.tool(schemas.Tool{Name: "slow", Kind: messages.KindRead}, func(ctx context.Context, c tool.Call) (tool.Output, error) {
			n := now.Add(1)
			defer now.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
			return tool.Text("done"), nil
		})
		f.worker(worker.Config{})
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		calls := make([]call, 30)
		for i := range calls {
			calls[i] = call{"slow", "{}"}
		}
		began := time.Now()
		reply := f.run(canonical("s", "thirty", calls...))
		if len(reply.Results) != 30 || most.Load() != 8 {
			t.Errorf("30 reads: %d results, at most %d at once; want 30 and 8", len(reply.Results), most.Load())
		}
		workers := map[string]int{}
		for i, r := range reply.Results {
			workers[r.Worker]++
			if r.Index != i || r.Status != messages.StatusOK || !r.WasConcurrent {
				t.Errorf("result %d: %+v", i, r)
			}
		}
		if len(workers) != 2 {
			t.Errorf("the reads were run by %v; want both workers to take part", workers)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("30 reads of a second, 8 at once, took %v of simulated time", took)
		}
	})
}

// A batch has four good calls, one that fails, one that times out, one of an unknown tool, and
// one with malformed input. The good calls are not cancelled.
func TestAFailedCallDoesNotStopTheOthers(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		f.tool(schemas.Tool{Name: "echo", Kind: messages.KindRead}, func(_ context.Context, c tool.Call) (tool.Output, error) {
			return tool.Output{Value: c.Input}, nil
		})
		f.tool(schemas.Tool{Name: "boom", Kind: messages.KindRead}, func(context.Context, tool.Call) (tool.Output, error) {
			return tool.Output{}, &messages.Error{Code: messages.CodeToolError, Message: "no such order"}
		})
		f.tool(schemas.Tool{Name: "hang", Kind: messages.KindRead, TimeoutMS: 2000}, func(ctx context.Context, _ tool.Call) (tool.Output, error) {
			<-ctx.Done()
			return tool.Output{}, ctx.Err()
		})
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		b := batchIn(messages.OpenAIChat, "s", "mixed", call{"echo", `{"n":0}`}, call{"boom", ""}, call{"echo", `{"n":2}`}, call{"hang", ""},
			call{"nope", ""}, call{"echo", `{"n":5}`}, call{"echo", `{"cut":`}, call{"echo", `{"n":7}`})
		reply := f.run(b)
		var got []string
		for _, r := range reply.Results {
			got = append(got, string(r.Status))
		}
		want := []string{"ok", "error", "ok", "timeout", "unknown_tool", "ok", "validation_error", "ok"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("statuses (-want +got):\n%s", diff)
		}
		_, texts := answers(t, messages.OpenAIChat, reply.Reinjection)
		for i, part := range []string{`{"n":0}`, "no such order", `{"n":2}`, `"error":"timeout"`, `"error":"unknown_tool"`, `{"n":5}`, `"error":"invalid_arguments"`, `{"n":7}`} {
			if !strings.Contains(texts[i], part) {
				t.Errorf("answer %d is %s, want it to say %s", i, texts[i], part)
			}
		}
	})
}
