package worker_test

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// A worker runs three calls: its metrics have the names that dashboards and alert rules use.
// The calls have the spans of the lane and of the phases.
func TestWhatAWorkerCounts(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		conn, err := bus.Connect(t.Context(), bus.Options{InProcess: srv})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		var tools tool.Registry
		promise := schemas.Tool{Name: "note", Kind: messages.KindWrite, InputSchema: json.RawMessage(`{"type":"object"}`)}
		if err := tools.Add(promise, tool.Func(func(_ context.Context, c tool.Call) (tool.Output, error) {
			c.Progress(messages.Progress{Text: "half"})
			time.Sleep(time.Second)
			return tool.Text("done"), nil
		})); err != nil {
			t.Fatal(err)
		}
		denies, err := hook.NewSet(hook.Hook{Name: "h", Before: func(_ context.Context, c hook.Call) (hook.Verdict, error) {
			if strings.Contains(string(c.Input), "bad") {
				return hook.Verdict{Opinion: hook.Deny}, nil
			}
			return hook.Verdict{}, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		spans := tracetest.NewSpanRecorder()
		reg := prometheus.NewRegistry()
		w, err := worker.New(conn, &tools, worker.Config{
			Name: "w1", Slots: 3, Hooks: denies, Metrics: worker.NewMetrics(reg),
			Tracer: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer(tracing.Scope),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		for !w.Ready() {
			time.Sleep(time.Millisecond)
		}
		served, _ := tools.Lookup("note")
		notices := make(chan wire.Notice, 10)
		if _, err := conn.Subscribe(conn.Names().Notify("co"), "", func(m bus.Msg) {
			var n wire.Notice
			if err := json.Unmarshal(m.Data, &n); err == nil && n.Result != nil {
				notices <- n
			}
		}); err != nil {
			t.Fatal(err)
		}
		inputs := []string{`{"n":1}`, `{"n":"bad"}`, `[]`}
		planned := wire.PlanRecord{V: 1, Nonce: "n"}
		for i, input := range inputs {
			planned.Calls = append(planned.Calls, wire.PlannedCall{Index: i, Tool: "note", Kind: messages.KindWrite, InputHash: wire.InputHash([]byte(input))})
		}
		if _, err := journal.New(conn).WritePlan(t.Context(), wire.KeyOf("acme", "s", "b"), planned, 0); err != nil {
			t.Fatal(err)
		}
		for i, input := range inputs {
			key := wire.KeyOf("acme", "s", "b").Call(i)
			job := wire.Job{
				V: 1, Tenant: "acme", Session: "s", Batch: "b", Index: i, CallID: "c", Tool: "note", ToolDigest: served.Digest, Kind: messages.KindWrite,
				Input: json.RawMessage(input), Notify: "co", QueuedAt: conn.Now(t.Context()), NotAfter: time.Now().Add(time.Hour),
			}
			if _, err := conn.Append(t.Context(), conn.Names().Lane(true, "default", key), nil, rawjson.MustMarshal(job)); err != nil {
				t.Fatal(err)
			}
			<-notices
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}

		ask := httptest.NewRequest("GET", "/metrics", nil)
		ask.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
		answer := httptest.NewRecorder()
		promhttp.HandlerFor(reg, promhttp.HandlerOpts{EnableOpenMetrics: true}).ServeHTTP(answer, ask)
		text := answer.Body.String()
		for _, want := range []string{
			`toolfleet_calls_total{kind="write",status="ok",tool="note"} 1.0`,
			`toolfleet_calls_total{kind="write",status="denied",tool="note"} 1.0`,
			`toolfleet_calls_total{kind="write",status="validation_error",tool="note"} 1.0`,
			`toolfleet_call_duration_seconds_count{kind="write",status="ok",tool="note"} 1`,
			`toolfleet_call_phase_seconds_count{phase="execute"} 1`,
			`toolfleet_call_phase_seconds_count{phase="validate"} 3`,
			`toolfleet_call_queue_wait_seconds_count{pool="default"} 3`,
			`toolfleet_calls_in_flight{pool="default"} 0.0`,
			`toolfleet_worker_slots{pool="default"} 3.0`,
			`toolfleet_claims_total 1.0`,
			`toolfleet_claims_refused_total 0.0`,
			`toolfleet_leases_lost_total 0.0`,
			`toolfleet_call_progress_total 1.0`,
			`toolfleet_permission_decisions_total{effect="allow",source="default"} 1.0`,
			`toolfleet_permission_decisions_total{effect="deny",source="hook"} 1.0`,
		} {
			if !strings.Contains(text, want+"\n") {
				t.Errorf("no %s", want)
			}
		}
		var first string
		for _, s := range spans.Ended() {
			// This is the span of the call that ran.
			if s.Name() == tracing.ProcessCall && slices.Contains(s.Attributes(), attribute.String(string(tracing.CallStatus), "ok")) {
				first = s.SpanContext().TraceID().String()
			}
		}
		if want := `# {trace_id="` + first + `"} 1.0 `; !strings.Contains(text, want) {
			t.Errorf("no exemplar %s", want)
		}
		if t.Failed() {
			t.Log(text)
		}

		below := map[string]string{}
		names := map[string]string{}
		for _, s := range spans.Ended() {
			names[s.SpanContext().SpanID().String()] = s.Name()
		}
		for _, s := range spans.Ended() {
			below[s.Name()] = names[s.Parent().SpanID().String()]
		}
		if below["execute_tool note"] != tracing.ProcessCall || below["execute"] != "execute_tool note" || len(spans.Started()) != len(spans.Ended()) {
			t.Errorf("%d spans begun, %d ended: %v", len(spans.Started()), len(spans.Ended()), below)
		}
	})
}
