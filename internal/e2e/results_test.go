package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// cutRef finds the ref of a cut output in the text that a model reads.
var cutRef = regexp.MustCompile(`ref\\*"?:? ?\\*"?([0-9a-f]{16})`)

// An output is large. The model reads 10,000 characters of it, and the rest by result_read:
// only in the same session, and as the hooks changed it.
func TestTheWholeOfAnOutputIsReadable(t *testing.T) {
	f := newFleet(t, natstest.Server(t, natstest.Fast))
	defer f.close()
	size := 17 << 20 // many messages of the object store
	if testing.Short() {
		size = 2 << 20 // the race detector makes large texts 20 times as slow
	}
	f.tool(schemas.Tool{Name: "print", Kind: messages.KindRead, TimeoutMS: 60_000, Results: schemas.ResultsReadable, Truncate: schemas.TruncateMiddle},
		func(_ context.Context, c tool.Call) (tool.Output, error) {
			out := tool.Text(strings.Repeat("0123456789abcde\n", size/16) + "card 4111\nlast line")
			out.Details = json.RawMessage(`{"rows":7}`)
			return out, nil
		})
	f.tool(schemas.Tool{Name: "table", Kind: messages.KindRead, Results: schemas.ResultsReadable}, func(context.Context, tool.Call) (tool.Output, error) {
		rows := make([]map[string]any, 2000)
		for i := range rows {
			rows[i] = map[string]any{"id": i, "name": fmt.Sprint("row ", i)}
		}
		return tool.JSON(map[string]any{"rows": rows})
	})
	hooks, err := hook.NewSet(hook.Hook{Name: "cards", Match: "print", After: func(_ context.Context, _ hook.Call, done hook.Done) (hook.Change, error) {
		text, _ := done.Outcome.OutputString()
		raw, err := json.Marshal(strings.Replace(text, "4111", "****", 1))
		return hook.Change{Output: raw}, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	f.worker(worker.Config{Hooks: hooks})
	f.coordinator(coordinator.Config{})

	reply := f.run(canonical("s", "b1", call{"print", "{}"}, call{"table", "{}"}))
	text, table := reply.Results[0], reply.Results[1]
	if text.Truncated == nil || text.Truncated.Chars < size-10_000 || text.Truncated.Ref == "" || string(text.Details) != `{"rows":7}` {
		t.Fatalf("the large text: got %+v, details %s", text.Truncated, text.Details)
	}
	if len(reply.Reinjection) > 25_000 || strings.Contains(string(reply.Reinjection), `"rows":7`) {
		t.Errorf("the model reads %d bytes: %.300s", len(reply.Reinjection), reply.Reinjection)
	}
	for _, r := range []messages.Result{text, table} {
		if !strings.Contains(string(reply.Reinjection), r.Truncated.Ref) {
			t.Errorf("the model does not read the ref of %s", r.Tool)
		}
	}
	if found := cutRef.FindAllSubmatch(reply.Reinjection, -1); len(found) != 2 {
		t.Errorf("the model reads %d refs, want 2: %.300s", len(found), reply.Reinjection)
	}
	read := func(session, id, ref, more string) string {
		t.Helper()
		return string(f.run(canonical(session, id, call{"result_read", `{"ref":"` + ref + `"` + more + `}`})).Reinjection)
	}
	if got := read("s", "b2", text.Truncated.Ref, `,"grep":"card|last"`); !strings.Contains(got, `card ****`) || !strings.Contains(got, "last line") || !strings.Contains(got, "2 lines match") {
		t.Errorf("grep: got %.300s", got)
	}
	if got := read("s", "b3", text.Truncated.Ref, fmt.Sprintf(`,"offset":%d,"limit":16`, size-16)); !strings.Contains(got, `0123456789abcde`) {
		t.Errorf("range: got %.300s", got)
	}
	if got := read("s", "b4", table.Truncated.Ref, `,"pointer":"/rows/1999/name"`); !strings.Contains(got, "row 1999") {
		t.Errorf("pointer: got %.300s", got)
	}
	if got := read("other", "b5", table.Truncated.Ref, ""); !strings.Contains(got, "unknown_ref") {
		t.Errorf("another session: got %.300s", got)
	}
}

// A worker without readable results does not serve result_read. A cut output is still stored
// whole.
func TestResultReadIsServedWhenWanted(t *testing.T) {
	f := newFleet(t, natstest.Server(t, natstest.Fast))
	defer f.close()
	f.tool(schemas.Tool{Name: "print", Kind: messages.KindRead, MaxOutput: 10}, func(context.Context, tool.Call) (tool.Output, error) {
		return tool.Text("0123456789abc"), nil
	})
	f.worker(worker.Config{})
	f.coordinator(coordinator.Config{})
	reply := f.run(canonical("s", "b", call{"print", "{}"}, call{"result_read", `{"ref":"0123456789abcdef"}`}))
	if cut := reply.Results[0].Truncated; cut == nil || cut.Ref == "" || cut.Chars != 3 {
		t.Errorf("got %+v", cut)
	}
	if got := reply.Results[1].Status; got != messages.StatusUnknownTool {
		t.Errorf("got %s, want unknown_tool", got)
	}
}
