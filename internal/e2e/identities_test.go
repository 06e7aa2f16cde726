package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/e2e/fleettest"
	"github.com/toolfleet/toolfleet/internal/httpapi"
	"github.com/toolfleet/toolfleet/internal/httpapi/access"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// identified is a fleet on a server with the identities of deploy/nats. Each daemon has an
// identity of its own. The test fails if the server refuses anything to one of them.
type identified struct {
	*fleet
	ids *natstest.Identities
	tap *wiretap
	// guests are the identities to which the server may refuse something.
	guests sync.Map
}

func newIdentified(t *testing.T, srv *devserver.Server, ids *natstest.Identities) *identified {
	t.Helper()
	f := &identified{ids: ids, tap: &wiretap{}}
	f.fleet = newFleetAs(t, srv, func(o *bus.Options) { f.identify(t, srv, o) })
	return f
}

// identify sets the credentials of a connection by its name. The name agent stands for acme's
// agent.
func (f *identified) identify(t *testing.T, srv *devserver.Server, o *bus.Options) {
	who := o.Name
	if who == "agent" {
		who = natstest.Tenants[0]
	}
	o.NKey, o.InboxPrefix = f.ids.Seed(who), f.ids.Inbox(who)
	if _, guest := f.guests.Load(who); guest {
		o.Logger = nil
		return
	}
	if o.URL = srv.URL(); o.URL == "" {
		o.InProcess = tapped{srv, f.tap, who}
	} else {
		o.InProcess = nil
	}
	o.Logger = slog.New(noRefusal{o.Logger.Handler(), t, who})
}

// noRefusal is a log handler that fails the test if the server refuses something to the
// identity who.
type noRefusal struct {
	slog.Handler
	t   *testing.T
	who string
}

func (h noRefusal) Handle(ctx context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "NATS refused") {
		r.Attrs(func(a slog.Attr) bool {
			if a.Key == "err" && strings.Contains(strings.ToLower(a.Value.String()), "permissions violation") {
				h.t.Errorf("%s: %s: %v", h.who, r.Message, a.Value)
			}
			return true
		})
	}
	return h.Handler.Handle(ctx, r)
}

// Each daemon has its own identity. Its permissions suffice for everything that the fleet does
// for an agent of acme.
func TestAFleetWithIdentities(t *testing.T) {
	t.Parallel()
	ids := natstest.NewIdentities(t)
	f := newIdentified(t, natstest.Server(t, natstest.Fast, ids.Option), ids)
	defer f.close()
	var s shelf
	s.tools(f.fleet)
	addBlob(f.fleet)
	f.tool(schemas.Tool{Name: "print", Kind: messages.KindRead, Results: schemas.ResultsReadable}, func(_ context.Context, c tool.Call) (tool.Output, error) {
		c.Progress(messages.Progress{Fraction: 0.5, Text: "half"})
		return tool.Text(strings.Repeat("0123456789abcde\n", 1000) + "the end"), nil
	})
	f.coordinator(coordinator.Config{})
	f.coordinator(coordinator.Config{})
	f.worker(worker.Config{})
	f.worker(worker.Config{})

	t.Run("every provider", f.everyProvider)
	t.Run("large replies", f.largeReplies)
	t.Run("doors", f.checkEndpoints)
	t.Run("progress and result_read", f.wholeOutput)
	t.Run("gauges", f.gauges)
	t.Run("tools", func(t *testing.T) {
		list, err := f.client.Tools(t.Context(), messages.GetTools{Provider: messages.Anthropic})
		if err != nil || len(list.Tools) == 0 {
			t.Errorf("an agent is answered %+v, %v", list, err)
		}
	})
	t.Run("over HTTP", f.overHTTP)
	t.Run("restart of the server", func(t *testing.T) {
		if err := f.srv.Restart(); err != nil {
			t.Fatal(err)
		}
		f.run(canonical("after", "restart", call{"wr", `{"k":"r","v":"1"}`}, call{"rd", `{"k":"r"}`}))
	})
	f.close()
	f.checkNoUnusedRights(t)
}

// rarelyUsedRights are the rights that TestAFleetWithIdentities does not use, each with the
// situation that needs it.
var rarelyUsedRights = map[string]string{
	"$JS.API.STREAM.UPDATE.":                  "a fleet whose ages or bounds are raised",
	"$JS.API.STREAM.MSG.GET.":                 "reads from the leader, on a cluster",
	"$JS.API.STREAM.MSG.DELETE.":              "an acknowledgement that was lost; a job that is out when its call ends",
	"$JS.API.STREAM.PURGE.OBJ_":               "an object that could not be stored whole",
	"$SYS.REQ.USER.INFO":                      "workers before any coordinator",
	"$JS.API.DIRECT.GET.TOOLFLEET_CALLS":      "jobs that are not delivered for the first time",
	"$JS.API.DIRECT.GET.TOOLFLEET_RESULTS":    "jobs that are not delivered for the first time",
	"$SYS.REQ.SERVER.PING.JSZ":                "daemons, before they start",
	"_INBOX.operator.>":                       "an operator who asks",
	"toolfleet.call.>":                        "calls that end before a worker takes them",
	"toolfleet.result.>":                      "calls that end before a worker takes them",
	"toolfleet.reply.*.*.*":                   "a finished batch that is submitted again",
	"toolfleet.stop.>":                        "an abort of a running call",
	"toolfleet.hand.>":                        "a call that is stricter than its plan",
	"toolfleet.dead.set-aside":                "messages that cannot be read",
	"toolfleet.audit.*.*.*.*":                 "calls that people decide about, or that are of the tier medium",
	"toolfleet.approval.":                     "calls that people decide about",
	"$JS.API.DIRECT.GET.KV_TOOLFLEET_keys":    "calls that people decide about, or that are of the tier medium",
	"$KV.TOOLFLEET_approvals.>":               "calls that people decide about",
	"$JS.API.DIRECT.GET.KV_TOOLFLEET_workers": "the last worker of its kind that ends while jobs wait for it",
}

// checkNoUnusedRights fails for each right that no daemon used and that is not in
// rarelyUsedRights.
func (f *identified) checkNoUnusedRights(t *testing.T) {
	for _, who := range []string{"coordinator", "worker", "http"} {
		publish, subscribe := f.ids.May(who)
		for what, patterns := range map[string][]string{"publish": publish, "subscribe": subscribe} {
			said := f.tap.subjectsOf(who, what)
			for _, p := range patterns {
				used := slices.ContainsFunc(said, func(subject string) bool { return matches(p, subject) })
				for prefix := range rarelyUsedRights {
					used = used || strings.HasPrefix(p, prefix)
				}
				if !used {
					t.Errorf("a %s may %s %s, and does not", who, what, p)
				}
			}
		}
	}
}

// A worker starts before any coordinator. It waits until a coordinator has made the streams
// and consumers, and makes none itself.
func TestAWorkerComesBeforeAnyCoordinator(t *testing.T) {
	ids := natstest.NewIdentities(t)
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newIdentified(t, srv, ids)
		defer f.close()
		var s shelf
		s.tools(f.fleet)
		f.worker(worker.Config{})
		<-time.After(10 * time.Second)
		f.coordinator(coordinator.Config{})
		f.run(canonical("s", "b", call{"wr", `{"k":"a","v":"1"}`}))
		for _, subject := range f.tap.subjectsOf("worker", "publish") {
			if matches("$JS.API.STREAM.CREATE.*", subject) || matches("$JS.API.CONSUMER.CREATE.>", subject) {
				t.Errorf("a worker published %s", subject)
			}
		}
	}, ids.Option)
}

// The stream of jobs is deleted. A coordinator makes the stream and its consumers again,
// because workers may make neither.
func TestLostJobsComeBackForWorkers(t *testing.T) {
	ids := natstest.NewIdentities(t)
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newIdentified(t, srv, ids)
		defer f.close()
		var s shelf
		s.tools(f.fleet)
		f.coordinator(coordinator.Config{})
		f.worker(worker.Config{})
		f.run(canonical("s", "before", call{"wr", `{"k":"a","v":"1"}`}))
		operator := f.connect("operator")
		defer operator.Close()
		if err := operator.Call(t.Context(), "$JS.API.STREAM.DELETE.TOOLFLEET_JOBS", struct{}{}, nil); err != nil {
			t.Fatal(err)
		}
		f.run(canonical("s", "after", call{"wr", `{"k":"b","v":"1"}`}, call{"rd", `{"k":"b"}`}))
	}, ids.Option)
}

// The table lists rights that an identity must not have. No identity has one of its list, not
// even through a wildcard.
func TestRightsAreNoWider(t *testing.T) {
	ids := natstest.NewIdentities(t)
	key := []string{"$JS.API.DIRECT.GET.KV_TOOLFLEET_keys", "$JS.API.STREAM.MSG.GET.KV_TOOLFLEET_keys", "$JS.API.DIRECT.GET.KV_TOOLFLEET_keys.$KV.TOOLFLEET_keys.audit",
		"$JS.API.CONSUMER.CREATE.KV_TOOLFLEET_keys.x", "$JS.API.STREAM.SNAPSHOT.KV_TOOLFLEET_keys", "$KV.TOOLFLEET_keys.audit"}
	truth := []string{"$KV.TOOLFLEET_approvals.x", "toolfleet.final.t.s.b", "toolfleet.plan.t.s.b", "$JS.API.STREAM.DELETE.TOOLFLEET_CALLS", "$JS.API.STREAM.PURGE.TOOLFLEET_CALLS",
		"$JS.API.STREAM.UPDATE.TOOLFLEET_CALLS", "$JS.API.STREAM.CREATE.x", "$JS.API.CONSUMER.CREATE.TOOLFLEET_CALLS.x", "$JS.API.STREAM.MSG.DELETE.TOOLFLEET_CALLS"}
	for who, wider := range map[string]struct{ publish, subscribe []string }{
		"worker": {append(append(truth, key[3:]...), "toolfleet.approval.news.t.s.b.0", "toolfleet.read.default.t.s.b.0", "toolfleet.write.default.t.s.b.0", "$JS.API.INFO", "$JS.API.STREAM.PURGE.OBJ_TOOLFLEET_OBJECTS",
			"$JS.API.STREAM.CREATE.TOOLFLEET_JOBS", "$JS.API.CONSUMER.CREATE.TOOLFLEET_JOBS.x", "$JS.API.CONSUMER.DELETE.TOOLFLEET_JOBS.x", "$JS.API.STREAM.MSG.GET.TOOLFLEET_BATCHES", "$JS.API.DIRECT.GET.TOOLFLEET_AUDIT"), []string{"toolfleet.batch.t.s.b", "toolfleet.approval.show.t.s.b.0", "_INBOX.coordinator.x", "$SRV.PING"}},
		"coordinator": {append(truth[3:5:5], "toolfleet.approval.decide.t.s.b.0"), []string{"toolfleet.call.t.s.b.0", "toolfleet.stop.t.s", "_INBOX.worker.x"}},
		"approver":    {append(append(truth, key...), "toolfleet.batch.t.s.b", "$SRV.PING"), []string{"toolfleet.approval.decide.t.s.b.0", "toolfleet.event.t.s.b", "_INBOX.agent.x"}},
		"http":        {append(append(truth, key...), "toolfleet.call.t.s.b.0", "toolfleet.approval.news.t.s.b.0", "$JS.API.STREAM.INFO.x"), []string{"_INBOX.agent.x", "toolfleet.call.t.s.b.0", "toolfleet.stop.t.s"}},
		"operator":    {append(key[5:], "toolfleet.approval.decide.t.s.b.0", "toolfleet.call.t.s.b.0", "toolfleet.result.t.s.b.0"), []string{"_INBOX.approver.x"}},
		"acme":        {append(append(truth, key...), "toolfleet.batch.acme.s.b", "toolfleet.approval.list.t"), []string{"toolfleet.reply.acme.s.b", "toolfleet.approval.news.t.s.b.0", "_R_.x"}},
	} {
		publish, subscribe := ids.May(who)
		for what, try := range map[string][2][]string{"publish": {publish, wider.publish}, "hear": {subscribe, wider.subscribe}} {
			for _, subject := range try[1] {
				if slices.ContainsFunc(try[0], func(p string) bool { return matches(p, subject) }) {
					t.Errorf("%s may %s %s", who, what, subject)
				}
			}
		}
	}
}

func addBlob(f *fleet) {
	f.tool(schemas.Tool{Name: "blob", Kind: messages.KindRead, MaxOutput: 1 << 30}, func(_ context.Context, c tool.Call) (tool.Output, error) {
		var in struct{ N int }
		if err := json.Unmarshal(c.Input, &in); err != nil {
			return tool.Output{}, err
		}
		return tool.Text(strings.Repeat("x", in.N)), nil
	})
}

func (f *identified) everyProvider(t *testing.T) {
	for _, p := range messages.Providers {
		k := string(p)
		rd, wr := call{"rd", fmt.Sprintf(`{"k":%q}`, k)}, call{"wr", fmt.Sprintf(`{"k":%q,"v":"v"}`, k)}
		reply := f.run(batchIn(p, "s-"+k, k, rd, wr, rd))
		ids, texts := answers(t, p, reply.Reinjection)
		if !cmp.Equal(ids, []string{"c0", "c1", "c2"}) || !cmp.Equal(texts, []string{"nothing", "written", "v"}) {
			t.Errorf("%s: ids %v and answers %v", p, ids, texts)
		}
	}
}

func (f *identified) largeReplies(t *testing.T) {
	for _, size := range largeSizes() {
		b := canonical("s", fmt.Sprint("large", size), call{"blob", fmt.Sprintf(`{"n":%d}`, size)}, call{"wr", `{"k":"l","v":"1"}`}, call{"blob", fmt.Sprintf(`{"n":%d}`, size)})
		reply := f.run(b)
		again, err := f.client.Get(t.Context(), b.Session, b.ID)
		if n := strings.Count(string(reply.Reinjection), "x"); n != 2*size || err != nil || !reflect.DeepEqual(again, reply) {
			t.Errorf("two outputs of %d bytes: %d came back; fetched again: %v", size, n, err)
		}
	}
}

// tenantHeader takes the tenant of a request from a header, without a check.
type tenantHeader struct{}

func (tenantHeader) Who(r *http.Request) (access.Principal, error) {
	return access.Principal{Tenant: r.Header.Get("Tenant"), User: "u"}, nil
}

// overHTTP makes the requests of agents and approvers over HTTP, for two tenants of one
// server.
func (f *identified) overHTTP(t *testing.T) {
	conn := f.connect("http")
	defer conn.Close()
	server, err := httpapi.New(func(tenant string) *client.Client { return fleettest.AgentOver(conn, tenant) }, httpapi.Config{Access: tenantHeader{}})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener) }()
	defer func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	do := func(ctx context.Context, tenant, method, path, body string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, method, "http://"+listener.Addr().String()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Tenant", tenant)
		if strings.HasSuffix(path, "/later") {
			req.Header.Set("Prefer", "wait=0")
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	for _, tenant := range natstest.Tenants {
		streaming, stop := context.WithCancel(ctx)
		streams := []*http.Response{
			do(streaming, tenant, "GET", "/v1/events", ""), do(streaming, tenant, "GET", "/v1/sessions/http/events", ""),
		}
		decision := rawjson.MustMarshal(messages.Decision{V: 1, Approval: "q", Tenant: messages.TenantID(tenant), Session: "http", Batch: "b"})
		for _, row := range []struct {
			method, path, body string
			status             int
		}{
			{"PUT", "/v1/sessions/http/batches/b", `{"provider":"canonical","message":{"calls":[{"id":"1","name":"wr","input":{"k":"h","v":"1"}}]}}`, 200},
			{"PUT", "/v1/sessions/http/batches/later", `{"provider":"canonical","message":{"calls":[{"id":"1","name":"rd","input":{"k":"h"}}]}}`, 202},
			{"GET", "/v1/sessions/http/batches/b", "", 200},
			{"GET", "/v1/sessions/http/batches/b?timeline=1", "", 200},
			{"GET", "/v1/sessions/http/batches/never", "", 404},
			{"PUT", "/v1/sessions/http/calls/c", `{"name":"rd","input":{"k":"h"}}`, 200},
			{"PUT", "/v1/sessions/http/calls/large", `{"name":"blob","input":{"N":3000000}}`, 200},
			{"POST", "/v1/sessions/http/steer", `{"steer":"more"}`, 200},
			{"DELETE", "/v1/sessions/http/batches/b", "", 200},
			{"POST", "/v1/sessions/http/abort", `{}`, 200},
			{"GET", "/v1/tools?provider=anthropic", "", 200},
			{"GET", "/v1/approvals", "", 200},
			{"GET", "/v1/approvals/q", "", 404},
			{"POST", "/v1/approvals/q/decision", string(decision), 403}, // this fleet has no approvers
		} {
			res := do(ctx, tenant, row.method, row.path, row.body)
			body, err := io.ReadAll(res.Body)
			res.Body.Close()
			inTime := row.status == http.StatusAccepted && res.StatusCode == http.StatusOK // the batch may end before the server answers
			if err != nil || res.StatusCode != row.status && !inTime {
				t.Errorf("%s: %s %s: %d %.200s, %v; want %d", tenant, row.method, row.path, res.StatusCode, body, err, row.status)
			}
		}
		// A client submits this batch and does not wait for its reply.
		if err := fleettest.AgentOver(conn, tenant).Submit(ctx, canonical("http", "submitted", call{"rd", `{"k":"h"}`})); err != nil {
			t.Errorf("%s: submit: %v", tenant, err)
		}
		for _, stream := range streams {
			lines := bufio.NewScanner(stream.Body)
			for lines.Scan() && lines.Text() != "event: reply" {
			}
			if err := lines.Err(); err != nil {
				t.Errorf("%s: %s: %v", tenant, stream.Request.URL, err)
			}
			stream.Body.Close()
		}
		stop()
	}
}

// wholeOutput follows a call whose output is cut, and then reads the whole output. Workers
// send both the progress and the output.
func (f *identified) wholeOutput(t *testing.T) {
	var half atomic.Bool
	reply, err := f.client.Run(t.Context(), canonical("cut", "b", call{"print", "{}"}), client.OnEvent(func(e messages.Event) {
		if e.Type == messages.EventProgress && e.Progress.Fraction == 0.5 {
			half.Store(true)
		}
	}))
	if err != nil || len(reply.Results) != 1 || reply.Results[0].Truncated == nil {
		t.Fatalf("a call with a large output: %+v, %v", reply, err)
	}
	if !half.Load() {
		t.Error("the progress of the call did not arrive")
	}
	read := f.run(canonical("cut", "read", call{"result_read", `{"ref":"` + reply.Results[0].Truncated.Ref + `","grep":"the end"}`}))
	if !strings.Contains(string(read.Reinjection), "1001: the end") {
		t.Errorf("result_read: %.300s", read.Reinjection)
	}
}

func (f *identified) checkEndpoints(t *testing.T) {
	if _, err := f.client.Get(t.Context(), "s", "never"); err != client.ErrUnknown {
		t.Errorf("get of a batch that never was: %v", err)
	}
	var events atomic.Int32
	b := canonical("doors", "b", call{"rd", `{"k":"d"}`})
	if _, err := f.client.Run(t.Context(), b, client.OnEvent(func(messages.Event) { events.Add(1) })); err != nil || events.Load() < 3 {
		t.Errorf("run with progress: %d events, %v", events.Load(), err)
	}
	b = canonical("doors", "submitted", call{"wr", `{"k":"d","v":"1"}`})
	if err := f.client.Submit(t.Context(), b); err != nil {
		t.Errorf("submit: %v", err)
	}
	if reply, err := f.await(b, time.Minute); err != nil || reply.Status != messages.ReplyCompleted {
		t.Errorf("await: %+v, %v", reply, err)
	}
	if _, err := f.client.Steer(t.Context(), "doors", json.RawMessage(`"more"`), "", client.Reason{}); err != nil {
		t.Errorf("steer: %v", err)
	}
	if _, err := f.client.AbortSession(t.Context(), "doors", client.Reason{}); err != nil {
		t.Errorf("abort: %v", err)
	}
	conflict := canonical("doors", "b", call{"rd", `{"k":"other"}`})
	if _, err := f.client.Run(t.Context(), conflict); err == nil || !strings.Contains(err.Error(), "other") && !strings.Contains(err.Error(), "conflict") {
		t.Errorf("the same id with another body: %v", err)
	}
}

// The first call of a fleet needs an audit line before it runs. Its worker finds the key of
// the audit log, which a coordinator has made.
func TestTheFirstCallHasItsAuditLine(t *testing.T) {
	ids := natstest.NewIdentities(t)
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newIdentified(t, srv, ids)
		defer f.close()
		f.recordedTool(schemas.Tool{Name: "pay", Kind: messages.KindWrite}, func(context.Context, int) (tool.Output, error) { return tool.Text("paid"), nil })
		f.worker(worker.Config{Rules: rules(t, "risk:\n  - {tier: medium, tool: pay, name: m}\n")})
		f.coordinator(coordinator.Config{})
		if r := f.run(canonical("s", "b", call{"pay", `{}`})).Results[0]; r.Status != messages.StatusOK {
			t.Errorf("%+v", r)
		}
	}, natstest.Fast, ids.Option)
}

// A worker writes audit lines about calls that it starts. It cannot write how batches ended,
// what was asked, and what was decided: only a coordinator can.
func TestAWorkerCannotWriteLinesOfCoordinators(t *testing.T) {
	ids := natstest.NewIdentities(t)
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newIdentified(t, srv, ids)
		defer f.close()
		f.coordinator(coordinator.Config{})
		f.log = slog.New(slog.DiscardHandler) // takes the error that the refusal logs
		w := f.fleet.connect("worker")
		defer w.Close()
		key := wire.KeyOf("acme", "s", "b")
		for _, subject := range []string{w.Names().Ended(key.Tenant, key.Session, time.Now()), w.Names().Aside(key), w.Names().Question(key.Call(0))} {
			if _, err := w.Append(t.Context(), subject, nil, []byte(`{}`)); err == nil {
				t.Errorf("a worker has written a line of coordinators at %s", subject)
			}
		}
		if _, err := w.Append(t.Context(), w.Names().OfCall(wire.VerbAudit, key.Call(0)), nil, []byte(`{}`)); err != nil {
			t.Errorf("a worker cannot say what it starts: %v", err)
		}
	}, natstest.Fast, ids.Option)
}
