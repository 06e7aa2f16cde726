package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/toolservers"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/schemas"
)

// runnerTimes holds the measurements of one way to run a tool.
type runnerTimes struct {
	name, tool string
	calls      []time.Duration // how long one call took, in a batch of its own
	above      []time.Duration // how much longer than the builtin tool in the same round
	batches    []time.Duration // how long a batch of many calls took
}

// BenchmarkRunners compares ways to run a tool, with tools that do nothing. It measures the
// time of one call in a batch of its own, and then how many calls of one batch end in a
// second. The tools take turns, so that other load on the machine hits all of them. Tools that
// start a process for each call have rounds of their own, also with a builtin tool, because
// they leave the caches of the processors cold. docs/performance.md has its output as a table:
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
	const read = "kind: read, timeout: 60s, input_schema: {type: object}"
	text := "tools:\n- {name: builtin, builtin: noop, " + read + "}\n"
	text += "- {name: sh, exec: {command: [/bin/sh, -c, cat]}, " + read + "}\n"
	text += `- {name: http, http: {url: "` + service.URL + `", loopback: true}, ` + read + "}\n"
	programs := ""
	staying := []*runnerTimes{{name: "builtin", tool: "builtin"}}
	starting := []*runnerTimes{{name: "builtin", tool: "builtin"}, {name: "sh", tool: "sh"}}
	for _, language := range []string{"python3", "node"} {
		path, err := exec.LookPath("/usr/bin/" + language) // in PATH it may be a script that looks for it
		if err != nil {
			path, err = exec.LookPath(language)
		}
		if err != nil {
			b.Logf("there is no %s", language)
			continue
		}
		programs += fmt.Sprintf("- {command: [%q, %q], prefix: %s_, processes: 2}\n", path, noopProgram(b, dir, language), language)
		if language == "python3" {
			text += fmt.Sprintf("- {name: exec_python3, exec: {command: [%q, -c, \"print(1)\"]}, %s}\n", path, read)
			starting = append(starting, &runnerTimes{name: "exec python", tool: "exec_python3"})
		}
		staying = append(staying, &runnerTimes{name: "program " + strings.TrimSuffix(language, "3"), tool: language + "_noop"})
	}
	staying = append(staying, &runnerTimes{name: "mcp stdio", tool: "mcp__look"}, &runnerTimes{name: "http", tool: "http"})
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
	for _, r := range slices.Concat(staying, starting) {
		run("first "+r.name, call{r.tool, `{}`})
	}
	for n := 0; b.Loop(); n++ {
		round(staying, n, run)
	}
	rounds := len(staying[0].calls)
	for n := range rounds {
		round(starting, rounds+n, run)
	}
	all := slices.Concat(staying[:1], starting[1:], staying[1:])
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
	b.Logf("medians of %d rounds, and of 5 batches of %d calls:\n%s", rounds, many, table)
}

// round runs one call of each tool in the list all, whose first tool is the builtin one. It
// records how much longer each call took than the call of the builtin tool.
func round(all []*runnerTimes, n int, run func(string, ...call) time.Duration) {
	for _, r := range all {
		took := run(fmt.Sprint(r.name, " ", n), call{r.tool, `{}`})
		r.calls = append(r.calls, took)
		r.above = append(r.above, took-all[0].calls[len(r.calls)-1])
	}
}

// noopProgram writes a long-lived program that uses our package for its language and serves
// the tool noop. It returns the path of the program.
func noopProgram(b *testing.B, dir, language string) string {
	b.Helper()
	clients, err := filepath.Abs("../../clients")
	if err != nil {
		b.Fatal(err)
	}
	path, text := filepath.Join(dir, "noop.mjs"), fmt.Sprintf(`
import { serve, tool } from %q;
serve([tool({ name: "noop", kind: "read", inputSchema: { type: "object" }, run: () => "" })]);
`, filepath.Join(clients, "typescript", "src", "worker.js"))
	if language == "python3" {
		path, text = filepath.Join(dir, "noop.py"), fmt.Sprintf(`
import sys
sys.path.insert(0, %q)
from toolfleet.worker import serve, tool
@tool(kind="read")
def noop():
    return ""
serve()
`, filepath.Join(clients, "python"))
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	return path
}
