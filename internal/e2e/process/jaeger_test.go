package process

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	v1 "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/toolfleet/toolfleet/internal/natstest"
)

// jaeger is a real Jaeger server, with its addresses.
type jaeger struct{ query, otlp string }

func startJaeger(t *testing.T, path string) *jaeger {
	t.Helper()
	j := &jaeger{query: natstest.FreeAddr(t), otlp: natstest.FreeAddr(t)}
	var log lockedBuffer
	cmd := exec.Command(path, "--query.http-server.host-port="+j.query, "--query.grpc-server.host-port="+natstest.FreeAddr(t),
		"--collector.otlp.http.host-port="+j.otlp, "--collector.otlp.grpc.host-port="+natstest.FreeAddr(t), "--collector.http-server.host-port="+natstest.FreeAddr(t),
		"--collector.grpc-server.host-port="+natstest.FreeAddr(t), "--admin.http.host-port="+natstest.FreeAddr(t))
	cmd.Env = append(os.Environ(), "SPAN_STORAGE_TYPE=memory")
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("Jaeger said:\n%s", &log)
		}
	})
	for deadline := time.Now().Add(2 * time.Minute); ; {
		if resp, err := http.Get("http://" + j.query + "/api/services"); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return j
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("Jaeger does not start:\n%s", &log)
		}
		<-time.NewTimer(50 * time.Millisecond).C
	}
}

// spans returns every span of the traces that Jaeger has, read through its API.
func (j *jaeger) spans(t *testing.T) []span {
	t.Helper()
	resp, err := http.Get("http://" + j.query + "/api/traces?service=toolfleet-coordinator")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Data []struct {
			TraceID   string
			Processes map[string]struct{ ServiceName string }
			Spans     []struct {
				SpanID, OperationName, ProcessID string
				StartTime, Duration              int64 // microseconds
				References                       []struct{ RefType, TraceID, SpanID string }
				Tags                             []struct {
					Key   string
					Value any
				}
			}
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	var spans []span
	for _, trace := range answer.Data {
		for _, s := range trace.Spans {
			out := span{
				service: trace.Processes[s.ProcessID].ServiceName, name: s.OperationName, trace: trace.TraceID, id: s.SpanID,
				began: s.StartTime * 1000, ended: (s.StartTime + s.Duration) * 1000, kind: "INTERNAL", attr: map[string]string{},
			}
			for _, r := range s.References {
				if r.RefType == "CHILD_OF" {
					out.above = r.SpanID
				} else {
					out.links = append(out.links, spanLink{trace: r.TraceID, id: r.SpanID})
				}
			}
			for _, tag := range s.Tags {
				value := fmt.Sprint(tag.Value)
				switch tag.Key {
				case "span.kind":
					out.kind = strings.ToUpper(value)
				case "otel.status_code":
					out.failed = value == "ERROR"
				default:
					out.attr[tag.Key] = value
				}
			}
			spans = append(spans, out)
		}
	}
	return spans
}

// kindOf returns the short name of a span's kind.
func kindOf(k v1.Span_SpanKind) string { return strings.TrimPrefix(k.String(), "SPAN_KIND_") }
