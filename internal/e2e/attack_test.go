package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/e2e/fleettest"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// acmeSecret is in the messages that acme's agent sends and receives. Other tenants must not
// see it.
const acmeSecret = "secret-of-acme"

// attackedFleet is a fleet under attack. The victim is an agent of the tenant acme: it has a
// batch that waits for an approval, a batch that has ended, and batches that run during the
// attack.
type attackedFleet struct {
	*identified
	t        *testing.T
	people   people
	ledger   *toolRecord
	operator *bus.Conn
	approver *client.Client
	open     messages.Batch // its refund waits for approval
	done     messages.Batch
}

func newAttackedFleet(t *testing.T) *attackedFleet {
	t.Helper()
	return newAttackedFleetAs(t, natstest.NewIdentities(t))
}

func newAttackedFleetAs(t *testing.T, ids *natstest.Identities) *attackedFleet {
	t.Helper()
	s := &attackedFleet{t: t, people: newPeople(t, "alice"), identified: newIdentified(t, natstest.Server(t, natstest.Fast, ids.Option), ids)}
	s.ledger = s.addBankTools()
	s.tool(schemas.Tool{Name: "note"}, func(_ context.Context, c tool.Call) (tool.Output, error) { return tool.Output{Value: c.Input}, nil })
	s.coordinator(s.people.coordinator())
	s.coordinator(s.people.coordinator())
	s.worker(s.people.worker(t, refunds))
	s.worker(s.people.worker(t, refunds))
	s.operator = s.connect("operator")
	people := s.connect("approver")
	t.Cleanup(func() { s.operator.Close(); people.Close() })
	s.approver = fleettest.AgentOver(people, natstest.Tenants[0])
	s.done = canonical("victim", "done", call{"note", `{"v":"` + acmeSecret + `"}`})
	s.run(s.done)
	s.open = canonical("victim", "open", call{"refund", `{"order":"` + acmeSecret + `","amount":149.99}`}, call{"note", `{"v":"` + acmeSecret + `"}`})
	s.submit(s.open)
	return s
}

func (s *attackedFleet) victim() wire.BatchKey {
	return wire.KeyOf(natstest.Tenants[0], s.open.Session, s.open.ID)
}

// openQuestion returns the open question as an approver sees it.
func (s *attackedFleet) openQuestion() (q messages.Approval) {
	s.t.Helper()
	s.until("the refund waits for a person", func() (asked bool) {
		var err error
		q, err = s.approver.Approval(s.t.Context(), s.open.Session, s.open.ID, 0)
		return err == nil
	})
	s.until("its job is settled, and the question is in the audit log", func() bool {
		jobs, err := s.operator.All(s.t.Context(), "TOOLFLEET_JOBS", ">")
		lines, err2 := s.operator.All(s.t.Context(), "TOOLFLEET_AUDIT", "toolfleet.audit.acme.victim.open.>")
		return err == nil && len(jobs) == 0 && err2 == nil && len(lines) == 1
	})
	return q
}

var (
	everyStream = []string{
		"TOOLFLEET_BATCHES", "TOOLFLEET_JOBS", "TOOLFLEET_CALLS", "TOOLFLEET_RESULTS", "TOOLFLEET_REPLIES", "TOOLFLEET_AUDIT", "TOOLFLEET_DEAD",
		"KV_TOOLFLEET_tools", "KV_TOOLFLEET_workers", "KV_TOOLFLEET_keys", "KV_TOOLFLEET_approvals", "OBJ_TOOLFLEET_OBJECTS",
	}
	verbInSource = regexp.MustCompile(`(?m)^\s+Verb\w+\s+Verb = "([a-z.]+)"`)
)

// victimData returns every message that the fleet has stored for the victim, and the
// configuration of every stream and of the tools.
func (s *attackedFleet) victimData() map[string]string {
	s.t.Helper()
	stored := map[string]string{}
	for _, stream := range everyStream {
		var info struct {
			Config json.RawMessage `json:"config"`
		}
		m, err := s.operator.Request(s.t.Context(), "$JS.API.STREAM.INFO."+stream, nil, nil)
		if err == nil {
			err = json.Unmarshal(m.Data, &info)
		}
		if err != nil {
			s.t.Fatal(err)
		}
		stored["config of "+stream] = string(info.Config)
		if stream == "KV_TOOLFLEET_keys" { // not even an operator may read this bucket
			continue
		}
		all, err := s.operator.All(s.t.Context(), stream, ">")
		if err != nil {
			s.t.Fatal(err)
		}
		for _, m := range all {
			if strings.Contains(m.Subject, ".acme.victim") || strings.HasPrefix(m.Subject, "$KV.TOOLFLEET_tools.") {
				stored[fmt.Sprint(m.Subject, " ", m.Seq)] = string(m.Data)
			}
		}
	}
	return stored
}

// everyVerb reads the verbs from the source of package wire, so that an attack tries new verbs
// too.
func everyVerb(t *testing.T) (verbs []wire.Verb) {
	t.Helper()
	source, err := os.ReadFile("../../internal/wire/subjects.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range verbInSource.FindAllStringSubmatch(string(source), -1) {
		verbs = append(verbs, wire.Verb(found[1]))
	}
	if len(verbs) < 24 {
		t.Fatalf("%d verbs in the source of package wire", len(verbs))
	}
	return verbs
}

// everySubject lists the subjects that concern the victim: those of every verb, stream and
// request of the fleet and of the NATS server. The tenant is written in each form: by its
// name, as _ (an agent's own tenant), as another tenant, and as wildcards.
func (s *attackedFleet) everySubject() (subjects []string) {
	s.t.Helper()
	verbs := everyVerb(s.t)
	var n wire.Names
	for _, tenant := range []string{"acme", "globex", "_", "*", ">"} {
		key := s.victim()
		key.Tenant = tenant
		for _, v := range verbs {
			subjects = append(subjects, n.Of(v, key), n.OfCall(v, key.Call(0)), n.OfSession(v, tenant, key.Session), n.OfTenant(v, tenant),
				n.All(v), n.EveryBatch(v), n.EveryCall(v), n.EverySession(v), n.OfSession(v, tenant, "*")+".*")
		}
		subjects = append(subjects, n.Lane(false, "default", key.Call(0)), n.Lane(true, "default", key.Call(0)), "toolfleet.batch."+tenant+".victim.new", "toolfleet.run."+tenant+".*.>")
	}
	subjects = append(subjects, n.Coordinators(), n.Dead(), "toolfleet.>", ">", "*.>", "_R_.>", "_R_.x", "_INBOX.>", "_INBOX.coordinator.x", "_INBOX.worker.>", "_INBOX.operator.>",
		"$SRV.PING", "$SRV.STATS.toolfleet", "$SYS.>", "$SYS.REQ.SERVER.PING.JSZ", "$SYS.REQ.ACCOUNT.PING.CONNZ", "$JS.>", "$JS.EVENT.ADVISORY.>", "$JS.API.INFO", "$JS.API.STREAM.NAMES", "$JS.FC.>",
		"$KV.TOOLFLEET_tools.refund", "$KV.TOOLFLEET_workers.w", "$KV.TOOLFLEET_keys.audit", "$KV.TOOLFLEET_approvals."+s.victim().Call(0).String(), "$O.TOOLFLEET_OBJECTS.M.x", "$O.TOOLFLEET_OBJECTS.C.>",
		"$JS.ACK.TOOLFLEET_BATCHES.coordinators.1.2.2.1.0", "$JS.ACK.TOOLFLEET_JOBS.default.1.1.1.1.0", "$JS.ACK.TOOLFLEET_JOBS.default.1.2.2.1.0")
	for _, stream := range everyStream {
		for _, verb := range []string{
			"STREAM.INFO.%s", "STREAM.CREATE.%s", "STREAM.UPDATE.%s", "STREAM.DELETE.%s", "STREAM.PURGE.%s", "STREAM.MSG.GET.%s", "STREAM.MSG.DELETE.%s", "STREAM.SNAPSHOT.%s",
			"STREAM.RESTORE.%s", "STREAM.LEADER.STEPDOWN.%s", "DIRECT.GET.%s", "DIRECT.GET.%s.>", "CONSUMER.CREATE.%s", "CONSUMER.CREATE.%s.spy", "CONSUMER.CREATE.%s.spy.>",
			"CONSUMER.DURABLE.CREATE.%s.spy", "CONSUMER.MSG.NEXT.%s.coordinators", "CONSUMER.MSG.NEXT.%s.default", "CONSUMER.DELETE.%s.coordinators", "CONSUMER.PAUSE.%s.coordinators", "CONSUMER.NAMES.%s",
		} {
			subjects = append(subjects, "$JS.API."+fmt.Sprintf(verb, stream))
		}
	}
	slices.Sort(subjects)
	return slices.Compact(subjects)
}

// attackHeaders are message headers that the NATS server acts on.
var attackHeaders = []map[string][]string{
	nil,
	{"Nats-Msg-Id": {"open"}, "Nats-Rollup": {"all"}, "Nats-TTL": {"1s"}},
	{"Nats-Trace-Dest": {"toolfleet.approval.decide.acme.victim.open.0"}, "Accept-Encoding": {"identity"}},
	{"Nats-Trace-Dest": {"toolfleet.final.acme.victim.open"}, "Nats-Trace-Only": {"true"}},
	{"Nats-Request-Info": {`{"acc":"FLEET","svc":"FLEET","user":"coordinator"}`}, "Nats-Expected-Last-Subject-Sequence": {"0"}},
	{"Nats-Expected-Last-Sequence": {"0"}, "Nats-Expected-Stream": {"TOOLFLEET_CALLS"}, "Nats-Expected-Last-Subject-Sequence-Subject": {"toolfleet.call.>"}},
	{"Nats-Schedule": {"@at 2020-01-01T00:00:00Z"}, "Nats-Schedule-Target": {"toolfleet.final.acme.victim.open"}, "Nats-Batch-Id": {"x"}, "Nats-Batch-Sequence": {"1"}, "Nats-Incr": {"1"}},
}

// bodies returns the messages of an attack: forged decisions, grants and replies, and requests
// to the server.
func (s *attackedFleet) bodies(q messages.Approval) [][]byte {
	mallory := newPeople(s.t, "alice") // a key of another person, under alice's name
	forged, err := mallory.keys["alice"].Sign(approval.Answer(q, messages.VerdictApprove, "alice"))
	if err != nil {
		s.t.Fatal(err)
	}
	q.Decisions = []messages.Decision{forged}
	granted := wire.CallRecord{V: messages.Version, State: wire.Granted, Nonce: "n", Approval: &q, ArgsHash: q.ArgsHash}
	reply := messages.Reply{V: messages.Version, Batch: s.open.ID, Session: s.open.Session, Provider: s.open.Provider, Status: messages.ReplyCompleted}
	abort := messages.Control{V: messages.Version, Abort: json.RawMessage("true")}
	spy := `{"stream_name":"TOOLFLEET_CALLS","config":{"durable_name":"spy","ack_policy":"none","deliver_subject":"toolfleet.reply._.x.y"}}`
	return [][]byte{
		rawjson.MustMarshal(forged), withoutSecret(rawjson.MustMarshal(granted)), rawjson.MustMarshal(reply), rawjson.MustMarshal(abort), withoutSecret(rawjson.MustMarshal(s.open)),
		[]byte(spy), []byte(`{"seq":1,"last_by_subj":"toolfleet.call.acme.victim.open.0","batch":1,"name":"TOOLFLEET_CALLS"}`), []byte("+ACK"), nil,
	}
}

// withoutSecret replaces the secret in a body that an intruder sends. So an intruder that
// receives the secret has it from the victim.
func withoutSecret(body []byte) []byte {
	return []byte(strings.ReplaceAll(string(body), acmeSecret, "guess"))
}

// attack publishes to every subject as the intruder, and subscribes to every subject. If own
// is set, the intruder is an agent of the victim's tenant. It then leaves out the subjects of
// the victim's session, which agents of that tenant may use.
func (s *attackedFleet) attack(in *natstest.Intruder, own bool, q messages.Approval) {
	subjects := s.everySubject()
	in.Subscribe(in.Inbox())
	for _, subject := range subjects {
		in.Subscribe(subject)
	}
	for i, body := range s.bodies(q) {
		for j, subject := range subjects {
			if own && allowedIn(subject, "victim") {
				continue
			}
			in.Publish(subject, in.Inbox(), nil, body)
			in.Publish(subject, in.Inbox(), attackHeaders[(i+j)%len(attackHeaders)], body)
		}
		in.Flush()
	}
	// Subjects that the intruder may publish, with reply subjects that it may not use.
	var n wire.Names
	for i, reply := range subjects {
		if strings.ContainsAny(reply, "*>") || strings.Contains(reply, "globex") {
			continue
		}
		session, header := fmt.Sprint("attacker", i%16), attackHeaders[i%len(attackHeaders)]
		key := wire.BatchKey{Tenant: messages.OneTenant, Session: session, Batch: fmt.Sprint("b", i)}
		batch := rawjson.MustMarshal(canonical(session, key.Batch))
		in.Publish(n.Of(wire.VerbBatch, key), reply, header, batch)
		in.Publish(n.Of(wire.VerbRun, key), reply, map[string][]string{messages.ProgressHeader: {"1"}}, batch)
		in.Publish(n.Of(wire.VerbGet, key), reply, header, []byte(`{"results":"full"}`))
		in.Publish(n.OfSession(wire.VerbControl, key.Tenant, session), reply, header, []byte(`{"v":1,"steer":"x"}`))
		in.Flush()
	}
}

// allowedIn reports whether a subject is about this session and may be published by an agent
// of the tenant.
func allowedIn(subject, session string) bool {
	for _, may := range []string{"toolfleet.batch._.*.*", "toolfleet.run._.*.*", "toolfleet.get._.*.*", "toolfleet.control._.*"} {
		if matches(may, subject) && strings.Contains(subject, "."+session) {
			return true
		}
	}
	return false
}

// An agent of another tenant and an agent of the victim's tenant try every subject, reply
// subject and header while the fleet works. Only the victim's own actions change its data,
// neither intruder sees its secret, and no call is approved.
func TestAnAgentTriesEverything(t *testing.T) {
	s := newAttackedFleet(t)
	defer s.close()
	q := s.openQuestion()
	before := s.victimData()
	foreign, own := s.ids.Intruder(s.srv, "globex"), s.ids.Intruder(s.srv, "acme")
	var group sync.WaitGroup
	working, rest := context.WithCancel(t.Context())
	group.Go(func() { s.work(working) })
	var attack sync.WaitGroup
	attack.Go(func() { s.attack(foreign, false, q) })
	attack.Go(func() { s.attack(own, true, q) })
	attack.Wait()
	rest()
	group.Wait()
	for left := math.MaxInt; left > 1; { // the victim's batch, which waits for approval, stays
		s.until("more batches of the attackers have ended", func() bool {
			open, err := s.operator.All(t.Context(), "TOOLFLEET_BATCHES", ">")
			if err != nil || len(open) >= left {
				return false
			}
			left = len(open)
			return true
		})
	}
	if foreign.Refused() == 0 || own.Refused() == 0 {
		t.Error("the server refused nothing to the attackers: the attack did not reach it")
	}

	if diff := cmp.Diff(before, s.victimData()); diff != "" {
		t.Errorf("the victim's data has changed:\n%s", diff)
	}
	for _, m := range foreign.Received() {
		if strings.Contains(string(m.Data), acmeSecret) {
			t.Errorf("globex received %s, by its subscription to %s: %.200s", m.Subject, m.Subscription, m.Data)
		}
	}
	for _, in := range []*natstest.Intruder{foreign, own} {
		_, hears := s.agentMay()
		for _, m := range in.Received() {
			if !slices.ContainsFunc(hears, func(p string) bool { return matches(p, m.Subject) }) {
				t.Errorf("an agent received %s, by its subscription to %s: %.200s", m.Subject, m.Subscription, m.Data)
			}
		}
	}
	if n := len(s.ledger.all()); n != 0 {
		t.Fatalf("refunded %d times, and nobody has approved it", n)
	}
	s.checkStillWorks(q)
}

func (s *attackedFleet) agentMay() (publish, subscribe []string) { return s.ids.May("acme") }

// work runs batches of the victim's tenant one after another, and checks that each ends
// normally.
func (s *attackedFleet) work(ctx context.Context) {
	for n := 0; ctx.Err() == nil || n < 3; n++ {
		reply := s.run(canonical("worker-bee", fmt.Sprint("b", n), call{"lookup", `{"n":1}`}, call{"note", `{"v":"` + acmeSecret + `"}`}, call{"lookup", `{"n":2}`}))
		s.wantStatuses(reply, "ok ok ok")
	}
}

// checkStillWorks checks that the coordinator refuses forged, unsigned and repeated decisions,
// that a genuine decision counts, and that the victim's batch ends normally.
func (s *attackedFleet) checkStillWorks(q messages.Approval) {
	s.t.Helper()
	decide := func(d messages.Decision) (messages.DecisionState, error) {
		ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
		defer cancel()
		answer, err := s.approver.Decide(ctx, d)
		return answer.State, err
	}
	answer := approval.Answer(q, messages.VerdictApprove, "alice")
	mallory := newPeople(s.t, "alice")
	forged, err := mallory.keys["alice"].Sign(answer)
	if err != nil {
		s.t.Fatal(err)
	}
	_, err = decide(forged)
	wantRefused(s.t, "signed with a key that nobody knows", err, messages.ClassBadSignature)
	unsigned := answer
	unsigned.Key, unsigned.Nonce = s.people.keys["alice"].Public(), "n"
	_, err = decide(unsigned)
	wantRefused(s.t, "unsigned", err, messages.ClassBadSignature)
	signed, err := s.people.keys["alice"].Sign(answer)
	if err != nil {
		s.t.Fatal(err)
	}
	if state, err := decide(signed); err != nil || state != messages.DecisionGranted {
		s.t.Fatalf("the true decision: %s, %v", state, err)
	}
	s.wantStatuses(s.reply(s.open, time.Minute), "ok ok")
	_, err = decide(signed)
	wantRefused(s.t, "the same decision again", err, messages.ClassNotPending)
	if n := len(s.ledger.all()); n != 1 {
		s.t.Errorf("refunded %d times", n)
	}
}

// The server lets each identity publish exactly the subjects of this table. docs/identities.md
// has the same table.
func TestWhoMaySayWhat(t *testing.T) {
	ids := natstest.NewIdentities(t)
	srv := natstest.Server(t, natstest.Fast, ids.Option)
	ear := ids.Intruder(srv, "operator")
	ear.Subscribe("toolfleet.>")
	ear.Flush()
	var n wire.Names
	agent := "batch control get run tools"
	for who, want := range map[string]string{
		"acme": agent, "globex": agent, "operator": agent,
		"approver":    "approval.decide approval.list approval.show",
		"http":        "approval.decide approval.list approval.show " + agent,
		"worker":      "audit call dead event hand notify queue result",
		"coordinator": "approval.news audit batch call ctl dead event final notify plan read refused reply result stop write",
	} {
		speaker := ids.Intruder(srv, who)
		for _, tenant := range []string{"_", "acme"} {
			key := wire.BatchKey{Tenant: tenant, Session: "s", Batch: who}
			for _, v := range everyVerb(t) {
				for _, subject := range []string{n.Of(v, key), n.OfCall(v, key.Call(0)), n.OfSession(v, tenant, "s"), n.OfTenant(v, tenant)} {
					speaker.Publish(subject, "", nil, []byte(who))
				}
			}
			for _, subject := range []string{n.Lane(false, "default", key.Call(0)), n.Lane(true, "default", key.Call(0)), n.Notify("c"), n.Dead()} {
				speaker.Publish(subject, "", nil, []byte(who))
			}
		}
		speaker.Flush()
		ear.Publish("toolfleet.batch.end.end."+who, "", nil, nil)
		heard := map[string]bool{}
		newWaiter(t).until("every publish has arrived", func() bool {
			for _, m := range ear.Received() {
				if m.Subject == "toolfleet.batch.end.end."+who {
					return true
				}
			}
			return false
		})
		for _, m := range ear.Received() {
			if string(m.Data) != who {
				continue
			}
			verb := strings.Split(strings.TrimPrefix(m.Subject, "toolfleet."), ".")
			if verb[0] == "approval" {
				verb[0] += "." + verb[1]
			}
			heard[verb[0]] = true
			if who == "globex" && !strings.Contains(m.Subject, ".globex") || who == "acme" && !strings.Contains(m.Subject, ".acme") {
				t.Errorf("%s speaks as another tenant: %s", who, m.Subject)
			}
		}
		if got := strings.Join(slices.Sorted(maps.Keys(heard)), " "); got != want {
			t.Errorf("%s may publish %q, want %q", who, got, want)
		}
	}
}

// newWaiter returns a fleet without daemons: a test uses only its method until.
func newWaiter(t *testing.T) *fleet { return &fleet{t: t} }
