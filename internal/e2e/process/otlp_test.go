package process

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	v1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// otlp is a trace backend that receives OTLP over HTTP, as a collector does. all returns the
// spans that it received.
type otlp struct {
	URL string

	mu    sync.Mutex
	spans []span // guarded by mu
}

// span is the part of a span that the tests check.
type span struct {
	service, name    string
	trace, id, above string // hex; above is the parent, or "" for a root
	kind             string
	began, ended     int64 // Unix nanoseconds
	failed           bool
	attr             map[string]string
	links            []spanLink
}

type spanLink struct{ trace, id, why string }

func newOTLP(t testing.TB) *otlp {
	t.Helper()
	o := &otlp{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var request collector.ExportTraceServiceRequest
		switch {
		case err == nil && r.Header.Get("Content-Type") == "application/json":
			err = protojson.Unmarshal(idsAsBase64(body), &request)
		case err == nil:
			err = proto.Unmarshal(body, &request)
		}
		if err != nil || r.URL.Path != "/v1/traces" {
			http.Error(w, fmt.Sprint(err), http.StatusBadRequest)
			return
		}
		o.take(&request)
		w.Header().Set("Content-Type", "application/x-protobuf")
		answer, _ := proto.Marshal(&collector.ExportTraceServiceResponse{})
		_, _ = w.Write(answer)
	}))
	t.Cleanup(srv.Close)
	o.URL = srv.URL
	return o
}

var hexID = regexp.MustCompile(`"(traceId|spanId|parentSpanId)": *"([0-9a-f]+)"`)

// idsAsBase64 changes the ids of spans from hex, as in the JSON of OTLP, into base64, as
// protojson reads them.
func idsAsBase64(body []byte) []byte {
	return hexID.ReplaceAllFunc(body, func(member []byte) []byte {
		parts := hexID.FindSubmatch(member)
		id, _ := hex.DecodeString(string(parts[2]))
		return fmt.Appendf(nil, "%q:%q", parts[1], base64.StdEncoding.EncodeToString(id))
	})
}

// env returns the environment of a process that sends every trace to this backend at once.
func (o *otlp) env() []string {
	return []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + o.URL, "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", "OTEL_BSP_SCHEDULE_DELAY=100", "OTEL_EXPORTER_OTLP_COMPRESSION=none"}
}

func (o *otlp) take(request *collector.ExportTraceServiceRequest) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, of := range request.ResourceSpans {
		service := ""
		for _, a := range of.Resource.GetAttributes() {
			if a.Key == "service.name" {
				service = a.Value.GetStringValue()
			}
		}
		for _, scope := range of.ScopeSpans {
			for _, s := range scope.Spans {
				o.spans = append(o.spans, read(service, s))
			}
		}
	}
}

func read(service string, s *v1.Span) span {
	out := span{
		service: service, name: s.Name, trace: hex.EncodeToString(s.TraceId), id: hex.EncodeToString(s.SpanId), above: hex.EncodeToString(s.ParentSpanId),
		kind: kindOf(s.Kind), began: int64(s.StartTimeUnixNano), ended: int64(s.EndTimeUnixNano), failed: s.GetStatus().GetCode() == v1.Status_STATUS_CODE_ERROR, attr: map[string]string{},
	}
	for _, a := range s.Attributes {
		v := a.Value.String()
		_, v, _ = strings.Cut(v, ":")
		out.attr[a.Key] = strings.Trim(v, `"`)
	}
	for _, l := range s.Links {
		link := spanLink{trace: hex.EncodeToString(l.TraceId), id: hex.EncodeToString(l.SpanId)}
		for _, a := range l.Attributes {
			link.why = a.Value.GetStringValue()
		}
		out.links = append(out.links, link)
	}
	return out
}

// all returns the received spans in the order in which they began.
func (o *otlp) all() []span {
	o.mu.Lock()
	defer o.mu.Unlock()
	spans := slices.Clone(o.spans)
	slices.SortStableFunc(spans, func(a, b span) int {
		return int(min(max(a.began-b.began, -1), 1))
	})
	return spans
}
