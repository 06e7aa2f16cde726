package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/toolservers"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/schemas"
)

// BenchmarkRunners compares tools that do nothing, one for each way to run a tool: the time of one
// call in a batch of its own, turn by turn so that load hits all alike, and then how many calls of
// one batch end in a second. Compare figures of one run only.
func BenchmarkRunners(b *testing.B) {
	f := newFleet(b, natstest.Server(b, natstest.Fast))
	defer f.close()
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") }))
	defer service.Close()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	dir := b.TempDir()
	testdata, _ := filepath.Abs("../../worker/tool/mcptool/testdata")
	text := `tools:
- {name: builtin, kind: read, builtin: noop, timeout: 60s}
- {name: sh, kind: read, input_schema: {type: object}, exec: {command: [/bin/sh, -c, "cat"]}, timeout: 60s}
- {name: http, kind: read, input_schema: {type: object}, http: {url: "` + service.URL + `", loopback: true}, timeout: 60s}
`
	programs := "programs:\n" + fmt.Sprintf("- {name: go, command: [%q, %s, %q], tools: [look], prefix: go_, processes: 2}\n", self, effectsProgram, dir)
	names := []string{"builtin", "sh", "http", "go_look"}
	for _, language := range [][2]string{{"python3", "program.py"}, {"node", "program.mjs"}} {
		path, err := exec.LookPath(language[0])
		if err != nil {
			b.Logf("there is no %s", language[0])
			continue
		}
		programs += fmt.Sprintf("- {command: [%q, %q, %q], tools: [noop], prefix: %s_, processes: 2}\n", path, filepath.Join(testdata, language[1]), dir, language[0])
		if language[0] == "python3" {
			text += fmt.Sprintf("- {name: exec_python3, kind: read, input_schema: {type: object}, exec: {command: [%q, -c, \"print(1)\"]}, timeout: 60s}\n", path)
			names = append(names, "exec_python3")
		}
		names = append(names, language[0]+"_noop")
	}
	file, err := schemas.ParseToolsFile("tools.yaml", []byte(text+programs))
	if err != nil {
		b.Fatal(err)
	}
	if err := worker.OpenTools(f.tools, file, worker.Place{}); err != nil {
		b.Fatal(err)
	}
	servers, err := toolservers.Open(b.Context(), f.tools, file.Servers, toolservers.Place{Logger: f.log})
	if err != nil {
		b.Fatal(err)
	}
	defer servers.Close()
	f.worker(worker.Config{Slots: 10})
	f.coordinator(coordinator.Config{})
	run := func(id string, calls ...call) time.Duration {
		began := time.Now()
		reply, err := f.client.Run(b.Context(), canonical("s", id, calls...))
		if err != nil || reply.Results[0].Status != "ok" {
			b.Fatalf("%s: %v, %s", id, err, reply.Reinjection)
		}
		return time.Since(began)
	}
	took := map[string][]time.Duration{}
	for n := 0; b.Loop(); n++ {
		for _, name := range names {
			took[name] = append(took[name], run(fmt.Sprint(name, n), call{name, `{}`}))
		}
	}
	for _, name := range names {
		const many = 64
		var calls []call
		for range many {
			calls = append(calls, call{name, `{}`})
		}
		all := run(name+" many", calls...)
		b.ReportMetric(float64(percentile(took[name], 50).Microseconds())/1000, name+"-p50-ms")
		b.ReportMetric(many/all.Seconds(), name+"-calls/s")
	}
}
