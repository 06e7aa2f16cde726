package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/coordinator/provider/export"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// countingFleet returns a fleet with the tools echo (a read) and count (a write). It also
// returns the number of runs of count.
func countingFleet(t testing.TB, srv *devserver.Server) (*fleet, *atomic.Int32) {
	t.Helper()
	return countingFleetWith(t, srv, coordinator.Config{})
}

func countingFleetWith(t testing.TB, srv *devserver.Server, cfg coordinator.Config) (*fleet, *atomic.Int32) {
	t.Helper()
	f := newFleet(t, srv)
	runs := new(atomic.Int32)
	f.tool(schemas.Tool{Name: "echo", Kind: messages.KindRead}, func(_ context.Context, c tool.Call) (tool.Output, error) {
		return tool.Output{Value: c.Input}, nil
	})
	f.tool(schemas.Tool{Name: "count"}, func(context.Context, tool.Call) (tool.Output, error) {
		return tool.JSON(runs.Add(1))
	})
	f.tool(schemas.Tool{Name: "nap", Kind: messages.KindRead, TimeoutMS: 600_000}, func(ctx context.Context, _ tool.Call) (tool.Output, error) {
		select {
		case <-time.After(time.Minute):
		case <-ctx.Done():
		}
		return tool.Text("rested"), nil
	})
	f.worker(worker.Config{})
	f.coordinator(cfg)
	return f, runs
}

func TestTheSameBatchAgainRunsNothing(t *testing.T) {
	f, runs := countingFleet(t, natstest.Server(t, natstest.Fast))
	defer f.close()
	b := canonical("s", "pay-1", call{"count", ""})
	first := f.run(b)
	again := f.run(b)
	if a, b := rawjson.MustMarshal(first), rawjson.MustMarshal(again); string(a) != string(b) {
		t.Errorf("the second reply is\n%s\nthe first was\n%s", b, a)
	}
	b.Message = json.RawMessage(`{"calls":[{"id":"c0","name":"count","input":{"other":1}}]}`)
	_, err := f.client.Run(t.Context(), b)
	var refusal *messages.Refusal
	if !errors.As(err, &refusal) || refusal.Class != messages.ClassBatchConflict {
		t.Errorf("the same id with another body: %v, want a batch_conflict", err)
	}
	if n := runs.Load(); n != 1 {
		t.Errorf("the write ran %d times", n)
	}
}

// Each reply has the member append: the stored reply, and the message on the reply subject. An
// earlier build may have stored a reply without append. The coordinator adds append when it
// hands that reply out.
func TestEveryReplyHasAppend(t *testing.T) {
	f, _ := countingFleet(t, natstest.Server(t, natstest.Fast))
	defer f.close()
	ctx, names := t.Context(), f.conn.Names()
	for _, p := range messages.Providers {
		b := batchIn(p, "s", "b "+string(p), call{"echo", fmt.Sprintf(`{"text":%q}`, strings.Repeat("x", 2000))})
		key := wire.KeyOf(messages.OneTenant, b.Session, b.ID)
		body, err := b.Encode()
		if err != nil {
			t.Fatal(err)
		}
		published := make(chan []byte, 1)
		stop, err := f.conn.Subscribe(names.Of(wire.VerbReply, key), "", func(m bus.Msg) { published <- m.Data })
		if err != nil {
			t.Fatal(err)
		}
		run, err := f.conn.Request(ctx, names.Of(wire.VerbRun, key), nil, body)
		if err != nil {
			t.Fatal(err)
		}
		stored, err := f.conn.Last(ctx, names.Stream(bus.Replies), names.Of(wire.VerbFinal, key))
		if err != nil {
			t.Fatal(err)
		}
		get, err := f.conn.Request(ctx, names.Of(wire.VerbGet, key), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		full, err := f.conn.Request(ctx, names.Of(wire.VerbGet, key), nil, []byte(`{"results":"full"}`))
		if err != nil {
			t.Fatal(err)
		}
		if got := <-published; !bytes.Equal(got, stored.Data) {
			t.Errorf("%s: %s was published, stored is %s", p, got, stored.Data)
		}
		stop()
		if !bytes.Equal(run.Data, get.Data) || !bytes.Equal(run.Data, stored.Data) {
			t.Errorf("%s: run gives\n%s\nget\n%s\nof the stored\n%s", p, run.Data, get.Data, stored.Data)
		}
		for _, answer := range []bus.Msg{stored, run, full} {
			var reply messages.Reply
			if err := json.Unmarshal(answer.Data, &reply); err != nil {
				t.Fatal(err)
			}
			if got := rawjson.MustMarshal(reply.Append); len(reply.Append) != 1 || !bytes.Equal(got, rawjson.MustMarshal(reply.Extend(nil))) {
				t.Errorf("%s: append is %s", p, got)
			}
		}
	}
	key := wire.KeyOf(messages.OneTenant, "s", "old")
	before := []byte(`{"v":1,"batch":"old","session":"s","status":"completed","reinjection":{"a":1},"results":[]}`)
	if _, err := f.conn.Request(ctx, names.Of(wire.VerbFinal, key), nil, before); err != nil {
		t.Fatal(err)
	}
	get, err := f.conn.Request(ctx, names.Of(wire.VerbGet, key), nil, nil)
	if want := strings.TrimSuffix(string(before), "}") + `,"append":[{"a":1}]}`; err != nil || string(get.Data) != want {
		t.Errorf("a reply that was stored without append is given out as %s, %v", get.Data, err)
	}
	if reply, err := f.client.Get(ctx, "s", "old"); err != nil || len(reply.Append) != 1 {
		t.Errorf("the client gets %+v, %v", reply, err)
	}
}

// A batch is submitted again after its reply, and waits in the log for a slot. A request for
// its reply is answered at once.
func TestARepliedBatchInTheLogIsAnsweredAtOnce(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		f.tool(schemas.Tool{Name: "echo", Kind: messages.KindRead}, func(context.Context, tool.Call) (tool.Output, error) { return tool.Text("done"), nil })
		open, running := f.behindGate("gate", messages.KindRead)
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{Slots: 1})
		b := canonical("s", "b", call{"echo", ""})
		first := f.run(b)
		f.awaitGone(b)
		held := canonical("other", "b", call{"gate", ""})
		f.submit(held) // takes the only slot, so that later batches stay in the log
		f.until("the batch that takes the slot runs", func() bool { return running.Load() == 1 })
		f.submit(b)
		began := time.Now()
		again := f.run(b)
		if string(rawjson.MustMarshal(again)) != string(rawjson.MustMarshal(first)) {
			t.Errorf("the second reply is %+v, the first was %+v", again, first)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("its reply comes after %v", took)
		}
		open()
		f.reply(held, time.Minute)
	})
}

func TestGetReportsTheStateOfABatch(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f, _ := countingFleet(t, srv)
		defer f.close()
		ctx := context.Background()
		if _, err := f.client.Get(ctx, "s", "never"); !errors.Is(err, client.ErrUnknown) {
			t.Errorf("a batch that was never submitted: %v, want %v", err, client.ErrUnknown)
		}
		b := canonical("s", "long", call{"nap", ""}, call{"echo", `{"n":9007199254740993}`})
		if err := f.client.Submit(ctx, b); err != nil {
			t.Fatal(err)
		}
		if err := f.client.Submit(ctx, b); err != nil {
			t.Errorf("submitted again while it runs: %v", err)
		}
		if _, err := f.client.Get(ctx, "s", "long"); !errors.Is(err, client.ErrRunning) {
			t.Errorf("while it runs: %v, want %v", err, client.ErrRunning)
		}
		waiting, cancel := context.WithTimeout(ctx, 2*time.Minute)
		defer cancel()
		reply, err := f.client.Await(waiting, "s", "long")
		if err != nil || reply.Status != messages.ReplyCompleted {
			t.Fatalf("awaited: %s, err %v", reply.Status, err)
		}
		if len(reply.Results[1].Output) != 0 {
			t.Errorf("the results repeat the output %s", reply.Results[1].Output)
		}
		full, err := f.client.Get(ctx, "s", "long", client.FullResults())
		if err != nil || string(full.Results[1].Output) != `{"n":9007199254740993}` {
			t.Errorf("with outputs: %s, err %v", full.Results[1].Output, err)
		}
	})
}

func TestEventsComeInOrder(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f, _ := countingFleet(t, srv)
		defer f.close()
		var events []string
		_, err := f.client.Run(t.Context(), canonical("s", "b", call{"echo", ""}, call{"count", ""}, call{"nope", ""}, call{"echo", ""}),
			client.OnEvent(func(e messages.Event) { events = append(events, fmt.Sprint(e.Type, e.Index)) }))
		if err != nil {
			t.Fatal(err)
		}
		starts := []string{"start0", "start1", "start2", "start3"}
		if len(events) < 4 || !slices.Equal(events[:4], starts) {
			t.Errorf("first events %v, want %v", events, starts)
		}
		last := []string{"result0", "result1", "result2", "result3", "reply-1"}
		if n := len(events) - len(last); n < 0 || !slices.Equal(events[n:], last) {
			t.Errorf("last events of %v, want %v", events, last)
		}
		for i := range 4 {
			if !slices.Contains(events, fmt.Sprint("end", i)) {
				t.Errorf("no end of call %d in %v", i, events)
			}
		}
	})
}

// An id may contain anything. Sessions with hostile ids stay separate, and no such id appears
// in a subject.
func TestHostileIds(t *testing.T) {
	f, runs := countingFleet(t, natstest.Server(t, natstest.Fast))
	defer f.close()
	var mu sync.Mutex
	var subjects []string
	watcher := f.connect("watcher")
	defer watcher.Close()
	batches := 0
	if _, err := watcher.Subscribe("toolfleet.>", "", func(m bus.Msg) {
		mu.Lock()
		defer mu.Unlock()
		subjects = append(subjects, m.Subject)
		if strings.HasPrefix(m.Subject, "toolfleet.batch.") {
			batches++
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := watcher.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	ids := []string{"a.b", "a.>", "*", ">", "two words", "emoji 🙂", "a\tb\r\nc", "\x00", strings.Repeat("k", 4096), "=x", "..", "$JS.API.>", "plain"}
	for i, session := range ids {
		reply := f.run(canonical(session, "batch "+session, call{"count", ""}))
		if string(reply.Session) != session || string(reply.Batch) != "batch "+session {
			t.Errorf("reply to %q names session %q, batch %q", session, reply.Session, reply.Batch)
		}
		if n := int(runs.Load()); n != i+1 {
			t.Errorf("after session %q the write has run %d times, want %d", session, n, i+1)
		}
	}
	f.until("every batch was seen", func() bool { mu.Lock(); defer mu.Unlock(); return batches >= len(ids) })
	mu.Lock()
	defer mu.Unlock()
	var names wire.Names
	for _, s := range subjects {
		if strings.HasPrefix(s, "toolfleet.batch.") {
			if _, _, err := names.Batch(s); err != nil {
				t.Errorf("%v", err)
			}
		}
		if strings.ContainsAny(s, "*> \t\r\n\x00") {
			t.Errorf("subject %q", s)
		}
	}
}

// A client may publish any subject. The coordinator checks the tokens of a subject before it
// uses them.
func TestHostileSubjectsAreDeadLettered(t *testing.T) {
	f, _ := countingFleet(t, natstest.Server(t, natstest.Fast))
	defer f.close()
	body := rawjson.MustMarshal(canonical("s", "b", call{"echo", ""}))
	for _, subject := range []string{"toolfleet.batch._.*.b", "toolfleet.batch._.s.>"} {
		if _, err := f.conn.Append(t.Context(), subject, nil, body); err != nil {
			continue // the server refuses some of these subjects itself
		}
	}
	refused := make(chan bus.Msg, 1)
	if _, err := f.conn.Subscribe("toolfleet.refused.>", "", func(m bus.Msg) { refused <- m }); err != nil {
		t.Fatal(err)
	}
	if _, err := f.conn.Append(t.Context(), "toolfleet.batch._.other.b", nil, body); err != nil {
		t.Fatal(err)
	}
	select {
	case m := <-refused:
		if !strings.Contains(string(m.Data), string(messages.ClassSubjectMismatch)) || m.Subject != "toolfleet.refused._.other.b" {
			t.Errorf("refused at %s with %s", m.Subject, m.Data)
		}
	case <-time.After(20 * time.Second):
		t.Error("a batch whose ids are not its subject's was not refused")
	}
	f.run(canonical("s", "b", call{"echo", ""})) // the coordinator still serves batches
}

func TestHardValuesGoThroughUnharmed(t *testing.T) {
	f, _ := countingFleet(t, natstest.Server(t, natstest.Fast))
	defer f.close()
	for _, p := range messages.Providers {
		for _, value := range []string{
			`9007199254740993`, `"1e400"`, `1e400`, `3.14159265358979323846264338327950288`, `"<>&"`, `"\u0000"`, `"\ud800"`, `"é🙂 "`,
			`{"a":{"b":[1,{"c":null}]}}`, `[]`, `""`,
		} {
			b := batchIn(p, "s", "hard "+string(p)+value, call{"echo", `{"v":` + value + `}`})
			reply := f.run(b)
			full, err := f.client.Get(t.Context(), b.Session, b.ID, client.FullResults())
			if err != nil {
				t.Fatal(err)
			}
			if got := string(full.Results[0].Output); got != `{"v":`+value+`}` {
				t.Errorf("%s: %s came back as %s", p, value, got)
			}
			inside := string(rawjson.Quote(`{"v":` + value + `}`))
			if r := string(reply.Reinjection); !strings.Contains(r, `{"v":`+value+`}`) && !strings.Contains(r, inside[1:len(inside)-1]) {
				t.Errorf("%s: %s is not in the reinjection %s", p, value, r)
			}
		}
	}
}

// largeSizes are sizes of outputs. Two outputs of the first size fit into one message, an
// output of the second is stored as an object, and one of the third is larger than a message.
// The third is smaller with -short, because the race detector slows everything down.
func largeSizes() []int {
	if testing.Short() {
		return []int{200_000, 700_000, 1_100_000}
	}
	return []int{200_000, 700_000, 3_000_000}
}

func TestManyCallsAndLargeOutputs(t *testing.T) {
	f, _ := countingFleet(t, natstest.Server(t, natstest.Fast))
	defer f.close()
	f.tool(schemas.Tool{Name: "blob", Kind: messages.KindRead, MaxOutput: 1 << 30}, func(_ context.Context, c tool.Call) (tool.Output, error) {
		var in struct{ N int }
		if err := json.Unmarshal(c.Input, &in); err != nil {
			return tool.Output{}, err
		}
		return tool.Text(strings.Repeat("x", in.N)), nil
	})
	f.worker(worker.Config{})
	f.until("the worker has announced the tool", func() bool {
		values, err := f.conn.Values(t.Context(), f.conn.Names().Stream(bus.BucketTools))
		return err == nil && len(values) == len(f.tools.Definitions())
	})
	many := make([]call, 128)
	for i := range many {
		many[i] = call{"echo", fmt.Sprintf(`{"n":%d}`, i)}
	}
	if reply := f.run(canonical("s", "many", many...)); len(reply.Results) != 128 || strings.Count(string(reply.Reinjection), `"id"`) != 128 {
		t.Errorf("128 calls: %d results", len(reply.Results))
	}
	for _, size := range largeSizes() {
		reply := f.run(canonical("s", fmt.Sprint("large", size), call{"blob", fmt.Sprintf(`{"n":%d}`, size)}, call{"count", ""}, call{"blob", fmt.Sprintf(`{"n":%d}`, size)}))
		if n := strings.Count(string(reply.Reinjection), "x"); n != 2*size {
			t.Errorf("two outputs of %d bytes: %d came back", size, n)
		}
	}
	tooMany := make([]call, 513)
	for i := range tooMany {
		tooMany[i] = call{"echo", ""}
	}
	_, err := f.client.Run(t.Context(), canonical("s", "too many", tooMany...))
	if err == nil || !strings.Contains(err.Error(), "513") || !strings.Contains(err.Error(), "512") {
		t.Errorf("513 calls: %v, want a refusal with number and limit", err)
	}
	large := canonical("s", "too large", call{"echo", `{"v":"` + strings.Repeat("x", 1000_000) + `"}`})
	_, err = f.client.Run(t.Context(), large)
	if err == nil || !strings.Contains(err.Error(), "983040") {
		t.Errorf("a batch of a million bytes: %v, want a refusal with the limit", err)
	}
	// Another program does not check the size of a batch as our client does. The coordinator
	// refuses a batch that fits into a message and exceeds the limit.
	reply, err := f.conn.Request(t.Context(), "toolfleet.run._.s.over", nil, []byte(`{"v":1,"id":"over","session":"s","provider":"canonical","message":{"calls":[{"id":"x","name":"echo","input":{"v":"`+strings.Repeat("x", 1000_000)+`"}}]}}`))
	if err != nil || !strings.Contains(string(reply.Data), `"too_large"`) || !strings.Contains(string(reply.Data), "983040") {
		t.Errorf("over the limit, without the client: %.300s, err %v", reply.Data, err)
	}
}

func TestRefusals(t *testing.T) {
	f, runs := countingFleet(t, natstest.Server(t, natstest.Fast))
	defer f.close()
	for _, tt := range []struct {
		provider messages.Provider
		message  string
		want     messages.Class
	}{
		{"anthropic", `{"role":"user","content":"hi"}`, messages.ClassMalformedMessage},
		{"openai", `{}`, messages.ClassUnsupportedProvider},
		{"canonical", `{"calls":[{"id":"a","name":"count","input":{}},{"id":"a","name":"count","input":{}}]}`, messages.ClassDuplicateID},
		{"canonical", `{"calls":[{"name":"count","input":{}}]}`, messages.ClassMissingID},
		{"openai-chat", `{"role":"assistant","function_call":{"name":"count","arguments":"{}"}}`, ""},
	} {
		b := messages.Batch{ID: messages.BatchID(fmt.Sprint(tt.provider, tt.want)), Session: "s", Provider: tt.provider, Message: json.RawMessage(tt.message)}
		reply, err := f.client.Run(t.Context(), b)
		var refusal *messages.Refusal
		if !errors.As(err, &refusal) || reply.Status != messages.ReplyRefused || tt.want != "" && refusal.Class != tt.want {
			t.Errorf("%s %s: %v, want %s", tt.provider, tt.message, err, tt.want)
		}
	}
	if n := runs.Load(); n != 0 {
		t.Errorf("refused batches ran %d calls", n)
	}
	reply := f.run(canonical("s", "nothing"))
	if string(reply.Reinjection) != "null" || len(reply.Results) != 0 || reply.Status != messages.ReplyCompleted {
		t.Errorf("no calls: %s", rawjson.MustMarshal(reply))
	}
}

func TestNobodyTakesTheCall(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f, runs := countingFleet(t, srv)
		defer f.close()
		f.run(canonical("warm", "b", call{"echo", ""})) // the worker has announced its tools
		f.stops[0]()                                    // the worker leaves; its tools stay known
		began := time.Now()
		reply := f.run(canonical("s", "b", call{"echo", ""}, call{"count", ""}))
		for _, r := range reply.Results {
			if r.Status != messages.StatusExpired || r.Err.Code != messages.CodeQueueTimeout {
				t.Errorf("call %d: %s %+v", r.Index, r.Status, r.Err)
			}
		}
		if took := time.Since(began); took < 2*time.Minute || took > 3*time.Minute || runs.Load() != 0 {
			t.Errorf("two calls that nobody took ended after %v of simulated time, %d runs; want a minute each and none", took, runs.Load())
		}
	})
}

// The call id of a provider contains half a surrogate pair, which is not valid UTF-8. The
// reply repeats the id unchanged.
func TestACallIdThatIsNotUTF8(t *testing.T) {
	f, _ := countingFleet(t, natstest.Server(t, natstest.Fast))
	defer f.close()
	b := messages.Batch{ID: "b", Session: "s", Provider: messages.Anthropic, Message: json.RawMessage(
		`{"role":"assistant","content":[{"type":"tool_use","id":"x\ud800y","name":"echo","input":{"n":1}},{"type":"tool_use","id":"z","name":"count","input":{}}]}`)}
	if reply := f.run(b); !strings.Contains(string(reply.Reinjection), `"tool_use_id":"x\ud800y"`) {
		t.Errorf("reinjection %s", reply.Reinjection)
	}
}

// Gemini accepts no tool name that starts with a digit. It is given another name, and its
// calls by that name reach the tool.
func TestAToolThatTheProviderKnowsByAnotherName(t *testing.T) {
	t.Parallel()
	f := newFleet(t, natstest.Server(t, natstest.Fast))
	defer f.close()
	f.tool(schemas.Tool{Name: "3d_render", Kind: messages.KindRead}, func(context.Context, tool.Call) (tool.Output, error) {
		return tool.Text("rendered"), nil
	})
	f.worker(worker.Config{})
	f.coordinator(coordinator.Config{})
	reply := f.run(batchIn(messages.Gemini, "s", "b", call{export.Name(messages.Gemini, "3d_render"), "{}"}))
	if r := string(reply.Reinjection); !strings.Contains(r, `"rendered"`) || !strings.Contains(r, export.Name(messages.Gemini, "3d_render")) {
		t.Errorf("reinjection %s", r)
	}
}

// A free-text call of OpenAI gives the tool its text as the member input, even if the text
// looks like JSON.
func TestFreeTextIsTheInput(t *testing.T) {
	f := newFleet(t, natstest.Server(t, natstest.Fast))
	defer f.close()
	f.tool(schemas.Tool{
		Name: "run_sql", Kind: messages.KindRead,
		InputSchema: json.RawMessage(`{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false}`),
	}, func(_ context.Context, c tool.Call) (tool.Output, error) {
		return tool.Text("got " + string(c.Input)), nil
	})
	f.worker(worker.Config{})
	f.coordinator(coordinator.Config{})
	const text, want = `"{\"looks\": \"like JSON\"}"`, `"got {\"input\":\"{\\\"looks\\\": \\\"like JSON\\\"}\"}"`
	for p, message := range map[messages.Provider]string{
		messages.OpenAIChat:      `{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"custom","custom":{"name":"run_sql","input":` + text + `}}]}`,
		messages.OpenAIResponses: `[{"type":"custom_tool_call","id":"ctc_1","call_id":"a","name":"run_sql","input":` + text + `}]`,
	} {
		reply := f.run(messages.Batch{ID: messages.BatchID(p), Session: "s", Provider: p, Message: json.RawMessage(message)})
		if !strings.Contains(string(reply.Reinjection), want) {
			t.Errorf("%s: the tool got another input than its text: %s", p, reply.Reinjection)
		}
	}
}
