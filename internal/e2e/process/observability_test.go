package process

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/messages"
)

// observability is the folder with the settings for monitoring.
const observability = "../../../deploy/observability/"

// A fleet of processes works, with successes and failures, and a Prometheus with our settings
// watches it. Every query of the dashboard finds data, every rule can be evaluated, and the
// alerts name what was broken.
func TestTheDashboardHasData(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	for _, needed := range []string{"prometheus", "promtool"} {
		if _, err := exec.LookPath(needed); err != nil {
			t.Skipf("no %s here: Debian's package prometheus brings it", needed)
		}
	}
	f := newObserved(t)
	f.loseAWorker()
	f.sendJunk()
	prom := f.scrape()
	queries := dashboardQueries(t)
	open := queries
	for deadline := time.Now().Add(2 * time.Minute); len(open) > 0 && time.Now().Before(deadline); {
		f.work()
		open = prom.queriesWithoutData(open)
	}
	for _, q := range open {
		t.Errorf("%s has no data:\n\t%s", q.panel, q.expr)
	}
	t.Logf("%d queries of the dashboard have data", len(queries)-len(open))
	prom.rulesAreSound()
	prom.checkSeries(metricNames(t))
	f.until("the alert about the lost write fires", func() bool { return prom.alert("ToolfleetOutcomeUnknown") == "firing" })
	f.until("the alert about the junk is pending", func() bool { return prom.alert("ToolfleetDeadLetters") != "" })
	f.loop()
	f.until("the alert about rounds without calls fires", func() bool { return prom.alert("ToolfleetMaxRoundsBurned") == "firing" })
	f.until("a slow tool burns its budget", func() bool {
		f.runSlowRead()
		return len(prom.queriesWithoutData([]query{{"", `tool:toolfleet_slow_calls:burn_rate1h{tool="sluggish"} > 14.4`}})) == 0
	})
	f.until("a call leads to its trace", func() bool {
		return len(prom.get("query_exemplars", url.Values{"query": {"toolfleet_call_duration_seconds_bucket"}, "start": {ago(time.Hour)}, "end": {ago(0)}})) > len("[]")
	})
	for job, addrs := range f.served {
		f.checkMetrics(job, addrs[0])
	}
}

// observed is a fleet of processes under monitoring.
type observed struct {
	*processes
	dir    string
	alice  approval.Key
	agent  *client.Client
	served map[string][]string // addresses of /metrics by job
	rounds int
}

// newObserved starts a server, a coordinator and two workers. They have everything with a
// metric of its own: a hook that cannot run, a bounded stream, approvers, and traces.
func newObserved(t *testing.T) *observed {
	t.Helper()
	alice, err := approval.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	f := &observed{dir: t.TempDir(), alice: alice, served: map[string][]string{}}
	policy := f.file(t, "policy.yaml", fmt.Sprintf(`
ask: [{tool: refund, name: refunds}]
deny: [{tool: forbidden, name: never}]
hooks: [{name: lost, match: echo, class: observe, after: {command: [./no-such-program]}}]
approvers: [{name: alice, key: %s}]
`, f.alice.Public()))
	settings := f.file(t, "toolfleet.yaml", "max_bytes: {CALLS: 100MB}\npolicy: "+policy+"\n")
	f.processes = newProcesses(t, append(newOTLP(t).env(), "TOOLFLEET_CONFIG="+settings,
		"TOOLFLEET_ACK_WAIT=1s", "TOOLFLEET_LEASE=2s", "TOOLFLEET_GRACE=400ms")...)
	f.serve("coordinator")
	f.serve("http", "--listen", natstest.FreeAddr(t))
	f.serve("worker", "--tools", f.file(t, "tools.yaml", `
tools:
  - {name: echo, kind: read, input_schema: {type: object}, builtin: noop}
  - {name: strict, kind: compute, input_schema: {type: object, required: [id]}, builtin: noop}
  - {name: broken, kind: read, input_schema: {type: object}, builtin: fail}
  - {name: forbidden, kind: read, input_schema: {type: object}, builtin: noop}
  - {name: slow, kind: read, timeout: 20ms, input_schema: {type: object}, builtin: sleep}
  - {name: sluggish, kind: read, timeout: 30s, input_schema: {type: object}, builtin: sleep}
  - {name: note, kind: write, input_schema: {type: object}, builtin: noop}
  - {name: refund, kind: write, input_schema: {type: object}, builtin: noop}
`))
	f.agent = f.client()
	return f
}

func (f *observed) file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(f.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// serve starts a daemon whose metrics Prometheus reads.
func (f *observed) serve(args ...string) *daemon {
	f.t.Helper()
	addr := natstest.FreeAddr(f.t)
	d := f.start(append(args, "--http", addr)...)
	f.until(args[0]+" is ready", func() bool {
		resp, err := http.Get("http://" + addr + "/readyz")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	f.served[args[0]] = append(f.served[args[0]], addr)
	return d
}

// loseAWorker kills a worker in the middle of a write, so that the outcome of the write is
// unknown.
func (f *observed) loseAWorker() {
	f.t.Helper()
	tools := f.file(f.t, "doomed.yaml", "tools: [{name: nap, kind: write, pool: doomed, timeout: 60s, input_schema: {type: object}, builtin: sleep}]\n")
	victim := f.serve("worker", "--tools", tools)
	running := make(chan struct{}, 16)
	var reply messages.Reply
	ended := make(chan error, 1)
	go func() {
		var err error
		reply, err = f.agent.Run(f.t.Context(), canonical("doomed", "doomed", call{"nap", `{"ms":50000}`}), client.OnEvent(func(e messages.Event) {
			if e.Type == messages.EventRunning {
				running <- struct{}{}
			}
		}))
		ended <- err
	}()
	select {
	case <-running:
	case err := <-ended:
		f.t.Fatalf("the nap did not begin: %+v, %v", reply, err)
	}
	victim.kill()
	f.serve("worker", "--tools", tools)
	if err := <-ended; err != nil || reply.Results[0].Status != messages.StatusOutcomeUnknown {
		f.t.Fatalf("the nap of a lost worker: %+v, %v", reply, err)
	}
}

// sendJunk publishes a message that is no batch.
func (f *observed) sendJunk() {
	f.t.Helper()
	if _, err := f.bus().Append(f.t.Context(), "toolfleet.batch._.*.b", nil, []byte("no batch")); err != nil {
		f.t.Fatal(err)
	}
}

// work runs a round of batches: calls of every kind and status, a refused batch, a question
// that is answered, and one that is not.
func (f *observed) work() {
	f.t.Helper()
	f.rounds++
	id := fmt.Sprintf("b%d", f.rounds)
	mixed := canonical("mixed", id, call{"echo", ""}, call{"strict", ""}, call{"strict", `{"id":1}`}, call{"broken", `{"message":"no"}`}, call{"forbidden", ""},
		call{"slow", `{"ms":5000}`}, call{"no_such_tool", ""}, call{"note", ""})
	mixed.Round = 1 + f.rounds%4
	if _, err := f.agent.Run(f.t.Context(), mixed); err != nil {
		f.t.Fatal(err)
	}
	refused := canonical("refused", id)
	refused.Message = json.RawMessage(`{"calls":[{"id":"same","name":"echo","input":{}},{"id":"same","name":"echo","input":{}}]}`)
	if reply, err := f.agent.Run(f.t.Context(), refused); err == nil || reply.Status != messages.ReplyRefused {
		f.t.Fatalf("two calls with one id: %+v, %v", reply, err)
	}
	asking := canonical("asking"+id, id, call{"refund", ""})
	if err := f.agent.Submit(f.t.Context(), asking); err != nil {
		f.t.Fatal(err)
	}
	if f.rounds > 1 { // the first question stays open
		f.answer(asking)
	}
}

// loop runs 30 rounds of an agent whose model calls no tools.
func (f *observed) loop() {
	f.t.Helper()
	for round := range 30 {
		b := canonical("loop", fmt.Sprintf("round%d", round))
		b.Round = 10 + round
		if reply, err := f.agent.Run(f.t.Context(), b); err != nil || len(reply.Results) != 0 {
			f.t.Fatalf("a batch without calls: %+v, %v", reply, err)
		}
	}
}

// runSlowRead runs a read of 2.2 s, which counts as slow.
func (f *observed) runSlowRead() {
	f.t.Helper()
	f.rounds++
	if _, err := f.agent.Run(f.t.Context(), canonical("slow", fmt.Sprintf("slow%d", f.rounds), call{"sluggish", `{"ms":2200}`})); err != nil {
		f.t.Fatal(err)
	}
}

// answer approves a call as alice, twice. The second decision is refused, because the question
// is closed.
func (f *observed) answer(b messages.Batch) {
	f.t.Helper()
	var q messages.Approval
	f.until("a person is asked about the refund", func() (asks bool) {
		var err error
		q, err = f.agent.Approval(f.t.Context(), b.Session, b.ID, 0)
		return err == nil
	})
	d := approval.Answer(q, messages.VerdictApprove, "alice")
	d.At = time.Now().UTC()
	signed, err := f.alice.Sign(d)
	if err != nil {
		f.t.Fatal(err)
	}
	if _, err := f.agent.Decide(f.t.Context(), signed); err != nil {
		f.t.Fatal(err)
	}
	if _, err := f.agent.Await(f.t.Context(), b.Session, b.ID); err != nil {
		f.t.Fatal(err)
	}
	if _, err := f.agent.Decide(f.t.Context(), signed); err == nil {
		f.t.Fatal("the same question was answered twice")
	}
}

// checkMetrics checks a daemon's metrics with promtool: names, units, help texts.
func (f *observed) checkMetrics(job, addr string) {
	f.t.Helper()
	resp, err := http.Get("http://" + addr + "/metrics")
	if err != nil {
		f.t.Errorf("%s: %v", job, err)
		return
	}
	defer resp.Body.Close()
	check := exec.Command("promtool", "check", "metrics")
	check.Stdin = resp.Body
	if out, err := check.CombinedOutput(); err != nil || len(bytes.TrimSpace(out)) > 0 {
		f.t.Errorf("promtool check metrics of the %s: %v\n%s", job, err, out)
	}
}

// scraper is a real Prometheus server.
type scraper struct {
	t   *testing.T
	url string
}

// scrape starts a Prometheus with our settings. Only the addresses and the scrape interval
// differ.
func (f *observed) scrape() *scraper {
	f.t.Helper()
	settings, err := os.ReadFile(observability + "prometheus/prometheus.yml")
	if err != nil {
		f.t.Fatal(err)
	}
	rules, err := filepath.Abs(observability + "prometheus/rules")
	if err != nil {
		f.t.Fatal(err)
	}
	text := strings.NewReplacer(" 15s", " 1s", "[rules/", "["+rules+"/").Replace(string(settings))
	found := regexp.MustCompile(`dns_sd_configs: \[\{names: \[(\w+)\].*`)
	jobs := 0
	text = found.ReplaceAllStringFunc(text, func(line string) string {
		jobs++
		return `static_configs: [{targets: ["` + strings.Join(f.served[found.FindStringSubmatch(line)[1]], `", "`) + `"]}]`
	})
	if jobs != len(f.served) {
		f.t.Fatalf("the settings scrape %d jobs, want %d:\n%s", jobs, len(f.served), settings)
	}
	addr := natstest.FreeAddr(f.t)
	log := &lockedBuffer{}
	cmd := exec.Command("prometheus", "--config.file="+f.file(f.t, "prometheus.yml", text), "--storage.tsdb.path="+filepath.Join(f.dir, "tsdb"),
		"--web.listen-address="+addr, "--enable-feature=exemplar-storage")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if f.t.Failed() {
			f.t.Logf("Prometheus said:\n%s", log)
		}
	})
	f.until("Prometheus is ready", func() bool {
		resp, err := http.Get("http://" + addr + "/-/ready")
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return &scraper{f.t, "http://" + addr + "/api/v1/"}
}

// get returns the answer of an endpoint. It fails the test if there is none.
func (p *scraper) get(endpoint string, values url.Values) json.RawMessage {
	p.t.Helper()
	resp, err := http.Get(p.url + endpoint + "?" + values.Encode())
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.Unmarshal(body, &answer); err != nil || answer.Status != "success" {
		p.t.Fatalf("%s %v: %v\n%s", endpoint, values, err, body)
	}
	return answer.Data
}

func ago(d time.Duration) string { return strconv.FormatInt(time.Now().Add(-d).Unix(), 10) }

// queriesWithoutData returns the queries that have no data: they give no series, or only NaN.
func (p *scraper) queriesWithoutData(queries []query) (empty []query) {
	p.t.Helper()
	for _, q := range queries {
		var found struct {
			Result []struct{ Value [2]any }
		}
		if err := json.Unmarshal(p.get("query", url.Values{"query": {q.expr}}), &found); err != nil {
			p.t.Fatalf("%s: %v", q.expr, err)
		}
		numbers := 0
		for _, series := range found.Result {
			if v, err := strconv.ParseFloat(fmt.Sprint(series.Value[1]), 64); err == nil && !math.IsNaN(v) {
				numbers++
			}
		}
		if numbers == 0 {
			empty = append(empty, q)
		}
	}
	return empty
}

// checkSeries checks that each metric has a series. Queries do not show it: a query with an
// alternative has data even if its metric does not exist.
func (p *scraper) checkSeries(names []string) {
	p.t.Helper()
	var there []string
	if err := json.Unmarshal(p.get("label/__name__/values", nil), &there); err != nil {
		p.t.Fatal(err)
	}
	for _, name := range names {
		if !slices.Contains(there, name) {
			p.t.Errorf("nobody has the metric %s", name)
		}
	}
	p.t.Logf("%d metrics", len(names))
}

// rulesAreSound checks that every rule is evaluated without an error.
func (p *scraper) rulesAreSound() {
	p.t.Helper()
	var found struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	if err := json.Unmarshal(p.get("rules", nil), &found); err != nil {
		p.t.Fatal(err)
	}
	n := 0
	for _, g := range found.Groups {
		for _, r := range g.Rules {
			n++
			if r.Health != "ok" {
				p.t.Errorf("rule %s is %s: %s", r.Name, r.Health, r.LastError)
			}
		}
	}
	if n == 0 {
		p.t.Error("there are no rules")
	}
	p.t.Logf("%d rules", n)
}

// alert returns the state of an alert: "", pending or firing.
func (p *scraper) alert(name string) string {
	p.t.Helper()
	var found struct {
		Alerts []struct {
			Labels map[string]string
			State  string
		}
	}
	if err := json.Unmarshal(p.get("alerts", nil), &found); err != nil {
		p.t.Fatal(err)
	}
	for _, a := range found.Alerts {
		if a.Labels["alertname"] == name {
			return a.State
		}
	}
	return ""
}

// metricNames returns the metrics of the fleet that the dashboard and the rules use. It leaves
// out recorded series, which have a colon in their names.
func metricNames(t *testing.T) (names []string) {
	t.Helper()
	files, err := filepath.Glob(observability + "prometheus/rules/*.yml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, observability+"dashboards/toolfleet.json") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`[a-z:]*toolfleet_[a-z_:]+`).FindAllString(string(text), -1) {
			if !strings.Contains(name, ":") {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// query is a query of the dashboard.
type query struct{ panel, expr string }

// dashboardQueries returns the queries of the dashboard, with all values of its variables
// selected.
func dashboardQueries(t *testing.T) (queries []query) {
	t.Helper()
	body, err := os.ReadFile(observability + "dashboards/toolfleet.json")
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(body, &board); err != nil {
		t.Fatal(err)
	}
	chosen := strings.NewReplacer("$__rate_interval", "1m", "$pool", ".+", "$tool", ".+")
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			queries = append(queries, query{panel.Title, chosen.Replace(target.Expr)})
		}
	}
	return queries
}
