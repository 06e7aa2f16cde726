package mcpserver_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/internal/mcpserver"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// The tools change: a client over stdio gets a notification, in every version of the protocol.
// It can then list and call the new tool.
func TestAClientIsToldOfNewTools(t *testing.T) {
	inFleet(t, func(t *testing.T, f *testFleet) {
		changed := make(chan struct{}, 100)
		here, there := mcp.NewInMemoryTransports()
		f.start(func(ctx context.Context) error {
			return mcpserver.New(mcpserver.Config{Logger: f.log}).Serve(ctx, there, mcpserver.Caller{Client: f.client, Session: "s"})
		})
		ctx, leave := context.WithCancel(t.Context()) // the SDK's client listens until leave is called
		defer leave()
		c, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
			ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { changed <- struct{}{} },
		}).Connect(ctx, here, nil)
		must(t, err)
		defer c.Close()
		old := f.pipe(t)
		names := func() (all []string) {
			list, err := c.ListTools(t.Context(), nil)
			must(t, err)
			for _, tool := range list.Tools {
				all = append(all, tool.Name)
			}
			return all
		}
		if got := names(); slices.Contains(got, "later") || slices.Contains(got, "changed") {
			t.Fatalf("at first: %q", got)
		}
		var tools tool.Registry
		must(t, tools.Add(schemas.Tool{Name: "later", Kind: messages.KindRead, InputSchema: []byte(`{"type":"object"}`)},
			tool.Func(func(context.Context, tool.Call) (tool.Output, error) { return tool.Text("late"), nil })))
		w, err := worker.New(f.connect(), &tools, worker.Config{Logger: f.log})
		must(t, err)
		f.start(w.Run)
		<-changed
		if got := names(); !slices.Contains(got, "later") || slices.Contains(got, "changed") {
			t.Errorf("after the change: %q", got)
		}
		if r, err := c.CallTool(t.Context(), call("later", `{}`)); err != nil || text(r) != "late" {
			t.Errorf("got %v %v", r, err)
		}
		if !old.out.Scan() || !strings.Contains(old.out.Text(), `"notifications/tools/list_changed"`) {
			t.Errorf("a client of 2025-11-25 reads %q", old.out.Text())
		}
	})
}
