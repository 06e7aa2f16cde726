package process

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// canary matches every secret that these tests plant. The part after cnry- names the place
// where a secret was planted.
var canary = regexp.MustCompile(`cnry-[a-z]+`)

// canaryTools are tools that give away secrets in every way that a tool can. Only the tool
// that hangs has a short timeout, because other programs may start slowly.
const canaryTools = `tools:
  - {name: echo, kind: read, input_schema: {type: object}, builtin: noop}
  - {name: fails, kind: read, input_schema: {type: object}, builtin: fail}
  - name: strict
    kind: read
    input_schema: {type: object, properties: {level: {enum: [low, high]}}, additionalProperties: false}
    builtin: noop
  - name: talks
    kind: read
    input_schema: {type: object}
    timeout: 1m
    env: [LISTED]
    exec: {command: [sh, -c, 'echo "cnry-result $LISTED"; echo cnry-stderr >&2']}
  - name: breaks
    kind: read
    input_schema: {type: object}
    timeout: 1m
    exec: {command: [sh, -c, 'echo cnry-result; echo cnry-stderr >&2; exit 3']}
  - name: hangs
    input_schema: {type: object}
    timeout: 300ms
    on_crash: checkable
    check: {command: [sh, -c, 'echo cnry-probe; echo cnry-probe >&2; exit 1']}
    exec: {command: [sh, -c, 'echo cnry-stderr >&2; sleep 60']}
  - {name: guarded, kind: read, input_schema: {type: object}, builtin: noop}
  - {name: gated, kind: read, input_schema: {type: object}, builtin: noop}
  - {name: observed, kind: read, input_schema: {type: object}, builtin: noop}
  - {name: rewritten, kind: read, input_schema: {type: object}, builtin: noop}
  - {name: forbidden, kind: read, input_schema: {type: object}, builtin: noop}
  - {name: refund, kind: write, input_schema: {type: object}, builtin: noop}
`

const canaryPolicy = `
approvers: [{name: alice, key: %s}]
deny: [{tool: forbidden, name: never}]
ask: [{tool: refund, name: refunds}]
hooks:
  - {name: guard, match: guarded, budget: 1m, before: {command: [sh, -c, 'echo cnry-hook >&2; exit 2']}}
  - {name: gate, match: gated, budget: 1m, before: {command: [sh, -c, 'printf %%s "{\"hookSpecificOutput\":{\"permissionDecision\":\"token=cnry-answer\"}}"']}}
  - {name: look, match: gated, budget: 1m, class: observe, priority: -1, before: {command: [sh, -c, 'printf %%s "{\"cnry-answer\":1}"']}}
  - {name: wants, match: observed, budget: 1m, class: observe, before: {command: [sh, -c, 'echo cnry-hook; echo cnry-hook >&2; exit 7']}}
  - {name: tidy, match: rewritten, budget: 1m, after: {command: [sh, -c, 'echo cnry-hook >&2; printf %%s "{\"decision\":\"block\",\"reason\":\"cnry-hook\"}"']}}
`

// canaries is a fleet of processes full of secrets, with everything of the processes that
// reaches an operator.
type canaries struct {
	*processes
	alice  approval.Key
	client *client.Client
	conn   *bus.Conn
	server *daemon
	// daemons are the coordinator and the worker.
	daemons []*daemon
	sinks   map[string]func() string // name to content
}

// newCanaries starts a server with a password, a coordinator and a worker.
func newCanaries(t *testing.T, env ...string) *canaries {
	t.Helper()
	dir, addr := t.TempDir(), natstest.FreeAddr(t)
	alice, err := approval.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"nats.conf":  `authorization { users: [ { user: fleet, password: "cnry-password" } ] }`,
		"tools.yaml": canaryTools, "policy.yaml": fmt.Sprintf(canaryPolicy, alice.Public()),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	collector, taken := newRudeCollector(t)
	c := &canaries{alice: alice, sinks: map[string]func() string{"the traces": taken.String}}
	c.processes = &processes{t: t, url: "nats://fleet:cnry-password@" + addr, env: append([]string{
		"LISTED=cnry-listed", "UNLISTED=cnry-unlisted", "TOOLFLEET_POLICY=" + filepath.Join(dir, "policy.yaml"),
		"OTEL_EXPORTER_OTLP_ENDPOINT=" + strings.Replace(collector, "://", "://who:cnry-collector@", 1), "OTEL_EXPORTER_OTLP_COMPRESSION=none",
		"OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20cnry-header,x-key=cnry%2Dheader", "OTEL_BSP_SCHEDULE_DELAY=50", "TOOLFLEET_COORDINATOR_DRAIN=200ms", "TOOLFLEET_DRAIN=200ms",
	}, env...)}
	c.server = c.start("nats", "--nats-config", filepath.Join(dir, "nats.conf"), "--listen", addr, "--data", natstest.DataDir(t))
	c.sinks["the log of nats"] = c.server.log.String
	c.until("the server listens", func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	c.startDaemon("coordinator")
	c.startDaemon("worker", "--tools", filepath.Join(dir, "tools.yaml"))
	c.client = c.processes.client()
	if c.conn, err = bus.Connect(t.Context(), bus.Options{URL: c.url, Name: "test"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.conn.Close)
	return c
}

// newRudeCollector starts a trace collector that keeps what it receives. It refuses the first
// request of each connection, and quotes the request's headers in the refusal.
func newRudeCollector(t *testing.T) (url string, taken *lockedBuffer) {
	t.Helper()
	taken = &lockedBuffer{}
	var refused sync.Map
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(taken, r.Body)
		if _, again := refused.LoadOrStore(r.RemoteAddr, true); !again {
			w.WriteHeader(http.StatusUnauthorized)
			_ = r.Header.Write(w)
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL, taken
}

// startDaemon starts a daemon and adds its log and metrics to the sinks.
func (c *canaries) startDaemon(args ...string) {
	c.t.Helper()
	addr := natstest.FreeAddr(c.t)
	d := c.start(append(args, "--http", addr)...)
	c.daemons = append(c.daemons, d)
	c.sinks["the log of the "+args[0]] = d.log.String
	c.until(args[0]+" is ready", func() bool { return c.page(addr, "/readyz") == "ok\n" })
	c.sinks["the metrics of the "+args[0]] = func() string { return c.page(addr, "/metrics") }
}

// page returns a page of a daemon, or "" if the daemon does not answer.
func (c *canaries) page(addr, path string) string {
	r, err := http.NewRequest(http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header.Set("Accept", "application/openmetrics-text; version=1.0.0") // includes exemplars
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return string(body)
}

// auditStream returns every message of the AUDIT stream as text.
func (c *canaries) auditStream() string {
	c.t.Helper()
	all, err := c.conn.All(c.t.Context(), c.conn.Names().Stream(bus.Audit), c.conn.Names().All(wire.VerbAudit))
	if err != nil || len(all) == 0 {
		c.t.Fatalf("%d lines in the record for people: %v", len(all), err)
	}
	var text strings.Builder
	for _, m := range all {
		fmt.Fprintf(&text, "%s %v %s\n", m.Subject, m.Header, m.Data)
	}
	return text.String()
}

// work runs batches in which everything happens that can happen, with a secret in every place.
func (c *canaries) work() {
	c.t.Helper()
	const arguments = `{"x":"cnry-arg","cnry-key":1}`
	b := canonical("mixed", "mixed", call{"echo", arguments}, call{"fails", `{"message":"cnry-error"}`}, call{"strict", `{"level":"cnry-invalid","cnry-key":1}`},
		call{"strict", `"cnry-invalid"`}, call{"talks", arguments}, call{"breaks", arguments}, call{"guarded", arguments}, call{"observed", arguments},
		call{"rewritten", arguments}, call{"forbidden", arguments}, call{"cnry-tool", arguments}, call{"hangs", arguments}, call{"gated", arguments})
	b.Labels = map[string]string{"note": "cnry-label"}
	reply, err := c.client.Run(c.t.Context(), b)
	if err != nil {
		c.t.Fatal(err)
	}
	// These statuses show that every secret was really planted.
	want := "ok error validation_error validation_error ok error denied ok ok denied unknown_tool outcome_unknown hook_error"
	if got := statuses(reply); got != want {
		c.t.Errorf("statuses\n%s, want\n%s", got, want)
	}
	c.submitRefused()
	c.submitWithHeaders()
	c.decideAbout("edited", messages.VerdictEdit, func(d *messages.Decision) { d.Input = json.RawMessage(`{"cents":1,"x":"cnry-edit"}`) })
	c.decideAbout("denied", messages.VerdictDeny, func(d *messages.Decision) { d.Reason = "cnry-reason" })
	c.decideAbout("forged", messages.VerdictApprove, func(d *messages.Decision) { d.Sig = "forged" })
}

// submitRefused submits batches that are refused.
func (c *canaries) submitRefused() {
	c.t.Helper()
	for i, message := range []string{`{"calls":[{"id":"1","name":"echo","input":{"x":"cnry-refused"}},{"id":"1","name":"cnry-tool"}]}`, `{"calls":"cnry-refused"}`, `{"cnry-refused":[]}`,
		`{"calls":[{"id":"cnry-refused","name":"echo"},{"id":"cnry-refused","name":"echo"}]}`,
		`{"role":"cnry-refused","content":[]}`, `{"role":"assistant","content":[{"type":"cnry-refused"}]}`, `{}`} {
		b := canonical("refused", fmt.Sprint("refused-", i))
		b.Message = json.RawMessage(message)
		switch {
		case message == "{}":
			b.Provider = "cnry-provider"
		case strings.Contains(message, "role"):
			b.Provider = messages.Anthropic
		}
		if reply, err := c.client.Run(c.t.Context(), b); err == nil && len(reply.Results) > 0 {
			c.t.Errorf("%s is run: %+v", message, reply)
		}
	}
	subject := c.conn.Names().Of(wire.VerbBatch, wire.KeyOf(messages.OneTenant, "refused", "garbage"))
	if _, err := c.conn.Append(c.t.Context(), subject, nil, []byte(`{"v":1,"id":"cnry-refused","message":cnry-refused`)); err != nil {
		c.t.Fatal(err)
	}
}

// submitWithHeaders submits a batch whose message has extra headers.
func (c *canaries) submitWithHeaders() {
	c.t.Helper()
	b := canonical("raw", "raw", call{"echo", `{"x":"cnry-arg"}`})
	header := bus.Header{"Authorization": {"cnry-headers"}, "tracestate": {"cnry-state"}, "baggage": {"user=cnry-baggage"}, "traceparent": {"cnry-parent"}}
	if _, err := c.conn.Append(c.t.Context(), c.conn.Names().Of(wire.VerbBatch, wire.KeyOf(messages.OneTenant, b.Session, b.ID)), header, rawjson.MustMarshal(b)); err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.client.Await(c.t.Context(), b.Session, b.ID); err != nil {
		c.t.Fatal(err)
	}
}

// decideAbout submits a batch with a call that needs approval, and sends the decision v. If v
// is empty, it aborts the batch instead.
func (c *canaries) decideAbout(id string, v messages.Verdict, change func(*messages.Decision)) {
	c.t.Helper()
	b := canonical(id, id, call{"refund", `{"cents":14999,"x":"cnry-arg"}`})
	if err := c.client.Submit(c.t.Context(), b); err != nil {
		c.t.Fatal(err)
	}
	var q messages.Approval
	c.until("a person is asked about the call of "+id, func() (is bool) {
		var err error
		q, err = c.client.Approval(c.t.Context(), b.Session, b.ID, 0)
		return err == nil
	})
	d := approval.Answer(q, v, "alice")
	d.At = time.Now().UTC()
	forged := ""
	if change(&d); d.Sig != "" {
		forged, d.Sig = d.Sig, ""
	}
	signed, err := c.alice.Sign(d)
	if err != nil {
		c.t.Fatal(err)
	}
	if forged != "" {
		signed.Sig = forged
	}
	if _, err := c.client.Decide(c.t.Context(), signed); (err != nil) != (forged != "") {
		c.t.Errorf("the decision on %s: %v", id, err)
	}
	if forged != "" {
		if _, err := c.client.Abort(c.t.Context(), b.Session, b.ID, client.Reason{Text: "cnry-abort", By: "bob"}); err != nil {
			c.t.Error(err)
		}
	}
	if _, err := c.client.Await(c.t.Context(), b.Session, b.ID); err != nil {
		c.t.Error(err)
	}
}

// leakedSecrets returns the secrets that have left the processes, as "sink: secret". It stops
// the server first and then the daemons. So it also searches messages about the lost
// connection, and all traces have arrived.
func (c *canaries) leakedSecrets() []string {
	c.t.Helper()
	texts := map[string]string{"the AUDIT stream": c.auditStream()}
	c.server.kill()
	for _, of := range []string{"coordinator", "worker"} {
		c.until("the "+of+" notices that the server is gone", func() bool { return strings.Contains(c.sinks["the log of the "+of](), "connection to NATS lost") })
		texts["the metrics of the "+of] = c.sinks["the metrics of the "+of]()
		delete(c.sinks, "the metrics of the "+of)
	}
	for _, d := range c.daemons {
		d.signal(syscall.SIGTERM)
	}
	for _, d := range c.daemons {
		<-c.exited(d)
	}
	seen := map[string]bool{}
	for name, read := range c.sinks {
		texts[name] = read()
	}
	for name, text := range texts {
		if text == "" {
			c.t.Errorf("%s is empty: nothing is searched", name)
		}
		for _, secret := range canary.FindAllString(text, -1) {
			seen[name+": "+secret] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// recorded are the secrets that belong into the audit log: the labels of a batch, a person's
// reason for a decision, the provider that an agent names, and the name of a tool that the
// model calls.
var recorded = []string{"the AUDIT stream: cnry-label", "the AUDIT stream: cnry-provider", "the AUDIT stream: cnry-reason", "the AUDIT stream: cnry-tool"}

func TestNoSecretLeavesTheProcesses(t *testing.T) {
	t.Parallel()
	c := newCanaries(t)
	c.work()
	if diff := cmp.Diff(recorded, c.leakedSecrets()); diff != "" {
		t.Errorf("secrets (-allowed +found):\n%s", diff)
	}
}

// At the level debug, the log shows the texts of probes, hooks and refusals, so that an
// operator sees why they fail. It never shows arguments, results or credentials.
func TestTheLogAtLevelDebug(t *testing.T) {
	t.Parallel()
	c := newCanaries(t, "TOOLFLEET_LOG_LEVEL=debug")
	c.work()
	allowed := append([]string{"the log of the coordinator: cnry-provider", "the log of the coordinator: cnry-refused", "the log of the worker: cnry-answer", "the log of the worker: cnry-hook",
		"the log of the worker: cnry-probe"}, recorded...)
	slices.Sort(allowed)
	if diff := cmp.Diff(allowed, c.leakedSecrets()); diff != "" {
		t.Errorf("secrets (-allowed +found):\n%s", diff)
	}
}

// Traces show content on request. So the tests above would find secrets in traces.
func TestContentInTracesByRequest(t *testing.T) {
	t.Parallel()
	c := newCanaries(t, "TOOLFLEET_TRACE_CONTENT=true")
	c.work()
	found := c.leakedSecrets()
	for _, want := range []string{"arg", "result", "listed", "edit"} {
		if !slices.Contains(found, "the traces: cnry-"+want) {
			t.Errorf("traces do not hold cnry-%s", want)
		}
	}
	for _, f := range found {
		sink, secret, _ := strings.Cut(f, ": cnry-")
		inTraces := sink == "the traces" && !slices.Contains([]string{"unlisted", "password", "header", "collector", "headers", "baggage"}, secret)
		if !inTraces && !slices.Contains(recorded, f) {
			t.Errorf("found %s", f)
		}
	}
}

// Daemons cannot start because of wrong settings that contain secrets. No message contains a
// secret.
func TestAFailedStartShowsNoSecret(t *testing.T) {
	t.Parallel()
	p := newProcesses(t)
	tools, _ := p.tools()
	for _, tc := range []struct {
		env    []string
		status int
	}{
		{[]string{"OTEL_EXPORTER_OTLP_HEADERS=Bearer cnry-header"}, 2},
		{[]string{"OTEL_EXPORTER_OTLP_TRACES_HEADERS=authorization=cnry-header%zz"}, 2},
		{[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=ftp://who:cnry-collector@host"}, 2},
		{[]string{"OTEL_RESOURCE_ATTRIBUTES=cnry-attribute"}, 2},
		{[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://who:cnry-collector@%zz", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://127.0.0.1:1", "NATS_URL=nats://127.0.0.1:1"}, 1},
		{[]string{"NATS_URL=nats://fleet:cnry-password@127.0.0.1:1"}, 1},
		{[]string{"NATS_URL=nats://fleet:cnry-password@%zz"}, 1},
	} {
		for _, args := range [][]string{{"coordinator"}, {"worker", "--tools", tools}} {
			q := *p
			q.env = append(slices.Clone(p.env), "OTEL_TRACES_EXPORTER=otlp", "TOOLFLEET_NATS_TIMEOUT=100ms")
			q.env = append(q.env, tc.env...)
			d, err := q.launch(args...)
			if err != nil {
				t.Fatal(err)
			}
			_ = d.cmd.Wait()
			if got := d.cmd.ProcessState.ExitCode(); got != tc.status || canary.MatchString(d.log.String()) {
				t.Errorf("%s with %s ends with %d, want %d:\n%s", args[0], tc.env, got, tc.status, d.log)
			}
		}
	}
}
