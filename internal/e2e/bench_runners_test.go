package e2e

import (
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

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/toolservers"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/schemas"
)

// runnersBench is a way to run a tool that does nothing.
type runnersBench struct {
	name, tool string
	calls      []time.Duration // of one call in a batch of its own
	above      []time.Duration // what each took longer than the builtin of its round
	batches    []time.Duration // of a batch of many calls
}

// BenchmarkRunners compares tools that do nothing, one for each way to run a tool: the time of one
// call in a batch of its own, and then how many calls of one batch end in a second. They take turns,
// so that load hits all alike. The table of docs/performance.md is its output:
//
//	go test ./internal/e2e -run - -bench Runners -benchtime 200x -v
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
	const read = "kind: read, timeout: 60s, input_schema: {type: object}"
	text := "tools:\n- {name: builtin, builtin: noop, " + read + "}\n"
	text += "- {name: sh, exec: {command: [/bin/sh, -c, cat]}, " + read + "}\n"
	text += `- {name: http, http: {url: "` + service.URL + `", loopback: true}, ` + read + "}\n"
	programs := ""
	all := []*runnersBench{{name: "builtin", tool: "builtin"}, {name: "sh", tool: "sh"}}
	for _, language := range [][2]string{{"python3", "program.py"}, {"node", "program.mjs"}} {
		path, err := exec.LookPath("/usr/bin/" + language[0]) // in PATH it may be a script that looks for it
		if err != nil {
			path, err = exec.LookPath(language[0])
		}
		if err != nil {
			b.Logf("there is no %s", language[0])
			continue
		}
		programs += fmt.Sprintf("- {command: [%q, %q, %q], tools: [noop], prefix: %s_, processes: 2}\n", path, filepath.Join(testdata, language[1]), dir, language[0])
		if language[0] == "python3" {
			text += fmt.Sprintf("- {name: exec_python3, exec: {command: [%q, -c, \"print(1)\"]}, %s}\n", path, read)
			all = append(all, &runnersBench{name: "exec python", tool: "exec_python3"})
		}
		all = append(all, &runnersBench{name: "program " + strings.TrimSuffix(language[0], "3"), tool: language[0] + "_noop"})
	}
	all = append(all, &runnersBench{name: "mcp stdio", tool: "mcp__look"}, &runnersBench{name: "http", tool: "http"})
	text += fmt.Sprintf("mcp:\n- {name: mcp, command: [%q, %s, %q], tools: [look], trust: annotations, processes: 2}\n", self, effectsProgram, dir)
	if programs != "" {
		text += "programs:\n" + programs
	}
	file, err := schemas.ParseToolsFile("tools.yaml", []byte(text))
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
	for _, r := range all {
		run("first "+r.name, call{r.tool, `{}`})
	}
	for n := 0; b.Loop(); n++ {
		for _, r := range all {
			r.calls = append(r.calls, run(fmt.Sprint(r.name, n), call{r.tool, `{}`}))
			r.above = append(r.above, r.calls[n]-all[0].calls[n])
		}
	}
	const many = 64
	for n := range 5 {
		for _, r := range all {
			var calls []call
			for range many {
				calls = append(calls, call{r.tool, `{}`})
			}
			r.batches = append(r.batches, run(fmt.Sprint(r.name, " many ", n), calls...))
		}
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	table := "| runner | p50, ms | above builtin, ms | calls/s |\n|---|--:|--:|--:|\n"
	for _, r := range all {
		perSecond := many / percentile(r.batches, 50).Seconds()
		table += fmt.Sprintf("| %s | %.2f | %.2f | %.0f |\n", r.name, ms(percentile(r.calls, 50)), ms(percentile(r.above, 50)), perSecond)
		name := strings.ReplaceAll(r.name, " ", "-")
		b.ReportMetric(ms(percentile(r.calls, 50)), name+"-p50-ms")
		b.ReportMetric(perSecond, name+"-calls/s")
	}
	b.Logf("medians of %d rounds, and of 5 batches of %d calls:\n%s", b.N, many, table)
}
