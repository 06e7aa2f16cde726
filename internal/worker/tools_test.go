package worker_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
	"github.com/toolfleet/toolfleet/worker/tool/builtin"
)

func parseTools(t *testing.T, text string) schemas.ToolsFile {
	t.Helper()
	file, err := schemas.ParseToolsFile("tools.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func openRoot(t *testing.T) *builtin.Root {
	t.Helper()
	root, err := builtin.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

func names(tools []schemas.Tool) (list []string) {
	for _, t := range tools {
		list = append(list, t.Name)
	}
	return list
}

// File tools exist only if there is a root. A tool of the file replaces the file tool with its
// name. A file tool under another name keeps its own values where the entry sets none.
func TestOpenTools(t *testing.T) {
	file := parseTools(t, `
tools:
  - {name: Read, builtin: Read, timeout: 1s}
  - {name: peek, builtin: Read, pool: slow}
  - {name: echo, kind: compute, builtin: noop}
`)
	var reg tool.Registry
	if err := worker.OpenTools(&reg, file, worker.Place{Root: openRoot(t)}); err != nil {
		t.Fatal(err)
	}
	promised, err := worker.Promises(file, true)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"Bash", "Edit", "Glob", "Grep", "Read", "Write", "echo", "peek"}
	if diff := cmp.Diff(want, names(reg.Definitions())); diff != "" {
		t.Error(diff)
	}
	for _, p := range promised {
		if got, _ := reg.Lookup(p.Name); got.Digest != p.Digest {
			t.Errorf("%s is promised with another digest than it is served with", p.Name)
		}
	}
	own, _ := builtin.Promise("Read")
	read, _ := reg.Lookup("Read")
	peek, _ := reg.Lookup("peek")
	if read.TimeoutMS != 1000 || read.Description != own.Description || read.Kind != messages.KindRead {
		t.Errorf("Read is %+v", read.Tool)
	}
	if peek.Pool != "slow" || peek.MaxOutput != own.MaxOutput {
		t.Errorf("peek is %+v", peek.Tool)
	}

	var bare tool.Registry
	if err := worker.OpenTools(&bare, parseTools(t, "tools: [{name: echo, builtin: noop}]"), worker.Place{}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"echo"}, names(bare.Definitions())); diff != "" {
		t.Error(diff)
	}
}

// The tools file has a checkable tool: one program runs it, and another program or a service
// is its probe.
func TestOpenToolsWithChecks(t *testing.T) {
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "secret" {
			fmt.Fprintln(w, "not_done")
		}
	}))
	defer service.Close()
	t.Setenv("PROBE_TOKEN", "secret")
	file := parseTools(t, `tools:
  - name: asks_a_program
    input_schema: {type: object}
    on_crash: checkable
    check: {command: [sh, -c, "echo done; cat; printf %s $PROBE_TOKEN"]}
    env: [PROBE_TOKEN]
    exec: {command: [echo, ran]}
  - name: asks_a_service
    input_schema: {type: object}
    on_crash: checkable
    retry: {attempts: 2}
    check: {http: {url: "`+service.URL+`", headers: {Authorization: {env: PROBE_TOKEN}}}}
    exec: {command: [echo, ran]}
`)
	var reg tool.Registry
	if err := worker.OpenTools(&reg, file, worker.Place{}); err != nil {
		t.Fatal(err)
	}
	call := tool.Call{Session: "s", Batch: "b", ID: "c", Input: []byte(`{"n":1}`), Attempt: 1}
	for name, want := range map[string]tool.Probed{
		"asks_a_program": {Applied: true, Output: tool.Text(`{"n":1}secret`)},
		"asks_a_service": {},
	} {
		served, _ := reg.Lookup(name)
		if out, err := served.Runner.Run(t.Context(), call); err != nil || string(out.Value) != `"ran\n"` {
			t.Errorf("%s ran: %s, %v", name, out.Value, err)
		}
		prober, ok := served.Runner.(tool.Prober)
		if !ok {
			t.Errorf("%s cannot be asked", name)
			continue
		}
		probed, err := prober.Probe(t.Context(), call)
		if diff := cmp.Diff(want, probed); err != nil || diff != "" {
			t.Errorf("%s: %v %s", name, err, diff)
		}
	}
	if served, _ := reg.Lookup("asks_a_service"); served.Retry.Attempts != 2 {
		t.Errorf("retry is %+v", served.Retry)
	}
}

// The entry of a file tool may set a retry policy, if the tool's own definition allows one.
func TestPromisesOfABuiltinWithRetry(t *testing.T) {
	promised, err := worker.Promises(parseTools(t, "tools: [{name: Write, builtin: Write, retry: {attempts: 2}}]"), false)
	if err != nil || promised[0].Retry.Attempts != 2 {
		t.Errorf("got %+v, %v", promised, err)
	}
	_, err = worker.Promises(parseTools(t, "tools:\n- {name: Edit, builtin: Edit, retry: {attempts: 2}}"), false)
	if err == nil || !strings.HasPrefix(err.Error(), "line 2: tool Edit: retry: a write with on_crash: once ") {
		t.Errorf("got %v", err)
	}
}

func TestOpenToolsReportsEveryMistake(t *testing.T) {
	file := parseTools(t, `tools:
  - {name: gone, input_schema: {type: object}, exec: {command: [./gone]}}
  - {name: peek, builtin: Read}
  - {name: a, input_schema: {type: object}, exec: {command: [sh]}, on_crash: checkable, check: {command: [./gone]}}
  - {name: b, input_schema: {type: object}, exec: {command: [sh]}, on_crash: checkable, check: {http: {url: http://x, headers: {A: {env: NOT_SET_HERE}}}}}
`)
	var reg tool.Registry
	err := worker.OpenTools(&reg, file, worker.Place{Dir: t.TempDir()})
	for _, want := range []string{
		"line 2: tool gone: ", "line 3: tool peek: builtin Read needs a root",
		"line 4: tool a: check: exec: program ./gone: no such file",
		"line 5: tool b: check: http: header A: the environment variable NOT_SET_HERE is not set",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}

// The entry of a file tool may set its rules, its tier and its condition.
func TestPromisesOfABuiltinWithRules(t *testing.T) {
	promised, err := worker.Promises(parseTools(t, `tools:
  - name: Read
    builtin: Read
    risk: medium
    concurrency_safe: input.file_path != "/dev/random"
    semantic: [{require: 'size(input.file_path) < 100', message: Shorter, code: too_long}]
`), false)
	if err != nil {
		t.Fatal(err)
	}
	got := promised[0]
	want := []schemas.SemanticRule{{Require: "size(input.file_path) < 100", Message: "Shorter", Code: "too_long"}}
	if diff := cmp.Diff(want, got.Semantic); diff != "" || got.Risk != messages.TierMedium || got.SafeWhen == "" || got.ConcurrencySafe != nil {
		t.Errorf("promised %+v %s", got, diff)
	}
}

// An HTTP tool that is checkable has its checks of the input as well as its probe.
func TestRequests(t *testing.T) {
	var bodies []string
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		bodies = append(bodies, r.URL.Path+" "+string(body))
		_, _ = io.WriteString(w, `{"paid": 1.50}`)
	}))
	defer service.Close()
	var reg tool.Registry
	if err := worker.OpenTools(&reg, parseTools(t, `
tools:
  - name: refund
    input_schema: {type: object, required: [id], properties: {id: {type: string}}}
    on_crash: checkable
    check: {http: {url: "`+service.URL+`/probe"}}
    http: {method: POST, url: "`+service.URL+`/refunds/{id}", body: rest, output: /paid, loopback: true}
`), worker.Place{}); err != nil {
		t.Fatal(err)
	}
	refund, _ := reg.Lookup("refund")
	out, err := refund.Runner.Run(t.Context(), tool.Call{Input: []byte(`{"id":"7","cents":500}`)})
	if err != nil || string(out.Value) != "1.50" || !cmp.Equal(bodies, []string{`/refunds/7 {"cents":500}`}) {
		t.Errorf("got %s, %v, and the service %q", out.Value, err, bodies)
	}
	checker, ok := refund.Runner.(tool.Checker)
	if !ok || checker.Check(t.Context(), tool.Call{Input: []byte(`{"id":".."}`)}) == nil {
		t.Errorf("a %T checks nothing", refund.Runner)
	}
	if _, ok := refund.Runner.(tool.Prober); !ok {
		t.Errorf("a %T has no probe", refund.Runner)
	}
}

// A tools file may have several versions of a tool, even of a builtin.
func TestVersionsOfATool(t *testing.T) {
	file := parseTools(t, `tools:
  - {name: echo, version: 1, builtin: noop, description: old}
  - {name: echo, version: 1.2, builtin: noop, description: new}
  - {name: Read, version: 2, builtin: Read, description: ours}
`)
	root, err := builtin.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	var reg tool.Registry
	if err := worker.OpenTools(&reg, file, worker.Place{Dir: t.TempDir(), Root: root}); err != nil {
		t.Fatal(err)
	}
	versions := map[string]string{}
	for _, promise := range reg.Definitions() {
		versions[promise.Name] += promise.Version + ","
	}
	if versions["echo"] != "1.2,1," || versions["Read"] != "2," || versions["Grep"] != "," {
		t.Errorf("versions: %v", versions)
	}
}
