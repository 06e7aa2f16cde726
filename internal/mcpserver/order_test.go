package mcpserver_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/internal/mcpserver"
	"github.com/toolfleet/toolfleet/messages"
)

// line is the connection of a client over stdio: it writes lines and reads lines.
type line struct {
	t   *testing.T
	in  *io.PipeWriter
	out *bufio.Scanner
}

// pipe starts a server, and returns the connection of a client that writes its own lines.
func (f *testFleet) pipe(t *testing.T) *line {
	t.Helper()
	theirIn, in := io.Pipe()
	out, theirOut := io.Pipe()
	s := mcpserver.New(mcpserver.Config{Logger: f.log})
	f.start(func(ctx context.Context) error {
		return s.Serve(ctx, &mcp.IOTransport{Reader: theirIn, Writer: theirOut}, mcpserver.Caller{Client: f.client, Session: "s"})
	})
	t.Cleanup(func() { _, _ = in.Close(), out.Close() })
	l := &line{t, in, bufio.NewScanner(out)}
	l.out.Buffer(nil, 1<<20)
	l.write(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
	l.read()
	l.write(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return l
}

func (l *line) write(text string) {
	l.t.Helper()
	if _, err := io.WriteString(l.in, text+"\n"); err != nil {
		l.t.Fatal(err)
	}
}

// response is a line that the server writes.
type response struct {
	ID     int
	Result struct {
		IsError    bool
		Content    []struct{ Text string }
		ResultType string
	}
	Error json.RawMessage
}

func (l *line) read() (r response) {
	l.t.Helper()
	if !l.out.Scan() {
		l.t.Fatalf("the server is gone: %v", l.out.Err())
	}
	if err := json.Unmarshal(l.out.Bytes(), &r); err != nil {
		l.t.Fatalf("%v in %s", err, l.out.Bytes())
	}
	return r
}

func (l *line) call(id int, tool string) {
	l.t.Helper()
	l.write(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"%s","arguments":{"n":%d}}}`, id, tool, id))
}

// Writes and reads are sent one after another, and the client waits for no result: they run in
// this order.
func TestCallsKeepTheirOrder(t *testing.T) {
	inFleet(t, func(t *testing.T, f *testFleet) {
		l := f.pipe(t)
		const calls = 400
		go func() {
			for i := 1; i <= calls; i += 2 {
				l.call(i, "note")
				l.call(i+1, "look")
			}
		}()
		for range calls {
			if r := l.read(); r.Result.IsError || r.Error != nil {
				t.Fatalf("call %d: %+v", r.ID, r)
			}
		}
		// Neighbouring reads may run in any order. In this test each read is between two
		// writes, so the order is fixed.
		var want []string
		for i := 1; i <= calls; i += 2 {
			want = append(want, fmt.Sprintf(`note{"n":%d}`, i), fmt.Sprintf(`look{"n":%d}`, i+1))
		}
		if diff := cmp.Diff(want, f.history()); diff != "" {
			t.Error(diff)
		}
	})
}

// Reads run together: all three have begun before gate opens.
func TestReadsRunTogether(t *testing.T) {
	inFleet(t, func(t *testing.T, f *testFleet) {
		l := f.pipe(t)
		for i := 1; i <= 3; i++ {
			l.call(i, "gate")
		}
		f.waitEntered(3)
		close(f.gate)
		for range 3 {
			if r := l.read(); r.Result.IsError || r.Result.Content[0].Text != "open" {
				t.Errorf("call %d: %+v", r.ID, r)
			}
		}
	})
}

// A call is answered without being stored: the next call goes on.
func TestABadCallHoldsUpNoOther(t *testing.T) {
	inFleet(t, func(t *testing.T, f *testFleet) {
		l := f.pipe(t)
		l.write(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":7}}`)
		l.write(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"look","_meta":{"toolfleet/id":7}}}`)
		l.write(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"look","_meta":{"toolfleet/session":"` + strings.Repeat("x", 9000) + `"}}}`)
		l.write(`{"jsonrpc":"2.0","id":4,"method":"tools/call"}`)
		l.call(5, "look")
		for range 5 {
			if r := l.read(); (r.Error == nil) != (r.ID == 5) {
				t.Errorf("call %d: %+v %s", r.ID, r.Result, r.Error)
			}
		}
	})
}

// A client cancels a call that runs: the server reads the notification, and the call is
// aborted.
func TestACancelledCallIsAborted(t *testing.T) {
	inFleet(t, func(t *testing.T, f *testFleet) {
		l := f.pipe(t)
		l.write(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"gate","arguments":{},"_meta":{"toolfleet/id":"mine"}}}`)
		f.waitEntered(1)
		l.write(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		f.untilCall("s", "mine", messages.StatusAborted)
	})
}

// A client disconnects: its call without an id is aborted, because nobody can ask for the
// result. A call with an id goes on.
func TestAClosedStreamAbortsWhatCannotBeAskedAgain(t *testing.T) {
	inFleet(t, func(t *testing.T, f *testFleet) {
		l := f.pipe(t)
		l.write(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"gate","arguments":{},"_meta":{"toolfleet/id":"mine"}}}`)
		l.call(2, "gate")
		f.waitEntered(2)
		must(t, l.in.Close())
		f.untilCall("s", f.otherBatch("s", "mine"), messages.StatusAborted)
		close(f.gate)
		// A request with the same id gets the result, also from another server.
		c, _ := f.dial(mcpserver.Config{}, nil, "s")
		r, err := c.CallTool(t.Context(), call("gate", `{}`, "toolfleet/id", "mine"))
		must(t, err)
		if text(r) != "open" || r.IsError {
			t.Errorf("got %q", text(r))
		}
		if got := len(f.history()); got != 2 {
			t.Errorf("%d runs, want 2", got)
		}
	})
}
