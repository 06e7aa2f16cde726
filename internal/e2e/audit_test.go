package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/audit"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// auditLines returns the audit lines about calls and refused batches that match a filter, in
// the order in which they were stored.
func (f *fleet) auditLines(want audit.Filter) (lines []messages.AuditRecord) {
	f.t.Helper()
	log, err := audit.New(f.conn, audit.Config{})
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err = log.Read(ctx, want, func(e audit.Entry) bool {
		if e.Err != nil {
			f.t.Error(e.Err)
		}
		if e.Line.Type == messages.AuditCall || e.Line.Type == messages.AuditBatchRefused {
			lines = append(lines, e.Line)
		}
		return true
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return lines
}

// awaitGone waits until a batch has left the log. Its audit lines are stored before that.
func (f *fleet) awaitGone(b messages.Batch) {
	f.t.Helper()
	f.until("the batch has left the log", func() bool {
		_, open, err := journal.New(f.conn).Open(context.Background(), wire.KeyOf(messages.OneTenant, b.Session, b.ID))
		return err == nil && !open
	})
}

// wantAuditLines checks that each call of a batch has one audit line, in the order of the
// calls, and that each line agrees with the reply.
func (f *fleet) wantAuditLines(b messages.Batch, reply messages.Reply) []messages.AuditRecord {
	f.t.Helper()
	f.awaitGone(b)
	lines := f.auditLines(audit.Filter{Session: b.Session, Batch: b.ID})
	type resultLine struct {
		Index   int
		CallID  messages.CallID
		Tool    string
		Status  messages.Status
		Code    messages.Code
		Attempt int
		Worker  string
	}
	var want, got []resultLine
	for _, r := range reply.Results {
		w := resultLine{r.Index, r.CallID, r.Tool, r.Status, "", r.Attempt, r.Worker}
		if r.Err != nil {
			w.Code = r.Err.Code
		}
		want = append(want, w)
	}
	for _, l := range lines {
		got = append(got, resultLine{l.Index, l.CallID, l.Tool, l.Status, l.Code, l.Attempt, l.Worker})
		if l.Session != b.Session || l.Batch != b.ID || len(l.Digest) != 16 || strings.HasPrefix(reply.Digest, l.Digest) || l.Provider != b.Provider || l.Accepted.IsZero() || l.Time.IsZero() || l.Writer == "" {
			f.t.Errorf("the line of call %d of %s says too little: %+v", l.Index, b.ID, l)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		f.t.Errorf("the audit lines of batch %s (-reply +line):\n%s", b.ID, diff)
	}
	return lines
}

// secret is in the arguments and results of calls. No audit line may contain it.
const secret = "canary-4711"

// Calls end in many ways. Each call has exactly one audit line, and no line holds the
// arguments or the result of its call.
func TestEveryCallHasItsLine(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		p := newPeople(t, "alice")
		f.addBankTools()
		object := func(promise schemas.Tool, run tool.Func) { f.tool(promise, run) }
		object(schemas.Tool{Name: "look", Kind: messages.KindRead, InputSchema: json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer"}}}`)},
			func(_ context.Context, c tool.Call) (tool.Output, error) { return tool.Text(secret), nil })
		object(schemas.Tool{Name: "secret", Kind: messages.KindWrite}, func(context.Context, tool.Call) (tool.Output, error) { return tool.Text("x"), nil })
		object(schemas.Tool{Name: "fails", Kind: messages.KindRead}, func(context.Context, tool.Call) (tool.Output, error) {
			return tool.Output{}, fmt.Errorf("it failed with %s", secret)
		})
		object(schemas.Tool{Name: "slow", Kind: messages.KindRead, TimeoutMS: 1000}, func(ctx context.Context, _ tool.Call) (tool.Output, error) { return waitForStop(ctx) })
		object(schemas.Tool{Name: "pay", Kind: messages.KindWrite, TimeoutMS: 1000}, func(ctx context.Context, _ tool.Call) (tool.Output, error) { return waitForStop(ctx) })
		object(schemas.Tool{Name: "forbidden", Kind: messages.KindWrite}, func(context.Context, tool.Call) (tool.Output, error) { return tool.Text("x"), nil })
		object(schemas.Tool{Name: "write", Kind: messages.KindWrite}, func(context.Context, tool.Call) (tool.Output, error) { return tool.Text("x"), nil })
		f.worker(p.worker(t, refunds+"deny:\n  - {tool: forbidden, name: never}\n"))
		cfg := p.coordinator()
		cfg.Audit.Include = []string{"look.shown", "refund.amount"}
		f.coordinator(cfg)
		argument := fmt.Sprintf(`{"n":1,"who":%q,"shown":"for all to see"}`, secret)

		seen := map[messages.Status]bool{}
		check := func(b messages.Batch, statuses string) []messages.AuditRecord {
			t.Helper()
			reply := f.reply(b, time.Hour)
			f.wantStatuses(reply, statuses)
			for _, r := range reply.Results {
				seen[r.Status] = true
			}
			return f.wantAuditLines(b, reply)
		}
		b := batchIn(messages.Anthropic, "s", "reads", call{"look", argument}, call{"look", `{"n":"` + secret + `"}`}, call{"fails", argument}, call{"slow", argument},
			call{"admin_override", argument}, call{"__proto__", argument}, call{"ECHO", argument}, call{"echo ", argument}, call{"Look", argument})
		b.Round = 3
		f.submit(b)
		lines := check(b, "ok validation_error error timeout unknown_tool unknown_tool unknown_tool unknown_tool unknown_tool")
		if l := lines[0]; l.Round != 3 || l.Kind != messages.KindRead || l.ToolDigest == "" || len(l.ArgsHash) != 16 || string(l.Arguments["shown"]) != `"for all to see"` || len(l.Arguments) != 1 || l.Started.IsZero() || l.PhasesMS.Validate*l.PhasesMS.Semantic*l.PhasesMS.PreHooks*l.PhasesMS.Permissions*l.PhasesMS.Execute*l.PhasesMS.PostHooks == 0 || len(l.ResultHash) != 16 {
			t.Errorf("the line of a call that ran says too little: %+v", l)
		}
		if lines[4].ArgsHash != lines[0].ArgsHash || lines[1].ArgsHash == lines[0].ArgsHash {
			t.Errorf("hashes %s, %s and %s of the same, other and the same arguments", lines[0].ArgsHash, lines[1].ArgsHash, lines[4].ArgsHash)
		}
		if plain := messages.Digest([]byte(argument)); strings.HasPrefix(plain, lines[0].ArgsHash) {
			t.Error("the hash is one that anybody can make")
		}

		b = canonical("s", "denied", call{"forbidden", argument}, refund("149.99"))
		f.submit(b)
		if _, err := f.sendDecision(p, "alice", f.question(b, 1), messages.VerdictDeny, nil); err != nil {
			t.Fatal(err)
		}
		lines = check(b, "denied denied")
		if p := lines[0].Permission; p == nil || p.Effect != "deny" || p.Rule != "never" {
			t.Errorf("who denied it: %+v", p)
		}
		if p := lines[1].Permission; p == nil || p.Effect != "deny" || len(p.By) != 1 || p.By[0] != "alice" || lines[1].Approval == "" {
			t.Errorf("who denied it: %+v", p)
		}

		b = canonical("s", "approved", refund("149.99"))
		f.submit(b)
		f.approve(p, "alice", f.question(b, 0))
		lines = check(b, "ok")
		if p := lines[0].Permission; p == nil || p.Effect != "ask" || len(p.By) != 1 || p.By[0] != "alice" || p.Rule != "refunds-over-50" || p.Policy == "" {
			t.Errorf("who allowed it: %+v", p)
		}

		b = canonical("s", "edited", refund("149.99"))
		f.submit(b)
		if _, err := f.sendDecision(p, "alice", f.question(b, 0), messages.VerdictEdit, func(d *messages.Decision) { d.Input = json.RawMessage(`{"order":"A-1001","amount":100}`) }); err != nil {
			t.Fatal(err)
		}
		before := lines[0]
		lines = check(b, "ok")
		if l := lines[0]; string(l.Arguments["amount"]) != "100" || string(before.Arguments["amount"]) != "149.99" || l.ArgsHash == before.ArgsHash || !l.Permission.Edited {
			t.Errorf("the audit line of arguments that a person changed: %+v", l)
		}

		b = canonical("s", "expired", refund("149.99"))
		f.submit(b)
		check(b, "expired")

		b = canonical("s", "unknown", call{"pay", argument}, call{"write", argument})
		f.submit(b)
		check(b, "outcome_unknown skipped")

		b = canonical("s", "aborted", call{"slow", argument}, call{"write", argument})
		f.submit(b)
		time.Sleep(100 * time.Millisecond) // simulated: the batch runs
		f.abort("s", "")
		check(b, "aborted aborted")

		refused := messages.Batch{V: messages.Version, ID: "refused", Session: "s", Provider: messages.Anthropic, Message: json.RawMessage(`{"role":"` + secret + `"}`)}
		f.submit(refused)
		f.awaitGone(refused)
		lines = f.auditLines(audit.Filter{Session: "s", Batch: "refused"})
		if len(lines) != 1 || lines[0].Type != messages.AuditBatchRefused || lines[0].Index != -1 || lines[0].Refusal.Class != messages.ClassMalformedMessage || lines[0].Refusal.Message != "" {
			t.Errorf("the audit lines of a refused batch: %+v", lines)
		}
		again := canonical("s", "approved", call{"look", `{"n":2}`}) // another body under a used id
		f.submit(again)
		f.awaitGone(again)
		if lines = f.auditLines(audit.Filter{Session: "s", Batch: "approved"}); len(lines) != 2 || lines[1].Refusal == nil || lines[1].Refusal.Class != messages.ClassBatchConflict {
			t.Errorf("the audit lines of a conflict: %+v", lines)
		}

		for _, status := range []messages.Status{messages.StatusOK, messages.StatusValidationError, messages.StatusDenied, messages.StatusUnknownTool, messages.StatusError,
			messages.StatusTimeout, messages.StatusSkipped, messages.StatusAborted, messages.StatusOutcomeUnknown, messages.StatusExpired} {
			if !seen[status] {
				t.Errorf("no call ended %s", status)
			}
		}
		all, err := f.conn.All(context.Background(), f.conn.Names().Stream(bus.Audit), ">")
		if err != nil {
			t.Fatal(err)
		}
		line, schemaErr := schemas.For("audit-record")
		several, err := schemas.For("audit-lines")
		if schemaErr != nil || err != nil {
			t.Fatal(schemaErr, err)
		}
		for _, m := range all {
			if bytes.Contains(m.Data, []byte(secret)) {
				t.Errorf("the audit log has the content of a call at %s: %s", m.Subject, m.Data)
			}
			schema := line
			if strings.HasSuffix(m.Subject, ".lines") || strings.HasSuffix(m.Subject, ".aside") || strings.HasSuffix(m.Subject, ".question") {
				schema = several
			}
			if err := schema.Validate(m.Data); err != nil {
				t.Errorf("%s: %v: %s", m.Subject, err, m.Data)
			}
		}
	})
}

// A worker and a coordinator can read the key of the audit hashes, and they make the same hash
// of a text. Other identities cannot read the key.
func TestReadersOfTheAuditKey(t *testing.T) {
	ids := natstest.NewIdentities(t)
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newIdentified(t, srv, ids)
		defer f.close()
		var s shelf
		s.tools(f.fleet)
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		f.run(canonical("s", "b", call{"wr", `{"k":"k","v":"1"}`}))
		hash := func(who string) (string, error) {
			conn := f.connect(who)
			defer conn.Close()
			log, err := audit.New(conn, audit.Config{})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			h, err := log.Hasher(ctx)
			return h.Of("_", messages.Digest(nil)), err
		}
		coordinators, err := hash("coordinator")
		workers, workersErr := hash("worker")
		if err != nil || workersErr != nil || coordinators == "" || coordinators != workers {
			t.Errorf("the coordinator's hash is %q (%v), the worker's %q (%v)", coordinators, err, workers, workersErr)
		}
		for _, who := range []string{"operator", "approver", "acme"} {
			f.guests.Store(who, true)
			if got, err := hash(who); err == nil {
				t.Errorf("%s reads the key and makes the hash %s", who, got)
			}
		}
		operator := f.connect("operator")
		defer operator.Close()
		log, err := audit.New(operator, audit.Config{})
		if err != nil {
			t.Fatal(err)
		}
		f.until("the operator reads the audit log", func() bool {
			lines := 0
			err := log.Read(context.Background(), audit.Filter{Session: "s"}, func(audit.Entry) bool { lines++; return true })
			return err == nil && lines == 1
		})
		if got := operatorReads(operator); got != "" {
			t.Errorf("the operator reads the key: %s", got)
		}
	}, natstest.Fast, ids.Option)
}

// The journal holds the plan of another body for a batch's id. The coordinator refuses the
// batch once each call has ended. The audit log says which call has run, and which call may
// have run.
func TestAuditLinesOfARefusedBatchThatHasRun(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		f.tool(schemas.Tool{Name: "look", Kind: messages.KindRead}, func(context.Context, tool.Call) (tool.Output, error) { return tool.Text("seen"), nil })
		f.tool(schemas.Tool{Name: "put", Kind: messages.KindWrite}, func(context.Context, tool.Call) (tool.Output, error) { return tool.Text("done"), nil })
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		b := canonical("s", "b", call{"look", `{"n":1}`}, call{"put", ""}, call{"put", ""})
		key, log := wire.KeyOf(messages.OneTenant, b.Session, b.ID), journal.New(f.conn)
		// The journal holds the plan of another body, and a claim that no worker ends.
		if _, err := log.WritePlan(context.Background(), key, wire.PlanRecord{V: 1, Nonce: "n", Digest: "of another"}, 0); err != nil {
			t.Fatal(err)
		}
		claim := wire.CallRecord{State: wire.Claimed, Nonce: "n", Attempt: 1, Worker: "w", LeaseMS: 10_000, ArgsHash: messages.Digest([]byte("{}")), ToolDigest: "d"}
		if _, err := log.Write(context.Background(), key.Call(2), claim, 0); err != nil {
			t.Fatal(err)
		}
		f.submit(b)
		f.awaitGone(b)
		lines := f.auditLines(audit.Filter{Session: "s"})
		got := ""
		for _, l := range lines {
			got += fmt.Sprintf("%s %d %s %s;", l.Type, l.Index, l.CallID, l.Status)
		}
		if want := "batch_refused -1  ;call 0 c0 ok;call 1 c1 error;call 2 c2 outcome_unknown;"; got != want {
			t.Fatalf("the audit log has %s, want %s", got, want)
		}
		if l := lines[1]; len(l.ArgsHash) != 16 || l.PhasesMS.Validate*l.PhasesMS.Semantic*l.PhasesMS.PreHooks*l.PhasesMS.Permissions*l.PhasesMS.Execute*l.PhasesMS.PostHooks == 0 || l.ToolDigest == "" || l.Worker == "" {
			t.Errorf("the line of the call that ran says too little: %+v", l)
		}
		if l := lines[3]; len(l.ArgsHash) != 16 || l.ToolDigest != "d" || l.Worker != "w" || l.Attempt != 1 {
			t.Errorf("the line of the call that may run says too little: %+v", l)
		}
	})
}

// operatorReads tries every way to read a message of the bucket that holds the audit key. It
// returns the first request that the server answers, with the answer.
func operatorReads(conn *bus.Conn) string {
	const stream = "KV_TOOLFLEET_keys"
	for _, ask := range [][2]string{
		{"$JS.API.DIRECT.GET." + stream, `{"last_by_subj":"$KV.TOOLFLEET_keys.audit"}`},
		{"$JS.API.DIRECT.GET." + stream + ".$KV.TOOLFLEET_keys.audit", ""},
		{"$JS.API.STREAM.MSG.GET." + stream, `{"last_by_subj":"$KV.TOOLFLEET_keys.audit"}`},
		{"$JS.API.CONSUMER.CREATE." + stream, `{"stream_name":"` + stream + `","config":{"deliver_policy":"all","ack_policy":"none"}}`},
		{"$JS.API.CONSUMER.CREATE." + stream + ".x", `{"stream_name":"` + stream + `","config":{"name":"x","deliver_policy":"all","ack_policy":"none"}}`},
		{"$JS.API.CONSUMER.DURABLE.CREATE." + stream + ".x", `{"stream_name":"` + stream + `","config":{"durable_name":"x","deliver_policy":"all","ack_policy":"none"}}`},
		{"$JS.API.STREAM.SNAPSHOT." + stream, `{"deliver_subject":"_INBOX.operator.x"}`},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		m, err := conn.Request(ctx, ask[0], nil, []byte(ask[1]))
		cancel()
		if err == nil {
			return ask[0] + ": " + string(m.Data)
		}
	}
	return ""
}

// A tool's error has a code, and a flag that says whether another attempt may help. The model
// and the audit log get both. An error that has only a text reaches the model as that text.
func TestTheFlagsOfAToolsError(t *testing.T) {
	t.Parallel()
	f := newFleet(t, natstest.Server(t, natstest.Fast))
	defer f.close()
	for name, failed := range map[string]*messages.Error{
		"plain": {Code: messages.CodeToolError, Message: "Sold out."},
		"later": {Code: messages.CodeToolError, Message: "Sold out.", Retryable: true},
		"coded": {Code: "no_stock", Message: "Sold out.", Retryable: true},
	} {
		f.tool(schemas.Tool{Name: name, Kind: messages.KindRead}, func(context.Context, tool.Call) (tool.Output, error) {
			return tool.Output{}, failed
		})
	}
	f.worker(worker.Config{})
	f.coordinator(coordinator.Config{})
	b := canonical("s", "b", call{"plain", `{}`}, call{"later", `{}`}, call{"coded", `{}`})
	b.Provider = messages.Anthropic
	b.Message = json.RawMessage(`{"role":"assistant","content":[
		{"type":"tool_use","id":"1","name":"plain","input":{}},{"type":"tool_use","id":"2","name":"later","input":{}},{"type":"tool_use","id":"3","name":"coded","input":{}}]}`)
	reply := f.run(b)
	var read struct {
		Content []struct {
			Content []struct{ Text string }
			IsError bool `json:"is_error"`
		}
	}
	if err := json.Unmarshal(reply.Reinjection, &read); err != nil || len(read.Content) != 3 {
		t.Fatalf("%v: %s", err, reply.Reinjection)
	}
	for i, want := range []string{
		"Sold out.", `{"error":"tool_error","message":"Sold out.","retryable":true}`, `{"error":"no_stock","message":"Sold out.","retryable":true}`,
	} {
		if got := read.Content[i]; len(got.Content) != 1 || got.Content[0].Text != want || !got.IsError {
			t.Errorf("the model reads %+v, want the error %s", got, want)
		}
	}
	for i, l := range f.wantAuditLines(b, reply) {
		if want := i > 0; l.Retryable != want {
			t.Errorf("the line of %s says retryable %t, want %t", l.Tool, l.Retryable, want)
		}
	}
}
