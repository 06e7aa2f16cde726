package process

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/natstest"
)

// endsWithin is the longest time that an idle process may take to end after a signal. The
// process itself waits at most 2 s for its traces. The rest is for machines under load.
const endsWithin = 30 * time.Second

// badCollectors returns the URLs of trace collectors. Each collector fails in a different way.
func badCollectors(t *testing.T) map[string]string {
	t.Helper()
	// The kernel accepts connections to this collector, and no reply comes.
	hole, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = hole.Close() })
	ended := make(chan struct{})
	collector := func(answer http.HandlerFunc) string {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			answer(w, r)
		}))
		t.Cleanup(srv.Close)
		return srv.URL
	}
	urls := map[string]string{
		"down":          "http://" + natstest.FreeAddr(t),
		"black hole":    "http://" + hole.Addr().String(),
		"never answers": collector(func(http.ResponseWriter, *http.Request) { <-ended }),
		"slow": collector(func(http.ResponseWriter, *http.Request) {
			select {
			case <-time.After(time.Second):
			case <-ended:
			}
		}),
		"unavailable": collector(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }),
		"killed in the middle": collector(func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				_ = conn.Close()
			}
		}),
	}
	// This runs before the servers close, which wait for open requests.
	t.Cleanup(func() { close(ended) })
	return urls
}

// The collector takes no traces, and far more batches run than the queue of spans holds.
// Batches are not delayed, and the processes stop in time.
func TestNothingWaitsForTheCollector(t *testing.T) {
	t.Parallel()
	for name, url := range badCollectors(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProcesses(t, "OTEL_BSP_MAX_QUEUE_SIZE=32", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE=8", "OTEL_BSP_SCHEDULE_DELAY=1", "OTEL_EXPORTER_OTLP_ENDPOINT="+url)
			began := time.Now()
			tools, _ := p.tools()
			daemons := []*daemon{p.ready("coordinator"), p.ready("worker", "--tools", tools)}
			c := p.client()
			// The bound is for all batches, which take a few seconds.
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			const sessions, batches = 4, 10
			var answered atomic.Int32
			var all sync.WaitGroup
			for s := range sessions {
				all.Go(func() {
					for b := range batches {
						reply, err := c.Run(ctx, canonical(fmt.Sprint("s", s), fmt.Sprint("b", b), call{"echo", `{"n":1}`}, call{"note", ""}, call{"echo", `{"n":2}`}))
						if err != nil || statuses(reply) != "ok ok ok" {
							t.Errorf("batch %d of session %d: %s, %v", b, s, statuses(reply), err)
						}
						answered.Add(1)
					}
				})
			}
			all.Wait()
			if got := answered.Load(); got != sessions*batches {
				t.Errorf("%d of %d batches are answered", got, sessions*batches)
			}
			for _, d := range daemons {
				d.signal(syscall.SIGTERM)
			}
			for _, d := range daemons {
				p.ends(d)
				complaints := strings.Count(d.log.String(), "traces are not sent") + strings.Count(d.log.String(), "the last traces are not sent")
				took := time.Since(began)
				if most := 3 + int(took/time.Minute); complaints > most || complaints == 0 && name != "slow" {
					t.Errorf("%d lines about traces in %v:\n%s", complaints, took, d.log)
				}
			}
		})
	}
}

// ends checks that a process ends without an error after a signal.
func (p *processes) ends(d *daemon) {
	p.t.Helper()
	select {
	case <-p.exited(d):
		if code := d.cmd.ProcessState.ExitCode(); code != 0 {
			p.t.Errorf("%v ended with %d", d.cmd.Args, code)
		}
	case <-time.After(endsWithin):
		p.t.Errorf("%v does not end", d.cmd.Args)
	}
}

// A command runs a whole fleet in one process, and its collector takes no traces. The command
// still prints the answer and ends.
func TestACommandEndsWithoutItsCollector(t *testing.T) {
	t.Parallel()
	urls := badCollectors(t)
	for _, name := range []string{"down", "never answers"} {
		// However long the batch takes, no trace is sent before its end.
		p := &processes{t: t, env: []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + urls[name], "OTEL_BSP_SCHEDULE_DELAY=600000"}}
		stdout, stderr, code := p.exec("run", "../../../examples/anthropic.json", "--root", "../../..")
		if code != 0 || !strings.HasPrefix(stdout, "{") || !endsWithTraces(stderr, "completed: 5 calls") {
			t.Errorf("%s: run ends with %d\n%s\n%s", name, code, stdout, stderr)
		}
		_, stderr, code = p.exec("run", refusedMessage(t), "--provider", "anthropic")
		if code != 1 || !endsWithTraces(stderr, "refused (duplicate_id)") {
			t.Errorf("%s: a run that is refused ends with %d\n%s", name, code, stderr)
		}
	}
}

// endsWithTraces reports whether stderr has the outcome of the batch before the line about the
// traces, whose sending may take a while.
func endsWithTraces(stderr, outcome string) bool {
	told, traces := strings.Index(stderr, outcome), strings.Index(stderr, "traces are not sent")
	return told >= 0 && told < traces
}

// refusedMessage writes a file with two calls that have the same id.
func refusedMessage(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "refused.json")
	const message = `{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"Read","input":{}},{"type":"tool_use","id":"a","name":"Read","input":{}}]}`
	if err := os.WriteFile(file, []byte(message), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// A collector is killed while spans are sent to it. After a restart it gets the spans of later
// batches.
func TestACollectorThatComesBack(t *testing.T) {
	t.Parallel()
	addr := natstest.FreeAddr(t)
	var taken lockedBuffer
	open := func() *http.Server {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		srv := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(&taken, r.Body) })}
		go func() { _ = srv.Serve(l) }()
		t.Cleanup(func() { _ = srv.Close() })
		return srv
	}
	srv := open()
	p := newProcesses(t, "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+addr, "OTEL_BSP_SCHEDULE_DELAY=20")
	tools, _ := p.tools()
	p.ready("coordinator")
	p.ready("worker", "--tools", tools)
	c := p.client()
	run := func(id string) {
		if reply, err := c.Run(t.Context(), canonical("s", id, call{"echo", `{"n":1}`})); err != nil || statuses(reply) != "ok" {
			t.Fatalf("batch %s: %+v, %v", id, reply, err)
		}
	}
	has := func(id string) bool { return strings.Contains(taken.String(), id) }
	run("before")
	p.until("the collector has a batch", func() bool { return has("before") })
	_ = srv.Close()
	for i := range 20 {
		run(fmt.Sprint("meanwhile-", i))
	}
	open()
	run("after")
	p.until("the collector has a later batch", func() bool { return has("after") })
}

// The whole fleet runs inside one command. All spans belong to one service and one trace.
func TestOneProcessIsOneService(t *testing.T) {
	t.Parallel()
	backend := newOTLP(t)
	p := &processes{t: t, env: append(backend.env(), "OTEL_SERVICE_NAME=")}
	if _, stderr, code := p.exec("run", "../../../examples/anthropic.json", "--root", "../../.."); code != 0 {
		t.Fatalf("run ends with %d\n%s", code, stderr)
	}
	// The command sends all spans before it ends.
	spans := backend.all()
	traces := map[string]bool{}
	for _, s := range spans {
		traces[s.trace] = true
		if s.service != "toolfleet" {
			t.Errorf("span %s is of %s", s.name, s.service)
		}
	}
	if want := strings.Count(theREADMEsBatch, "\n") + 5*6; len(spans) != want || len(traces) != 1 {
		t.Errorf("%d spans in %d traces, want %d in one", len(spans), len(traces), want)
	}
}
