package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/internal/httpapi/access"
	"github.com/toolfleet/toolfleet/messages"
)

// The same batch is requested again: the answer has the same bytes, and nothing runs again.
func TestABatchRunsOnce(t *testing.T) {
	f := newFleet(t)
	const path = "/v1/sessions/s/batches/b"
	first := f.do("PUT", path, message("note", "look"))
	if first.Status != http.StatusOK {
		t.Fatalf("%d %s", first.Status, first.Body)
	}
	reply := decode[messages.Reply](t, first.Body)
	if reply.Batch != "b" || reply.Session != "s" || len(reply.Results) != 2 || reply.Digest != first.Header.Get("Toolfleet-Digest") {
		t.Errorf("got %s with digest %q", first.Body, first.Header.Get("Toolfleet-Digest"))
	}
	for name, again := range map[string]answer{
		"PUT again": f.do("PUT", path, message("note", "look")),
		"GET":       f.do("GET", path, ""),
	} {
		if again.Status != http.StatusOK || !bytes.Equal(again.Body, first.Body) || again.Header.Get("Toolfleet-Digest") != reply.Digest {
			t.Errorf("%s: got %d %s, want %s", name, again.Status, again.Body, first.Body)
		}
	}
	if n := f.noted.Load(); n != 1 {
		t.Errorf("note ran %d times", n)
	}
	other := f.do("PUT", path, message("look"))
	if other.Status != http.StatusConflict || other.code() != "batch_conflict" {
		t.Errorf("another body: got %d %s", other.Status, other.Body)
	}
	waited := f.do("PUT", path, message("look"), "Prefer", "wait=0")
	if waited.Status != http.StatusConflict || waited.code() != "batch_conflict" {
		t.Errorf("another body, without waiting: got %d %s", waited.Status, waited.Body)
	}
	full := decode[messages.Reply](t, f.do("GET", path+"?results=full", "").Body)
	if got := string(full.Results[1].Output); got != `{"n":1}` {
		t.Errorf("the full result has the output %s", got)
	}
	timeline := decode[messages.Timeline](t, f.do("GET", path+"?timeline=1", "").Body)
	if timeline.Status != "completed" || len(timeline.Events) == 0 {
		t.Errorf("got the timeline %+v", timeline)
	}
}

// A client prefers not to wait: it is told to ask again, and later gets the reply.
func TestAClientNeedNotWait(t *testing.T) {
	f := newFleet(t)
	const path = "/v1/sessions/s/batches/b"
	for _, prefer := range []string{"wait=0", "respond-async, wait=0", `Wait="0"`} {
		a := f.do("PUT", path, message("gate"), "Prefer", prefer)
		if a.Status != http.StatusAccepted || a.Header.Get("Retry-After") == "" || string(a.Body) != "{\"status\":\"running\"}\n" {
			t.Fatalf("Prefer: %s: got %d %q %s", prefer, a.Status, a.Header, a.Body)
		}
	}
	f.waitEntered()
	if a := f.do("GET", path, ""); a.Status != http.StatusAccepted {
		t.Errorf("GET: %d %s", a.Status, a.Body)
	}
	f.open()
	if a := f.do("PUT", path, message("gate"), "Prefer", "wait=60"); a.Status != http.StatusOK {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
}

// The result of one call is available while the next call runs: in the event of its end, and
// by a request.
func TestTheFirstAnswerComesFirst(t *testing.T) {
	f := newFleet(t)
	const path = "/v1/sessions/s/batches/b"
	stream := f.stream("/v1/sessions/s/events", "")
	if a := f.do("PUT", path, message("note", "gate"), "Prefer", "wait=0"); a.Status != http.StatusAccepted {
		t.Fatalf("got %d %s", a.Status, a.Body)
	}
	f.waitEntered()
	var end messages.Event
	for end.Type != messages.EventEnd {
		e, ok := stream.next()
		if !ok {
			t.Fatal("the stream ended")
		}
		end = decode[messages.Event](t, []byte(e.data))
	}
	if end.Index != 0 || string(end.Result.Output) != `"noted"` {
		t.Errorf("the first end says %+v", end.Result)
	}
	a := f.do("GET", path+"?results=full", "")
	state := decode[messages.State](t, a.Body)
	if a.Status != http.StatusAccepted || state.Status != "running" || len(state.Results) != 1 || string(state.Results[0].Output) != `"noted"` {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	f.open()
	stream.until("b reply -1")
}

// A body has a misspelt member: the answer names it and its place. Nothing is stored under the
// id, so the correct body may follow.
func TestAMisspeltMember(t *testing.T) {
	f := newFleet(t)
	const path = "/v1/sessions/s/batches/b"
	a := f.do("PUT", path, strings.Replace(message("look"), `"message"`, `"messages"`, 1))
	if a.Status != http.StatusUnprocessableEntity || !strings.Contains(string(a.Body), `message is missing; \"messages\" at byte 25 is no member of a batch`) {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
	bare := f.do("PUT", path, `{"role":"assistant","content":[]}`)
	if bare.Status != http.StatusUnprocessableEntity || !strings.Contains(string(bare.Body), `Want {\"provider\"`) {
		t.Errorf("a message without its envelope: %d %s", bare.Status, bare.Body)
	}
	if a := f.do("PUT", path, message("look")); a.Status != http.StatusOK {
		t.Errorf("the right body: %d %s", a.Status, a.Body)
	}
}

// An id may be any text: it arrives as it was before it was encoded in the path.
func TestIdsHoldAnyText(t *testing.T) {
	inBubble(t, func(t *testing.T, f *testFleet) {
		for path, want := range map[string][2]string{
			"a%2Fb/batches/x%00y":           {"a/b", "x\x00y"},
			"%2E%2E/batches/%20":            {"..", " "},
			"%2F/batches/%2F":               {"/", "/"},
			"caf%C3%A9/batches/%25":         {"café", "%"},
			"a+b/batches/" + longID(3):      {"a+b", longID(3)},
			"s/batches/%E2%80%A8%22%5C%3Ca": {"s", "\u2028\"\\<a"},
		} {
			a := f.do("PUT", "/v1/sessions/"+path, message("look"))
			if a.Status != http.StatusOK {
				t.Errorf("%s: %d %s", path, a.Status, a.Body)
				continue
			}
			reply := decode[messages.Reply](t, a.Body)
			if got := [2]string{string(reply.Session), string(reply.Batch)}; got != want {
				t.Errorf("%s: got the ids %q, want %q", path, got, want)
			}
			if a := f.do("GET", "/v1/sessions/"+path, ""); a.Status != http.StatusOK {
				t.Errorf("GET %s: %d %s", path, a.Status, a.Body)
			}
		}
		for path, want := range map[string]int{
			"s/batches/%FF": http.StatusUnprocessableEntity,
			"s/batches/" + strings.Repeat("x", 8<<10+1): http.StatusRequestEntityTooLarge,
			"s/batches/unknown":                         http.StatusNotFound,
			"s/nothing":                                 http.StatusNotFound,
			"s/calls/1":                                 http.StatusMethodNotAllowed,
		} {
			if a := f.do("GET", "/v1/sessions/"+path, ""); a.Status != want {
				t.Errorf("GET %.40s: got %d %.200s, want %d", path, a.Status, a.Body, want)
			}
		}
	})
}

func longID(n int) string { return strings.Repeat("0123456789", 10*n) }

// A single call is run as a batch, and the answer is its result.
func TestACall(t *testing.T) {
	f := newFleet(t)
	const path = "/v1/sessions/s/calls/"
	for name, row := range map[string]struct{ body, status, output string }{
		"look":     {`{"name":"look","input":{"n":12345678901234567890.10}}`, "ok", `{"n":12345678901234567890.10}`},
		"write":    {`{"name":"note"}`, "ok", `"noted"`},
		"no input": {`{"name":"look"}`, "ok", `{}`},
		"unknown":  {`{"name":"nope","input":{}}`, "unknown_tool", ""},
		"bad":      {`{"name":"look","input":[]}`, "validation_error", ""},
		"unnamed":  {`{"input":{}}`, "unknown_tool", ""},
		"timeout":  {`{"name":"gate","timeout_ms":50}`, "timeout", ""},
	} {
		a := f.do("PUT", path+strings.ReplaceAll(name, " ", "%20"), row.body)
		if a.Status != http.StatusOK {
			t.Errorf("%s: %d %s", name, a.Status, a.Body)
			continue
		}
		r := decode[messages.Result](t, a.Body)
		if string(r.Status) != row.status || string(r.Output) != row.output || string(r.CallID) != name || (r.Err == nil) != (row.status == "ok") {
			t.Errorf("%s: got %s", name, a.Body)
		}
		if again := f.do("PUT", path+strings.ReplaceAll(name, " ", "%20"), row.body); !bytes.Equal(again.Body, a.Body) {
			t.Errorf("%s, again: got %s, want %s", name, again.Body, a.Body)
		}
	}
	if a := f.do("PUT", "/v1/sessions/s/batches/look", message("look")); a.Status != http.StatusConflict {
		t.Errorf("a batch with the id of a call: %d %s", a.Status, a.Body)
	}
	if a := f.do("GET", "/v1/sessions/s/batches/look", ""); a.Status != http.StatusOK {
		t.Errorf("the batch of a call: %d %s", a.Status, a.Body)
	}
}

// Each mistake of a client is answered with the status that fits.
func TestWhatIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, f *testFleet) {
		const path = "/v1/sessions/s/batches/b"
		for name, row := range map[string]struct {
			method, path, body string
			status             int
			code               string
		}{
			"no body":          {"PUT", path, "", 422, "malformed_message"},
			"no JSON":          {"PUT", path, "{", 422, "malformed_message"},
			"a list":           {"PUT", path, "[]", 422, "malformed_message"},
			"a key twice":      {"PUT", path, `{"provider":"canonical","provider":"gemini","message":{}}`, 422, "malformed_message"},
			"no message":       {"PUT", path, `{"provider":"canonical"}`, 422, "malformed_message"},
			"no provider":      {"PUT", path, `{"message":{"calls":[]}}`, 422, "unsupported_provider"},
			"unknown provider": {"PUT", path + "2", `{"provider":"nobody","message":{}}`, 422, "unsupported_provider"},
			"another id":       {"PUT", path, `{"id":"c","provider":"canonical","message":{"calls":[]}}`, 422, "malformed_message"},
			"another session":  {"PUT", path, `{"session":7,"provider":"canonical","message":{"calls":[]}}`, 422, "malformed_message"},
			"another version":  {"PUT", path, `{"v":2,"provider":"canonical","message":{"calls":[]}}`, 422, "malformed_message"},
			"ids twice":        {"PUT", path + "3", `{"provider":"canonical","message":{"calls":[{"id":"a","name":"look"},{"id":"a","name":"look"}]}}`, 422, "duplicate_id"},
			"a body for a get": {"GET", path, "x", 413, "too_large"},
			"a wrong query":    {"GET", path + "?results=all", "", 422, "invalid_query"},
			"a call's message": {"PUT", "/v1/sessions/s/calls/1", `{"name":"look","message":{}}`, 422, "malformed_message"},
			"a call's name":    {"PUT", "/v1/sessions/s/calls/1", `{"name":7}`, 422, "malformed_message"},
			"no steering":      {"POST", "/v1/sessions/s/steer", `{}`, 422, "malformed_message"},
			"steering null":    {"POST", "/v1/sessions/s/steer", `{"steer":null}`, 422, "malformed_message"},
			"steering of when": {"POST", "/v1/sessions/s/steer", `{"steer":"x","when":"never"}`, 422, "malformed_message"},
			"abort of what":    {"POST", "/v1/sessions/s/abort", `{"abort":false}`, 422, "malformed_message"},
			"abort misspelt":   {"POST", "/v1/sessions/s/abort", `{"abort_batch":"b"}`, 422, "malformed_message"},
			"another verb":     {"POST", "/v1/sessions/s/abort", `{"reason":"enough","skip":"Write"}`, 422, "malformed_message"},
			"steer and abort":  {"POST", "/v1/sessions/s/abort", `{"steer":"x"}`, 422, "malformed_message"},
			"abort and steer":  {"POST", "/v1/sessions/s/steer", `{"steer":"x","abort":true}`, 422, "malformed_message"},
			"steer and skip":   {"POST", "/v1/sessions/s/steer", `{"steer":"x","skip":"Write"}`, 422, "malformed_message"},
			"wrong method":     {"PATCH", path, "", 405, "wrong_method"},
			"nothing there":    {"GET", "/v2", "", 404, "no_such_path"},
		} {
			a := f.do(row.method, row.path, row.body)
			if a.Status != row.status || a.code() != row.code {
				t.Errorf("%s: got %d %.300s, want %d %s", name, a.Status, a.Body, row.status, row.code)
			}
		}
		refused := f.do("PUT", path+"2", `{"provider":"nobody","message":{}}`)
		var p struct{ Reply messages.Reply }
		if err := json.Unmarshal(refused.Body, &p); err != nil || p.Reply.Status != messages.ReplyRefused {
			t.Errorf("a stored refusal does not have its reply: %s", refused.Body)
		}
	})
}

// A request is too large: it is answered before all of it was read. The answer also arrives if
// the client asks to have the connection closed. The test needs a socket, because a pipe
// cannot be closed in one direction only: the client could see the end of its writing first.
func TestWhatIsTooLarge(t *testing.T) {
	f := newFleet(t)
	const path = "/v1/sessions/s/batches/"
	for _, size := range []int{1 << 20, 16 << 20} {
		big := `{"provider":"canonical","message":{"calls":[],"x":"` + strings.Repeat("x", size) + `"}}`
		if a := f.do("PUT", path+"b", big); a.Status != http.StatusRequestEntityTooLarge || a.code() != "too_large" {
			t.Errorf("a body of %d bytes: got %d %.300s", size, a.Status, a.Body)
		}
	}
	if a := f.do("GET", path+strings.Repeat("x", 120<<10), ""); a.Status != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a long path: got %d %.300s", a.Status, a.Body)
	}
}

// An abort ends a batch, and steering comes with the next reply.
func TestControls(t *testing.T) {
	f := newFleet(t)
	const path = "/v1/sessions/s/batches/b"
	for _, abort := range []struct{ method, path, body, batch string }{
		{"DELETE", path + "1?reason=enough", "", path + "1"},
		{"POST", "/v1/sessions/s/abort", `{"reason":"enough"}`, path + "2"},
		{"POST", "/v1/sessions/s/abort", `{"abort":"b3","reason":"enough"}`, path + "3"},
		{"POST", "/v1/sessions/s/abort", ``, path + "4"},
	} {
		if a := f.do("PUT", abort.batch, message("gate"), "Prefer", "wait=0"); a.Status != http.StatusAccepted {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
		f.waitEntered()
		a := f.do(abort.method, abort.path, abort.body)
		if got := decode[messages.ControlAnswer](t, a.Body); a.Status != http.StatusOK || !got.OK || got.Seq == 0 {
			t.Fatalf("%s %s: %d %s", abort.method, abort.path, a.Status, a.Body)
		}
		reply := decode[messages.Reply](t, f.do("PUT", abort.batch, message("gate")).Body)
		if reply.Status != messages.ReplyAborted || abort.path != "/v1/sessions/s/abort" && !strings.Contains(string(reply.Reinjection), "enough") {
			t.Errorf("%s: got %+v", abort.batch, reply)
		}
	}
	if a := f.do("POST", "/v1/sessions/s/steer", `{"steer":{"role":"user","content":"Stop."},"when":"after_batch"}`); a.Status != http.StatusOK {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	reply := decode[messages.Reply](t, f.do("PUT", path, message("look")).Body)
	if got := string(reply.Steering); got != `[{"role":"user","content":"Stop."}]` {
		t.Errorf("got the steering %s", got)
	}
}

// Each part of the fleet restarts, and then all of them, while a client asks for its reply
// again and again: it gets the reply, and the writes ran once.
func TestARequestSurvivesRestarts(t *testing.T) {
	parts := map[string]func(*testFleet){
		"the HTTP server": func(f *testFleet) {
			f.http.stop()
			f.startHTTP()
		},
		"the coordinator": func(f *testFleet) {
			f.coord.stop()
			f.startCoordinator()
		},
		"NATS": func(f *testFleet) {
			f.nats.Stop()
			must(f.t, f.nats.Restart())
		},
	}
	parts["all"] = func(f *testFleet) {
		for _, name := range []string{"the HTTP server", "the coordinator", "NATS", "the HTTP server"} {
			parts[name](f)
		}
	}
	for name, restart := range parts {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *testFleet) {
				const path = "/v1/sessions/s/batches/b"
				replied := make(chan answer, 1)
				go func() { replied <- f.retry("PUT", path, message("note", "gate", "note")) }()
				f.waitEntered()
				restart(f)
				f.open()
				a := <-replied
				if a.Status != http.StatusOK {
					t.Fatalf("%d %s", a.Status, a.Body)
				}
				if n := f.noted.Load(); n != 2 {
					t.Errorf("note ran %d times, want 2", n)
				}
				if again := f.retry("PUT", path, message("note", "gate", "note")); !bytes.Equal(again.Body, a.Body) {
					t.Errorf("got %s, then %s", a.Body, again.Body)
				}
			})
		})
	}
}

// There is no coordinator: a batch is still stored if its client does not wait.
func TestABatchWithoutACoordinator(t *testing.T) {
	inBubble(t, func(t *testing.T, f *testFleet) {
		f.coord.stop()
		a := f.do("PUT", "/v1/sessions/s/batches/b", message("note"))
		if a.Status != http.StatusServiceUnavailable || a.code() != "no_fleet" || a.Header.Get("Retry-After") == "" {
			t.Errorf("got %d %s", a.Status, a.Body)
		}
		if a := f.do("PUT", "/v1/sessions/s/batches/b", message("note"), "Prefer", "wait=0"); a.Status != http.StatusAccepted {
			t.Errorf("got %d %s", a.Status, a.Body)
		}
		f.startCoordinator()
		if a := f.do("PUT", "/v1/sessions/s/batches/b", message("note")); a.Status != http.StatusOK {
			t.Errorf("got %d %s", a.Status, a.Body)
		}
	})
}

// The stream of a batch has the batch's events, and the reply as the last one.
func TestTheStreamOfABatch(t *testing.T) {
	f := newFleet(t)
	const path = "/v1/sessions/s/batches/b"
	f.open()
	res, err := f.send(t.Context(), "PUT", path, strings.NewReader(message("note", "look")), "Accept", "text/event-stream")
	must(t, err)
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "text/event-stream" || res.Header.Get("Toolfleet-Digest") == "" {
		t.Fatalf("%d %v", res.StatusCode, res.Header)
	}
	var kinds []string
	var last event
	for e := range eventsIn(res.Body) {
		kinds, last = append(kinds, e.kind), e
	}
	if last.kind != "reply" || !strings.Contains(strings.Join(kinds, " "), "start") {
		t.Errorf("got the events %v", kinds)
	}
	if stored := f.do("GET", path, ""); strings.TrimSpace(string(stored.Body)) != last.data {
		t.Errorf("the last event has %s, the stored reply is %s", last.data, stored.Body)
	}
	if a := f.do("PUT", path, message("look"), "Accept", "text/event-stream"); a.Status != http.StatusConflict {
		t.Errorf("another body: %d %s", a.Status, a.Body)
	}
}

// A batch has the trace of the request that sent it.
func TestTheTraceOfARequest(t *testing.T) {
	f := newFleet(t)
	const path, trace = "/v1/sessions/s/batches/b", "4bf92f3577b34da6a3ce929d0e0e4736"
	if a := f.do("PUT", path, message("note"), "traceparent", "00-"+trace+"-00f067aa0ba902b7-01"); a.Status != http.StatusOK {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	if got := decode[messages.Timeline](t, f.do("GET", path+"?timeline=1", "").Body).TraceID; got != trace {
		t.Errorf("the batch is in the trace %q, want %q", got, trace)
	}
}

// A client disconnects while it waits: its place is free again, and its batch goes on.
func TestAClientThatLeaves(t *testing.T) {
	f := newFleet(t)
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := f.try(ctx, "PUT", "/v1/sessions/s/batches/b", message("gate"))
		left <- err
	}()
	f.waitEntered()
	leave()
	if err := <-left; err == nil {
		t.Error("the client was answered before the gate was open")
	}
	f.open()
	if a := f.do("PUT", "/v1/sessions/s/batches/b", message("gate")); a.Status != http.StatusOK {
		t.Errorf("got %d %s", a.Status, a.Body)
	}
}

// Tools know the owner of the token that sent their call, in each of the ways to send one, and
// the labels of the batch. The body of a request cannot name another user.
func TestTheUserIsKnown(t *testing.T) {
	f := newFleet(t)
	f.http.stop()
	f.access = access.Here{As: access.Principal{Tenant: messages.OneTenant, User: "rosa"}}
	f.startHTTP()
	body := `{"provider":"canonical","labels":{"env":"prod"},"message":{"calls":[{"id":"1","name":"who","input":{}}]}}`
	for name, path := range map[string]string{"a batch": "/v1/sessions/s/batches/b", "a batch that nobody waits for": "/v1/sessions/s/batches/later"} {
		if strings.HasSuffix(path, "later") {
			f.do("PUT", path, body, "Prefer", "wait=0")
		}
		if a := f.do("PUT", path, body); !strings.Contains(string(a.Body), "rosamap[env:prod]") {
			t.Errorf("%s: %d %s", name, a.Status, a.Body)
		}
	}
	if a := f.do("PUT", "/v1/sessions/s/calls/c", `{"name":"who","input":{}}`); !strings.Contains(string(a.Body), "rosamap[]") {
		t.Errorf("a call: %d %s", a.Status, a.Body)
	}
	c, err := f.connectMCP("/mcp", nil)
	must(t, err)
	defer c.Close()
	r, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "who", Arguments: json.RawMessage(`{}`)})
	must(t, err)
	if text := r.Content[0].(*mcp.TextContent).Text; text != "rosamap[]" {
		t.Errorf("over MCP: %s", text)
	}
	if a := f.do("PUT", "/v1/sessions/s/batches/x", strings.Replace(body, "prod", strings.Repeat("x", 300), 1)); a.Status != http.StatusUnprocessableEntity && a.Status != http.StatusBadRequest || !strings.Contains(string(a.Body), "labels: env has 300 bytes; the limit is 256") {
		t.Errorf("a label that is too long: %d %s", a.Status, a.Body)
	}
}
