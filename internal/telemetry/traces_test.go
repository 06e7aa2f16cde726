package telemetry_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/toolfleet/toolfleet/internal/telemetry"
)

// setenv gives this test an environment with these OTEL_ variables and no others.
func setenv(t *testing.T, pairs ...string) {
	t.Helper()
	for _, pair := range os.Environ() {
		if name, _, _ := strings.Cut(pair, "="); strings.HasPrefix(name, "OTEL_") {
			t.Setenv(name, "")
		}
	}
	for _, pair := range pairs {
		name, value, _ := strings.Cut(pair, "=")
		t.Setenv(name, value)
	}
}

// words is a log buffer that can be read while it is written.
type words struct {
	mu  sync.Mutex
	log strings.Builder // guarded by mu
}

func (w *words) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(p)
}

func (w *words) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.String()
}

func (w *words) logger() *slog.Logger {
	log, _ := telemetry.Logger(w, "info", "json", false)
	return log
}

func TestNobodyAsksForTraces(t *testing.T) {
	for name, env := range map[string][]string{
		"nothing is set":           nil,
		"only a sampler is":        {"OTEL_TRACES_SAMPLER=always_on"},
		"only metrics have a home": {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT=http://127.0.0.1:1"},
		"the exporter is none":     {"OTEL_TRACES_EXPORTER=none", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1"},
		"the SDK is disabled":      {"OTEL_SDK_DISABLED=TRUE", "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1"},
		"blank":                    {"OTEL_EXPORTER_OTLP_ENDPOINT= ", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=\t"},
		"wrong, but not asked for": {"OTEL_EXPORTER_OTLP_HEADERS=nonsense"},
	} {
		t.Run(name, func(t *testing.T) {
			setenv(t, env...)
			var said words
			tracer, flush, err := telemetry.Traces(t.Context(), "s", "v", said.logger())
			if tracer != nil || err != nil {
				t.Errorf("a tracer (%v), error %v", tracer, err)
			}
			flush()
			if said.String() != "" {
				t.Errorf("logged %s", &said)
			}
		})
	}
}

func TestAWrongVariableIsNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "no.pem")
	if err := os.WriteFile(file, []byte("canary"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []string{
		"OTEL_SDK_DISABLED=maybe",
		"OTEL_TRACES_EXPORTER=zipkin",
		"OTEL_TRACES_EXPORTER= otlp ",
		"OTEL_TRACES_EXPORTER=  ",
		"OTEL_TRACES_SAMPLER=sometimes",
		"OTEL_BSP_MAX_QUEUE_SIZE=-5",
		"OTEL_BSP_SCHEDULE_DELAY=5s",
		"OTEL_RESOURCE_ATTRIBUTES=canary",
		"OTEL_EXPORTER_OTLP_PROTOCOL=http/xml",
		"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/json",
		"OTEL_EXPORTER_OTLP_ENDPOINT=10.0.0.1:4317",
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://u:canary@%zz",
		"OTEL_EXPORTER_OTLP_HEADERS=a=b,Bearer canary",
		"OTEL_EXPORTER_OTLP_TRACES_HEADERS=authorization=canary%zz",
		"OTEL_EXPORTER_OTLP_HEADERS=no name=canary",
		"OTEL_EXPORTER_OTLP_TIMEOUT=10s",
		"OTEL_EXPORTER_OTLP_TRACES_COMPRESSION=zstd",
		"OTEL_EXPORTER_OTLP_INSECURE=1",
		"OTEL_EXPORTER_OTLP_CERTIFICATE=" + file,
		"OTEL_EXPORTER_OTLP_CLIENT_KEY=" + file,
	} {
		name, _, _ := strings.Cut(wrong, "=")
		t.Run(wrong[:min(len(wrong), 45)], func(t *testing.T) {
			setenv(t, "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", wrong)
			tracer, _, err := telemetry.Traces(t.Context(), "s", "v", slog.New(slog.DiscardHandler))
			if tracer != nil || err == nil || !strings.HasPrefix(err.Error(), name+": ") {
				t.Fatalf("tracer %v, error %v", tracer, err)
			}
			if strings.Contains(err.Error(), "canary") {
				t.Errorf("the error quotes what may be a secret: %v", err)
			}
		})
	}
	setenv(t, "OTEL_TRACES_EXPORTER=otlp", "OTEL_TRACES_SAMPLER=traceidratio", "OTEL_TRACES_SAMPLER_ARG=5%")
	if _, _, err := telemetry.Traces(t.Context(), "s", "v", slog.New(slog.DiscardHandler)); err == nil || !strings.HasPrefix(err.Error(), "OTEL_TRACES_SAMPLER_ARG: ") {
		t.Errorf("a sampler's share that is no number: %v", err)
	}
}

// sink is a collector that keeps the spans it gets at its path. An exporter of another test
// may still send to a port that the kernel has given to this collector since.
type sink struct {
	path     string // of the endpoint; begins with a slash
	mu       sync.Mutex
	requests []*collector.ExportTraceServiceRequest // guarded by mu
}

func (s *sink) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	if !strings.HasPrefix(r.URL.Path, s.path+"/") {
		return
	}
	body, _ := io.ReadAll(r.Body)
	request := &collector.ExportTraceServiceRequest{}
	if proto.Unmarshal(body, request) == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.requests = append(s.requests, request)
	}
}

// sizes returns how many spans each request had.
func (s *sink) sizes() (sizes []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.requests {
		sizes = append(sizes, len(r.ResourceSpans[0].ScopeSpans[0].Spans))
	}
	return sizes
}

// resource returns the attributes by which the process described itself.
func (s *sink) resource() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	about := map[string]string{}
	for _, r := range s.requests {
		for _, a := range r.ResourceSpans[0].Resource.Attributes {
			about[a.Key] = a.Value.GetStringValue()
		}
	}
	return about
}

func TestTheProcessInTraces(t *testing.T) {
	telemetry.FlushAsLongAsItTakes(t)
	for name, tc := range map[string]struct {
		env  []string
		want string
	}{
		"by itself":              {nil, "toolfleet-worker"},
		"by its name":            {[]string{"OTEL_SERVICE_NAME=mine", "OTEL_RESOURCE_ATTRIBUTES=service.name=other,team=a%20b"}, "mine"},
		"by its attributes":      {[]string{"OTEL_RESOURCE_ATTRIBUTES=service.name=other,team=a%20b"}, "other"},
		"the exporter is to say": {[]string{"OTEL_TRACES_EXPORTER=otlp"}, "toolfleet-worker"},
	} {
		t.Run(name, func(t *testing.T) {
			got := &sink{path: "/process"}
			srv := httptest.NewServer(got)
			defer srv.Close()
			setenv(t, append(tc.env, "OTEL_EXPORTER_OTLP_ENDPOINT="+srv.URL+got.path)...)
			var said words
			tracer, flush, err := telemetry.Traces(t.Context(), "toolfleet-worker", "v1", said.logger())
			if err != nil {
				t.Fatal(err)
			}
			_, span := tracer.Start(t.Context(), "one")
			span.End()
			flush()
			about := got.resource()
			if about["service.name"] != tc.want || about["service.version"] != "v1" || len(about["service.instance.id"]) != 36 {
				t.Errorf("the process describes itself as %v; logged %s", about, &said)
			}
			if strings.Contains(strings.Join(tc.env, ""), "team") && about["team"] != "a b" {
				t.Errorf("the process describes itself as %v", about)
			}
			for key := range about {
				if strings.HasPrefix(key, "process.") {
					t.Errorf("%s: a command line may hold secrets", key)
				}
			}
		})
	}
}

// bad returns the URLs of collectors that accept no spans. Each collector fails in a different
// way.
func bad(t *testing.T) map[string]string {
	t.Helper()
	hole, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts connections and no process answers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hole.Close() })
	ended := make(chan struct{})
	never := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-ended
	}))
	t.Cleanup(never.Close)
	// This cleanup runs before never.Close, which waits for open requests.
	t.Cleanup(func() { close(ended) })
	away := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
	t.Cleanup(away.Close)
	killed := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, _ := w.(http.Hijacker).Hijack()
		fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhal")
		conn.Close()
	}))
	t.Cleanup(killed.Close)
	return map[string]string{
		"refused": "http://127.0.0.1:1", "black hole": "http://" + hole.Addr().String(),
		"never answers": never.URL, "unavailable": away.URL, "killed in its answer": killed.URL,
	}
}

// A process ends many more spans than the queue holds, and then flushes. The collector accepts
// nothing: neither step waits long. All exporters flush at once, because each flush may take
// as long as its bound.
func TestABadCollectorHoldsNobodyUp(t *testing.T) {
	var exporters sync.WaitGroup
	defer exporters.Wait()
	for name, url := range bad(t) {
		for _, protocol := range []string{"http/protobuf", "grpc"} {
			if protocol == "grpc" && name != "refused" && name != "black hole" {
				continue // over gRPC all other collectors fail in the same way
			}
			setenv(t, "OTEL_EXPORTER_OTLP_ENDPOINT="+url, "OTEL_EXPORTER_OTLP_PROTOCOL="+protocol,
				"OTEL_BSP_MAX_QUEUE_SIZE=64", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE=16", "OTEL_BSP_SCHEDULE_DELAY=1")
			var said words
			tracer, flush, err := telemetry.Traces(t.Context(), "s", "v", said.logger())
			if err != nil {
				t.Fatal(err)
			}
			exporters.Go(func() {
				for range 10_000 {
					_, span := tracer.Start(t.Context(), "one")
					span.End()
				}
				flushed := make(chan struct{})
				go func() {
					defer close(flushed)
					flush()
				}()
				select {
				case <-flushed:
				// This is far more than the bound of 2 s, for busy machines.
				case <-time.After(20 * time.Second):
					t.Errorf("%s, %s: the flush does not end", name, protocol)
					return
				}
				if lines := strings.Count(said.String(), "\n"); lines < 1 || lines > 2 {
					t.Errorf("%s, %s: logged %s", name, protocol, &said)
				}
			})
		}
	}
}

func TestASlowCollectorGetsTheLastSpans(t *testing.T) {
	telemetry.FlushAsLongAsItTakes(t)
	got := &sink{path: "/slow"}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		<-time.NewTimer(200 * time.Millisecond).C
		got.ServeHTTP(w, r)
	}))
	defer srv.Close()
	setenv(t, "OTEL_EXPORTER_OTLP_ENDPOINT="+srv.URL+got.path, "OTEL_BSP_SCHEDULE_DELAY=60000")
	var said words
	tracer, flush, err := telemetry.Traces(t.Context(), "s", "v", said.logger())
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		_, span := tracer.Start(t.Context(), "one")
		span.End()
	}
	flush()
	if sizes := got.sizes(); !slices.Equal(sizes, []int{100}) || said.String() != "" {
		t.Errorf("requests with %v spans; said %s", sizes, &said)
	}
}

// TestFlushAfterTheEnd flushes with a context that has ended, as a process does at its end.
func TestFlushAfterTheEnd(t *testing.T) {
	telemetry.FlushAsLongAsItTakes(t)
	got := &sink{path: "/ended"}
	srv := httptest.NewServer(got)
	defer srv.Close()
	setenv(t, "OTEL_EXPORTER_OTLP_ENDPOINT="+srv.URL+got.path)
	ctx, cancel := context.WithCancel(t.Context())
	tracer, flush, err := telemetry.Traces(ctx, "s", "v", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	_, span := tracer.Start(ctx, "one")
	cancel()
	span.End()
	flush()
	if sizes := got.sizes(); !slices.Equal(sizes, []int{1}) {
		t.Errorf("requests with %v spans, want the one of the flush", sizes)
	}
}

// The collector's answer repeats everything that it was sent: the log still has no secret of
// the variables.
func TestComplaintsHoldNoSecrets(t *testing.T) {
	telemetry.FlushAsLongAsItTakes(t)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		said := fmt.Sprintf("no entry for %v", r.Header)
		fmt.Fprintf(w, "%s\n%q\n%s\n%s", said, said, strings.ToUpper(said), strings.Repeat("page ", 10_000))
	}))
	defer srv.Close()
	host := strings.TrimPrefix(srv.URL, "http://")
	secret := regexp.MustCompile(`(?i)canary|seKret|acme`)
	for _, url := range []string{"http://user:canary-0@" + host, "http://" + host + "/v1/token-canary/", "http://user:canary-0@" + host + "/%7f\x7f"} {
		setenv(t, "OTEL_EXPORTER_OTLP_ENDPOINT="+url, "OTEL_EXPORTER_OTLP_HEADERS=x-org=acme,x-api-key=acme_live_SEKRET,authorization=Bearer%20canary-1,x-short=acm",
			"OTEL_EXPORTER_OTLP_TRACES_HEADERS=")
		var said words
		tracer, flush, err := telemetry.Traces(t.Context(), "s", "v", said.logger())
		if err != nil {
			said.Write([]byte(err.Error()))
		} else {
			_, span := tracer.Start(t.Context(), "one")
			span.End()
			flush()
		}
		text := said.String()
		if secret.MatchString(text) || len(text) > 1000 || !strings.Contains(text, "OTEL_EXPORTER_OTLP_ENDPOINT") {
			t.Errorf("logged %s", text)
		}
		if err == nil && (!strings.Contains(text, `"err":"HTTP status 401"`) || !strings.Contains(text, `"collector":"`+host+`"`)) {
			t.Errorf("does not say what happened, and where: %s", text)
		}
	}
}

// A variable has any value that the specification allows: the process starts. If the SDK does
// not support the value, the log names the variable once.
func TestVariablesThatStopNobody(t *testing.T) {
	telemetry.FlushAsLongAsItTakes(t)
	const to = "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1"
	for _, tc := range []struct {
		env   []string
		named string // variable that one log line names; "": none
	}{
		{[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=10.0.0.1:4317", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://127.0.0.1:1"}, ""},
		{[]string{to, "OTEL_EXPORTER_OTLP_PROTOCOL=http/json", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf"}, ""},
		{[]string{to, "OTEL_RESOURCE_ATTRIBUTES=team=a,"}, ""},
		{[]string{to, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT= "}, ""},
		{[]string{to, "OTEL_TRACES_SAMPLER=jaeger_remote"}, "OTEL_TRACES_SAMPLER"},
		{[]string{to, "OTEL_TRACES_SAMPLER=xray"}, "OTEL_TRACES_SAMPLER"},
		{[]string{to, "OTEL_SPAN_LINK_COUNT_LIMIT=many"}, "OTEL_SPAN_LINK_COUNT_LIMIT"},
		{[]string{to, "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT=x"}, "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"},
		{[]string{to, "OTEL_ATTRIBUTE_COUNT_LIMIT=-1"}, ""},
	} {
		t.Run(strings.Join(tc.env, " "), func(t *testing.T) {
			setenv(t, tc.env...)
			var said words
			tracer, flush, err := telemetry.Traces(t.Context(), "s", "v", said.logger())
			if err != nil || tracer == nil {
				t.Fatalf("tracer %v, error %v", tracer, err)
			}
			flush()
			want := min(len(tc.named), 1)
			if text := said.String(); strings.Count(text, "\n") != want || !strings.Contains(text, tc.named) {
				t.Errorf("logged %s", text)
			}
		})
	}
}

// The SDK writes nothing to stderr. Its lines would not have the form of the log, and would
// quote values of variables.
func TestTheSDKHasNoWordsOfItsOwn(t *testing.T) {
	var plain words
	log.SetOutput(&plain)
	defer log.SetOutput(os.Stderr)
	setenv(t, "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", "OTEL_TRACES_SAMPLER=jaeger_remote", "OTEL_SPAN_EVENT_COUNT_LIMIT=many", "OTEL_RESOURCE_ATTRIBUTES=a=b,")
	_, flush, err := telemetry.Traces(t.Context(), "s", "v", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	flush()
	if text := plain.String(); text != "" {
		t.Errorf("stderr has %s", text)
	}
}
