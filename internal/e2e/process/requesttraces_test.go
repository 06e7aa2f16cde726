package process

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	resource "go.opentelemetry.io/proto/otlp/resource/v1"
	v1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/toolfleet/toolfleet/internal/natstest"
)

// A call comes over HTTP or MCP and names a trace. All its spans are in that trace, down to a
// span that the tool itself sends.
func TestTheTraceOfARequest(t *testing.T) {
	t.Parallel()
	backend := newOTLP(t)
	p := newProcesses(t, backend.env()...)
	p.wantRequestsTraced(backend.URL, backend.all)
}

// A real Jaeger shows the trace that TestTheTraceOfARequest checks.
func TestJaegerShowsTheTraceOfARequest(t *testing.T) {
	t.Parallel()
	path := os.Getenv("JAEGER")
	if path == "" {
		t.Skip("no Jaeger: `.ci/run jaeger` builds one and runs this with JAEGER=<its path>")
	}
	j := startJaeger(t, path)
	p := newProcesses(t, "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+j.otlp, "OTEL_BSP_SCHEDULE_DELAY=100")
	p.wantRequestsTraced("http://"+j.otlp, func() []span { return j.spans(t) })
}

// wantRequestsTraced makes calls over HTTP and over MCP, each request in a trace of its own.
// The calls run an HTTP tool whose service sends a span to the backend, and a program in
// Python that sends a span itself. It checks all spans from the request down to those spans.
func (p *processes) wantRequestsTraced(backend string, received func() []span) {
	t := p.t
	t.Helper()
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sendSpan(t, backend, r.Header.Get("traceparent"))
		_, _ = io.WriteString(w, `"charged"`)
	}))
	t.Cleanup(service.Close)
	file := filepath.Join(t.TempDir(), "tools.yaml")
	body := "tools:\n  - {name: charge, kind: read, input_schema: {type: object}, http: {method: POST, url: \"" + service.URL + "\", loopback: true}}\n"
	score, scored := "", []string{}
	if python, err := exec.LookPath("python3"); err == nil {
		script, _ := filepath.Abs("testdata/score.py")
		body += fmt.Sprintf("programs:\n  - {command: [%q, %q], env: [OTEL_EXPORTER_OTLP_ENDPOINT], sandbox: {network: host, read: [%q]}}\n", python, script, script)
		score, scored = `,{"id":"2","name":"score","input":{}}`, []string{"score the order"}
	} else {
		t.Log("no python3: no program sends a span")
	}
	if err := os.WriteFile(file, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	api := natstest.FreeAddr(t)
	p.ready("coordinator")
	p.ready("worker", "--tools", file)
	p.ready("http", "--listen", api)
	for _, door := range []struct {
		method, path, trace, body, span string
		own                             []string // spans that the tools send
	}{
		{"PUT", "/v1/sessions/s/batches/b", "4bf92f3577b34da6a3ce929d0e0e4736",
			`{"provider":"canonical","message":{"calls":[{"id":"1","name":"charge","input":{}}` + score + `]}}`, "PUT /v1/sessions/{session}/batches/{batch}",
			append(scored, "charge the card")},
		{"POST", "/mcp/s", "0af7651916cd43dd8448eb211c80319c",
			`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"charge","arguments":{}}}`, "POST /mcp/{session}", []string{"charge the card"}},
	} {
		req, err := http.NewRequestWithContext(t.Context(), door.method, "http://"+api+door.path, strings.NewReader(door.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		req.Header.Set("Mcp-Protocol-Version", "2025-11-25")
		req.Header.Set("traceparent", "00-"+door.trace+"-00f067aa0ba902b7-01")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || !strings.Contains(string(answer), "charged") {
			t.Fatalf("%s %s: %d %s, %v", door.method, door.path, res.StatusCode, answer, err)
		}
		for _, own := range door.own {
			service := map[string]string{"charge the card": "[payments]", "score the order": "[scoring]"}[own]
			tool, _, _ := strings.Cut(own, " ")
			want := []string{own + " " + service, "execute [toolfleet-worker]", "execute_tool " + tool + " [toolfleet-worker]", "process toolfleet.call [toolfleet-worker]",
				"send toolfleet.call [toolfleet-coordinator]", "stage [toolfleet-coordinator]", "process toolfleet.batch [toolfleet-coordinator]",
				"send toolfleet.batch [toolfleet-http]", door.span + " [toolfleet-http]"}
			var got []string
			p.until("the trace of "+door.path+" reaches from the request to the span "+own, func() bool {
				got = wayUp(received(), door.trace, own)
				return len(got) >= len(want)
			})
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Errorf("%s: the spans from the tool's own up (-want +got):\n%s", door.path, diff)
			}
		}
	}
}

// wayUp returns the span with this name in a trace, and then the spans above it.
func wayUp(spans []span, trace, name string) (way []string) {
	byID := map[string]span{}
	at := span{}
	for _, s := range spans {
		if s.trace == trace {
			if byID[s.id] = s; s.name == name {
				at = s
			}
		}
	}
	for at.id != "" {
		way = append(way, at.name+" ["+at.service+"]")
		at = byID[at.above]
	}
	return way
}

// sendSpan sends a span below a traceparent to a backend, as a service does that a tool calls.
func sendSpan(t testing.TB, backend, traceparent string) {
	parts := strings.Split(traceparent, "-")
	if len(parts) != 4 {
		t.Errorf("the service was told traceparent %q", traceparent)
		return
	}
	trace, _ := hex.DecodeString(parts[1])
	above, _ := hex.DecodeString(parts[2])
	id := make([]byte, 8)
	_, _ = rand.Read(id)
	now := uint64(time.Now().UnixNano())
	request := &collector.ExportTraceServiceRequest{ResourceSpans: []*v1.ResourceSpans{{
		Resource: &resource.Resource{Attributes: []*common.KeyValue{{
			Key: "service.name", Value: &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: "payments"}},
		}}},
		ScopeSpans: []*v1.ScopeSpans{{Spans: []*v1.Span{{
			TraceId: trace, SpanId: id, ParentSpanId: above, Name: "charge the card", Kind: v1.Span_SPAN_KIND_SERVER, StartTimeUnixNano: now, EndTimeUnixNano: now + 1000,
		}}}},
	}}}
	body, err := proto.Marshal(request)
	if err != nil {
		t.Error(err)
		return
	}
	res, err := http.Post(backend+"/v1/traces", "application/x-protobuf", bytes.NewReader(body))
	if err != nil {
		t.Error(err)
		return
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Errorf("the backend answers a span with %s", res.Status)
	}
}
