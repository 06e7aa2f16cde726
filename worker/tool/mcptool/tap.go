package mcptool

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// calls holds the running calls of a session, by progress token. It also holds the parts of
// messages that the SDK drops.
type calls struct {
	mu      sync.Mutex
	next    int                     // guarded by mu
	byToken map[string]*runningCall // guarded by mu
	byID    map[string]*runningCall // the same calls by the id of the request; guarded by mu
	asTask  map[string]bool         // tools that run only as tasks of the protocol; guarded by mu
}

// runningCall is a call that was sent to a server and has not ended.
type runningCall struct {
	token    string
	answered chan struct{} // closed when the server has answered, even after a cut-off
	report   func(messages.Progress)
	over     bool // guarded by calls.mu
	// structured is the structured content of the answer as it was sent. The SDK decodes its
	// numbers into floats, which rounds long ones. Written before answered is closed.
	structured json.RawMessage
}

func newCalls() *calls {
	return &calls{byToken: map[string]*runningCall{}, byID: map[string]*runningCall{}, asTask: map[string]bool{}}
}

// begin adds a call. report may be nil.
func (c *calls) begin(report func(messages.Progress)) *runningCall {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next++
	r := &runningCall{token: strconv.Itoa(c.next), answered: make(chan struct{}), report: report}
	c.byToken[r.token] = r
	return r
}

// end removes a call. After end has returned, no progress of the call is reported.
func (c *calls) end(r *runningCall) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.over = true
	delete(c.byToken, r.token)
	for id, other := range c.byID {
		if other == r {
			delete(c.byID, id)
		}
	}
}

// progress passes a progress report on to its call.
func (c *calls) progress(p *mcp.ProgressNotificationParams) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.byToken[fmt.Sprint(p.ProgressToken)]
	if r == nil || r.over || r.report == nil {
		return
	}
	report := messages.Progress{Text: clean(p.Message)}
	if p.Total > 0 && p.Progress >= 0 {
		report.Fraction = min(p.Progress/p.Total, 1)
	}
	if len(report.Text) > maxReport {
		report.Text = report.Text[:maxReport]
	}
	r.report(report)
}

// maxReport limits the text of a report, in bytes.
const maxReport = 2000

// sent records the id of a request, by which its answer is found.
func (c *calls) sent(request *jsonrpc.Request) {
	var params struct {
		Meta struct {
			Token any `json:"progressToken"`
		} `json:"_meta"`
	}
	if request.Method != "tools/call" || json.Unmarshal(request.Params, &params) != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.byToken[fmt.Sprint(params.Meta.Token)]; r != nil {
		c.byID[fmt.Sprint(request.ID.Raw())] = r
	}
}

// answered tells the call that its answer has come. It also notes the parts of the answer that
// the SDK drops.
func (c *calls) answered(response *jsonrpc.Response) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noteTasks(response.Result)
	id := fmt.Sprint(response.ID.Raw())
	if r := c.byID[id]; r != nil {
		r.structured = structuredOf(response.Result)
		close(r.answered)
		delete(c.byID, id)
	}
}

// noteTasks notes which tools of a list run only as tasks of the protocol, because the SDK
// drops this part of a list. The caller holds mu.
func (c *calls) noteTasks(result json.RawMessage) {
	var listed struct {
		Tools []struct {
			Name      string `json:"name"`
			Execution struct {
				TaskSupport string `json:"taskSupport"`
			} `json:"execution"`
		} `json:"tools"`
	}
	if !bytes.Contains(result, []byte(`"taskSupport"`)) || json.Unmarshal(result, &listed) != nil {
		return
	}
	for _, t := range listed.Tools {
		if t.Execution.TaskSupport == "required" && len(t.Name) <= maxName && len(c.asTask) < maxTools {
			c.asTask[t.Name] = true
		} else {
			delete(c.asTask, t.Name)
		}
	}
}

// onlyAsTask reports whether a tool runs only as a task, by the newest list.
func (c *calls) onlyAsTask(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asTask[name]
}

// restore puts the structured content into a result as the server sent it, if that was seen.
func (r *runningCall) restore(result *mcp.CallToolResult) {
	select {
	case <-r.answered:
		if r.structured != nil {
			result.StructuredContent = r.structured
		}
	default: // a service answered in a form that calls did not see
	}
}

// structuredOf returns the structured content of a result. It returns nil if there is none, or
// if it cannot be kept byte for byte.
func structuredOf(result json.RawMessage) json.RawMessage {
	var members struct {
		StructuredContent json.RawMessage `json:"structuredContent"`
	}
	if !bytes.Contains(result, []byte(`"structuredContent"`)) || json.Unmarshal(result, &members) != nil || rawjson.Check(members.StructuredContent) != nil {
		return nil
	}
	return members.StructuredContent
}

// tap is a transport that shows every message to calls, in order. Each progress report thus
// arrives before the answer that follows it.
type tap struct {
	mcp.Transport
	calls *calls
}

// Connect connects the transport.
func (t *tap) Connect(ctx context.Context) (mcp.Connection, error) {
	conn, err := t.Transport.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &tappedConn{conn, t.calls}, nil
}

type tappedConn struct {
	mcp.Connection
	calls *calls
}

// Read returns the next message that is not a progress report.
func (c *tappedConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	for {
		message, err := c.Connection.Read(ctx)
		if err != nil {
			return nil, err
		}
		switch m := message.(type) {
		case *jsonrpc.Response:
			c.calls.answered(m)
		case *jsonrpc.Request:
			var p mcp.ProgressNotificationParams
			if m.Method == "notifications/progress" {
				if json.Unmarshal(m.Params, &p) == nil {
					c.calls.progress(&p)
				}
				continue
			}
		}
		return message, nil
	}
}

// Write sends a message. If the message is a request, it first records that it is sent.
func (c *tappedConn) Write(ctx context.Context, message jsonrpc.Message) error {
	if request, ok := message.(*jsonrpc.Request); ok {
		c.calls.sent(request)
	}
	return c.Connection.Write(ctx, message)
}
