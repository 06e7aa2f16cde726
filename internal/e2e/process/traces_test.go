package process

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/messages"
)

// sixPhases are the spans below a call that succeeded.
const sixPhases = "validate, semantic, pre-hooks, permissions, execute, post-hooks"

// theREADMEsBatch is the trace of the batch that the first command of README.md runs: three
// reads together, a write, a read.
const theREADMEsBatch = `send toolfleet.batch [toolfleet CLIENT]
 process toolfleet.batch [toolfleet-coordinator CONSUMER]
  stage 0 [toolfleet-coordinator INTERNAL]
   send toolfleet.call [toolfleet-coordinator PRODUCER]
    process toolfleet.call [toolfleet-worker CONSUMER]
     execute_tool Grep [toolfleet-worker INTERNAL] ` + sixPhases + `
   send toolfleet.call [toolfleet-coordinator PRODUCER]
    process toolfleet.call [toolfleet-worker CONSUMER]
     execute_tool Glob [toolfleet-worker INTERNAL] ` + sixPhases + `
   send toolfleet.call [toolfleet-coordinator PRODUCER]
    process toolfleet.call [toolfleet-worker CONSUMER]
     execute_tool Read [toolfleet-worker INTERNAL] ` + sixPhases + `
  stage 1 [toolfleet-coordinator INTERNAL]
   send toolfleet.call [toolfleet-coordinator PRODUCER]
    process toolfleet.call [toolfleet-worker CONSUMER]
     execute_tool Bash [toolfleet-worker INTERNAL] ` + sixPhases + `
  stage 2 [toolfleet-coordinator INTERNAL]
   send toolfleet.call [toolfleet-coordinator PRODUCER]
    process toolfleet.call [toolfleet-worker CONSUMER]
     execute_tool Grep [toolfleet-worker INTERNAL] ` + sixPhases + `
`

func TestTheTraceOfABatch(t *testing.T) {
	t.Parallel()
	backend := newOTLP(t)
	p := newProcesses(t, backend.env()...)
	p.runREADMEsBatch()
	var spans []span
	p.until("the whole trace has come", func() bool {
		spans = backend.all()
		return len(spans) >= strings.Count(theREADMEsBatch, "\n")+5*6
	})
	wantREADMEsTrace(t, spans)
}

// A real Jaeger receives the trace of TestTheTraceOfABatch. The test reads the trace back
// through Jaeger's API.
func TestJaegerShowsTheTrace(t *testing.T) {
	t.Parallel()
	path := os.Getenv("JAEGER")
	if path == "" {
		t.Skip("no Jaeger: `.ci/run jaeger` builds one and runs this with JAEGER=<its path>")
	}
	j := startJaeger(t, path)
	p := newProcesses(t, "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+j.otlp, "OTEL_BSP_SCHEDULE_DELAY=100")
	p.runREADMEsBatch()
	var spans []span
	p.until("Jaeger has the whole trace", func() bool {
		spans = j.spans(t)
		return len(spans) >= strings.Count(theREADMEsBatch, "\n")+5*6
	})
	wantREADMEsTrace(t, spans)
}

// runREADMEsBatch starts a coordinator and a worker. A third process runs the README's batch,
// in a folder of its own.
func (p *processes) runREADMEsBatch() {
	p.t.Helper()
	root := p.t.TempDir()
	if err := os.CopyFS(filepath.Join(root, "examples"), os.DirFS("../../../examples")); err != nil {
		p.t.Fatal(err)
	}
	p.ready("coordinator")
	p.ready("worker", "--root", root)
	path := binary(p.t)
	run := exec.Command(path, "run", filepath.Join(root, "examples/anthropic.json"))
	run.Env = append(append(os.Environ(), "NATS_URL="+p.url, "TOOLFLEET_CONFIG=none"), p.env...)
	if out, err := run.CombinedOutput(); err != nil {
		p.t.Fatalf("run: %v\n%s", err, out)
	}
}

func wantREADMEsTrace(t *testing.T, spans []span) {
	t.Helper()
	wantWhole(t, spans)
	if diff := gocmp.Diff(theREADMEsBatch, tree(spans)); diff != "" {
		t.Errorf("the tree of the trace (-want +got):\n%s", diff)
	}
	for _, s := range spans {
		if s.failed || s.attr["error.type"] != "" {
			t.Errorf("span %s is marked as a failure: %v", s.name, s.attr)
		}
		if s.name == "process toolfleet.batch" && (s.attr["toolfleet.batch.id"] != "example-anthropic-1" || s.attr["gen_ai.conversation.id"] != "example") {
			t.Errorf("the batch's span says %v", s.attr)
		}
		if tool, is := strings.CutPrefix(s.name, "execute_tool "); is {
			if s.attr["gen_ai.operation.name"] != "execute_tool" || s.attr["gen_ai.tool.name"] != tool || !strings.HasPrefix(s.attr["gen_ai.tool.call.id"], "toolu_01") {
				t.Errorf("span %s says %v", s.name, s.attr)
			}
		}
		for key, value := range s.attr {
			if strings.Contains(value, "TODO") || strings.Contains(value, "examples/project") {
				t.Errorf("span %s holds arguments: %s=%s", s.name, key, value)
			}
		}
	}
}

// wantWhole checks that the spans are one trace. Each parent must exist and begin before its
// children, and each link must lead to a span of the trace.
func wantWhole(t *testing.T, spans []span) {
	t.Helper()
	byID := map[string]span{}
	for _, s := range spans {
		if _, twice := byID[s.id]; twice {
			t.Errorf("two spans have the id %s: %s", s.id, s.name)
		}
		byID[s.id] = s
	}
	for _, s := range spans {
		if s.trace != spans[0].trace {
			t.Errorf("%s is of trace %s, %s of %s", s.name, s.trace, spans[0].name, spans[0].trace)
		}
		if above, there := byID[s.above]; s.above != "" && !there {
			t.Errorf("orphan: the parent of %s (%s) is not there", s.name, s.service)
		} else if there && s.began < above.began {
			t.Errorf("%s began before its parent %s", s.name, above.name)
		}
		for _, l := range s.links {
			if _, there := byID[l.id]; !there {
				t.Errorf("%s links to a span that is not there (%s)", s.name, l.why)
			}
		}
	}
}

// tree renders spans as text, each below its parent. Calls are in the order of the message,
// and other spans in the order of their start. The spans below a call are on the call's line.
func tree(spans []span) string {
	below := map[string][]span{}
	ids := map[string]bool{}
	for _, s := range spans {
		ids[s.id] = true
	}
	spans = slices.SortedStableFunc(slices.Values(spans), func(a, b span) int {
		return cmp.Or(cmp.Compare(number(a.attr["toolfleet.call.index"]), number(b.attr["toolfleet.call.index"])), cmp.Compare(a.began, b.began),
			// Jaeger has times in microseconds only, so two phases may begin at the same time.
			strings.Index(sixPhases, a.name)-strings.Index(sixPhases, b.name))
	})
	for _, s := range spans {
		above := s.above
		if !ids[above] {
			above = ""
		}
		below[above] = append(below[above], s)
	}
	var out strings.Builder
	var show func(id, indent string)
	show = func(id, indent string) {
		for _, s := range below[id] {
			name := s.name
			if i := s.attr["toolfleet.stage.index"]; i != "" {
				name += " " + i
			}
			fmt.Fprintf(&out, "%s%s [%s %s]", indent, name, s.service, s.kind)
			if s.failed {
				fmt.Fprintf(&out, " failed: %s", s.attr["error.type"])
			}
			for _, l := range s.links {
				fmt.Fprintf(&out, " linked: %s", l.why)
			}
			if strings.HasPrefix(s.name, "execute_tool") {
				var phases []string
				for _, phase := range below[s.id] {
					word := phase.name
					if phase.failed {
						word += " failed: " + phase.attr["error.type"]
					}
					phases = append(phases, word)
				}
				fmt.Fprintf(&out, " %s\n", strings.Join(phases, ", "))
				continue
			}
			out.WriteByte('\n')
			show(s.id, indent+" ")
		}
	}
	show("", "")
	return out.String()
}

func number(text string) int {
	n, _ := strconv.Atoi(text)
	return n
}

// A call is tried again, and its attempts are in one trace. Each later attempt is a span of
// its own with a link to the failed attempt.
func TestTheTraceOfARetriedCall(t *testing.T) {
	t.Parallel()
	backend := newOTLP(t)
	p := newProcesses(t, backend.env()...)
	file := filepath.Join(t.TempDir(), "tools.yaml")
	flag := filepath.Join(t.TempDir(), "flag")
	body := `tools:
  - name: shaky
    kind: write
    on_crash: idempotent
    retry: {attempts: 3, backoff: 10ms}
    input_schema: {type: object}
    env: [FLAG]
    exec: {command: [sh, -c, 'n=$(cat "$FLAG" 2>/dev/null || echo 0); echo $((n+1)) >"$FLAG"; test "$n" -ge 2 || exit 75; printenv TRACEPARENT']}
    sandbox: {state: [` + filepath.Dir(flag) + `]}
`
	if err := os.WriteFile(file, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	p.env = append(p.env, "FLAG="+flag)
	p.ready("coordinator")
	p.ready("worker", "--tools", file)
	c := p.client()
	// The batch has a trace even though the agent makes none.
	reply, err := c.Run(t.Context(), canonical("s", "shaky", call{"shaky", `{}`}, call{"nobody", `{}`}))
	if err != nil || reply.Results[0].Status != messages.StatusOK || reply.Results[0].Attempt != 3 {
		t.Fatalf("%+v, %v", reply, err)
	}
	const want = `process toolfleet.batch [toolfleet-coordinator CONSUMER]
 stage 0 [toolfleet-coordinator INTERNAL]
  send toolfleet.call [toolfleet-coordinator PRODUCER]
   process toolfleet.call [toolfleet-worker CONSUMER]
    execute_tool shaky [toolfleet-worker INTERNAL] failed: tool_error validate, semantic, pre-hooks, permissions, execute failed: tool_error, post-hooks
  send toolfleet.call [toolfleet-coordinator PRODUCER]
   process toolfleet.call [toolfleet-worker CONSUMER] linked: retry
    execute_tool shaky [toolfleet-worker INTERNAL] failed: tool_error validate, semantic, pre-hooks, permissions, execute failed: tool_error, post-hooks
  send toolfleet.call [toolfleet-coordinator PRODUCER]
   process toolfleet.call [toolfleet-worker CONSUMER] linked: retry
    execute_tool shaky [toolfleet-worker INTERNAL] ` + sixPhases + `
 end toolfleet.call [toolfleet-coordinator INTERNAL] failed: unknown_tool
`
	var spans []span
	p.until("the whole trace has come", func() bool {
		spans = backend.all()
		return len(spans) >= strings.Count(want, "\n")+3*6
	})
	wantWhole(t, spans)
	if diff := gocmp.Diff(want, tree(spans)); diff != "" {
		t.Errorf("the tree of the trace (-want +got):\n%s", diff)
	}
	full, err := c.Get(t.Context(), "s", "shaky", client.FullResults())
	if err != nil {
		t.Fatal(err)
	}
	said, _ := full.Results[0].OutputString()
	var last span
	for _, s := range spans {
		if s.name == "execute" {
			last = s
		}
	}
	if want := "00-" + last.trace + "-" + last.id + "-01"; strings.TrimSpace(said) != want {
		t.Errorf("the tool was told TRACEPARENT=%s, its span is %s", said, want)
	}
}

// A batch that waited for approval is one trace. No span is open during the wait, so that it
// shows as a gap.
func TestTheTraceOfACallThatWaited(t *testing.T) {
	t.Parallel()
	backend := newOTLP(t)
	dir := t.TempDir()
	key, policy := filepath.Join(dir, "alice.key"), filepath.Join(dir, "policy.yaml")
	p := newProcesses(t, backend.env()...)
	file, _ := p.tools()
	var alice messages.Approver
	if err := json.Unmarshal([]byte(p.command("approvals", "key", key, "--as", "alice", "-o", "json")), &alice); err != nil {
		t.Fatal(err)
	}
	body := "ask: [note]\napprovers: [{name: alice, key: " + alice.Key + "}]\n"
	if err := os.WriteFile(policy, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	p.ready("coordinator", "--policy", policy)
	p.ready("worker", "--tools", file, "--policy", policy)
	c := p.client()
	b := canonical("s", "asks", call{"echo", `{}`}, call{"note", `{}`})
	if err := c.Submit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	p.until("the batch is suspended", func() bool { return len(backend.all()) >= strings.Count(asked, "\n")+6+4 })
	resting := time.Now() // no span is open from now on
	<-time.NewTimer(700 * time.Millisecond).C
	var open messages.PendingList
	if err := json.Unmarshal([]byte(p.command("approvals", "ls", "-o", "json")), &open); err != nil || len(open.Pending) != 1 {
		t.Fatalf("open questions: %+v, %v", open, err)
	}
	rested := time.Now()
	p.command("approvals", "approve", open.Pending[0].ID, "--key", key, "--as", "alice", "--yes")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	reply, err := c.Await(ctx, "s", "asks")
	if err != nil || reply.Results[1].Status != messages.StatusOK {
		t.Fatalf("%+v, %v", reply, err)
	}
	var spans []span
	p.until("the whole trace has come", func() bool {
		spans = backend.all()
		// The decision may have a trace of its own.
		spans = slices.DeleteFunc(spans, func(s span) bool { return s.trace != spans[0].trace })
		return len(spans) >= strings.Count(asked+answered, "\n")+6+4+6
	})
	wantWhole(t, spans)
	for _, s := range spans {
		if s.began < rested.UnixNano() && s.ended > resting.UnixNano() {
			t.Errorf("%s was open for %v while people were waited for", s.name, time.Duration(s.ended-s.began))
		}
	}
	if diff := gocmp.Diff(asked+answered, tree(spans)); diff != "" {
		t.Errorf("the tree of the trace (-want +got):\n%s", diff)
	}
}

// asked and answered are the trace of a batch that waited for approval: asked before the wait,
// answered after it.
const (
	asked = `process toolfleet.batch [toolfleet-coordinator CONSUMER]
 stage 0 [toolfleet-coordinator INTERNAL]
  send toolfleet.call [toolfleet-coordinator PRODUCER]
   process toolfleet.call [toolfleet-worker CONSUMER]
    execute_tool echo [toolfleet-worker INTERNAL] ` + sixPhases + `
 stage 1 [toolfleet-coordinator INTERNAL]
  send toolfleet.call [toolfleet-coordinator PRODUCER]
   process toolfleet.call [toolfleet-worker CONSUMER]
    execute_tool note [toolfleet-worker INTERNAL] validate, semantic, pre-hooks, permissions
`
	answered = `process toolfleet.batch [toolfleet-coordinator CONSUMER] linked: driven
 stage 1 [toolfleet-coordinator INTERNAL]
  send toolfleet.call [toolfleet-coordinator PRODUCER]
   process toolfleet.call [toolfleet-worker CONSUMER] linked: parked
    execute_tool note [toolfleet-worker INTERNAL] ` + sixPhases + `
`
)

// command runs a command of the binary to its end and returns its stdout. It fails the test if
// the command fails.
func (p *processes) command(args ...string) string {
	p.t.Helper()
	path := binary(p.t)
	var out, talk bytes.Buffer
	cmd := exec.Command(path, args...)
	cmd.Env = append(append(os.Environ(), "NATS_URL="+p.url, "TOOLFLEET_CONFIG=none"), p.env...)
	cmd.Stdout, cmd.Stderr = &out, &talk
	if err := cmd.Run(); err != nil {
		p.t.Fatalf("%s: %v\n%s%s", strings.Join(args, " "), err, &out, &talk)
	}
	return out.String()
}
