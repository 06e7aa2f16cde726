package telemetry_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/telemetry"
)

func TestLogger(t *testing.T) {
	for name, tc := range map[string]struct {
		level, format string
		terminal      bool
		json          bool
	}{
		"terminal":       {"info", "auto", true, false},
		"no terminal":    {"info", "auto", false, true},
		"text by config": {"info", "text", false, false},
		"json by config": {"info", "json", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			log, err := telemetry.Logger(&out, tc.level, tc.format, tc.terminal)
			if err != nil {
				t.Fatal(err)
			}
			log.Debug("too quiet")
			log.Warn("heard", "err", errors.New("two\nlines"))
			line := out.String()
			if strings.Count(line, "\n") != 1 || !strings.Contains(line, "heard") {
				t.Errorf("logged %q, want one line", line)
			}
			if json.Valid([]byte(line)) != tc.json {
				t.Errorf("logged %q", line)
			}
		})
	}
	for _, bad := range [][2]string{{"loud", "auto"}, {"info", "xml"}} {
		if _, err := telemetry.Logger(io.Discard, bad[0], bad[1], false); err == nil {
			t.Errorf("%v is taken", bad)
		}
	}
}

func get(t *testing.T, h http.Handler, path, accept string) (int, string) {
	t.Helper()
	w, r := httptest.NewRecorder(), httptest.NewRequest("GET", path, nil)
	r.Header.Set("Accept", accept)
	h.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func TestHandler(t *testing.T) {
	state := errors.New("not connected to NATS")
	h := telemetry.Handler(telemetry.Registry("v1.2.3"), func(context.Context) error { return state })
	if code, body := get(t, h, "/healthz", ""); code != 200 {
		t.Errorf("healthz says %d %s while NATS is away", code, body)
	}
	if code, body := get(t, h, "/readyz", ""); code != 503 || !strings.Contains(body, "not connected") {
		t.Errorf("readyz says %d %s", code, body)
	}
	state = nil
	if code, body := get(t, h, "/readyz", ""); code != 200 {
		t.Errorf("readyz says %d %s", code, body)
	}
	_, plain := get(t, h, "/metrics", "")
	_, open := get(t, h, "/metrics", "application/openmetrics-text; version=1.0.0")
	for _, want := range []string{`toolfleet_build_info{goversion="go`, `version="v1.2.3"} 1`, "go_goroutines"} {
		if !strings.Contains(plain, want) {
			t.Errorf("/metrics has no %q", want)
		}
	}
	if !strings.HasSuffix(open, "# EOF\n") {
		t.Error("/metrics does not speak OpenMetrics")
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	log, _ := telemetry.Logger(io.Discard, "info", "json", false)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	h := telemetry.Handler(telemetry.Registry("x"), func(context.Context) error { return nil })
	go func() { ended <- telemetry.Serve(ctx, l, h, log) }()
	resp, err := http.Get("http://" + l.Addr().String() + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("ended with %v", err)
	}
}

func TestTimesAndDurations(t *testing.T) {
	east := time.Date(2026, 1, 2, 8, 0, 0, 0, time.FixedZone("east", 5*60*60))
	var out strings.Builder
	log, _ := telemetry.Logger(&out, "info", "auto", false)
	line := slog.NewRecord(east, slog.LevelInfo, "done", 0)
	line.Add("took", 1500*time.Millisecond, "at", east)
	if err := log.Handler().Handle(t.Context(), line); err != nil {
		t.Fatal(err)
	}
	var got struct{ Time, Took, At string }
	if err := json.Unmarshal([]byte(out.String()), &got); err != nil {
		t.Fatal(err)
	}
	if got.Time != "2026-01-02T03:00:00Z" || got.Took != "1.5s" || got.At != got.Time {
		t.Errorf("logged %s", &out)
	}
}
