package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/natstest"
)

// outsiders are the identities outside of the fleet's own account. The server replaces the
// reply subjects of their requests.
var outsiders = append([]string{"worker", "approver"}, natstest.Tenants...)

// Each identity outside of the fleet's account uses each of its rights with every hostile
// reply subject. In the fleet's account, nothing arrives on a subject that the identity may
// not publish. Nothing is deleted, purged or reconfigured.
func TestNoReplySubjectReachesTheFleet(t *testing.T) {
	ids := natstest.NewIdentities(t)
	ids.Witness()
	s := newAttackedFleetAs(t, ids)
	defer s.close()
	q := s.openQuestion()
	before := s.victimData()
	witness := s.ids.Intruder(s.srv, "witness")
	for _, subject := range hostileSubjects() {
		witness.Subscribe(subject)
	}
	witness.Flush()
	for _, who := range outsiders {
		s.tryReplySubjects(s.ids.Intruder(s.srv, who), who)
	}
	after := s.victimData() // answered after the requests of the intruders
	for thing, was := range before {
		if after[thing] != was {
			t.Errorf("%s was\n%s\nand is\n%s", thing, was, after[thing])
		}
	}
	witness.Subscribe("end")
	witness.Publish("end", "", nil, nil)
	s.until("the witness has all messages", func() bool {
		return slices.ContainsFunc(witness.Received(), func(m natstest.Intercepted) bool { return m.Subject == "end" })
	})
	for _, m := range witness.Received() {
		if m.Subject != "end" {
			t.Errorf("a message has reached %s: %.200q", m.Subject, m.Data)
		}
	}
	s.checkStillWorks(q)
}

// An HTTP server is in the fleet's account. So the acknowledgement of its batch goes to any
// subject that it names. This shows that TestNoReplySubjectReachesTheFleet would notice such a
// message.
func TestAnHTTPServerIsInsideTheFleet(t *testing.T) {
	ids := natstest.NewIdentities(t)
	ids.Witness()
	s := newAttackedFleetAs(t, ids)
	defer s.close()
	witness, in := s.ids.Intruder(s.srv, "witness"), s.ids.Intruder(s.srv, "http")
	witness.Subscribe("toolfleet.plan.>")
	witness.Flush()
	in.Publish("toolfleet.batch.acme.http.b", "toolfleet.plan.acme.http.other", nil, []byte(`{}`))
	in.Flush()
	s.until("the acknowledgement arrives", func() bool {
		return slices.ContainsFunc(witness.Received(), func(m natstest.Intercepted) bool { return m.Subject == "toolfleet.plan.acme.http.other" })
	})
}

// hostileSubjects returns subjects of the fleet's account that no identity outside of it may
// publish. The fleet itself publishes none of them during the test.
func hostileSubjects() (subjects []string) {
	for _, stream := range everyStream {
		subjects = append(subjects, "$JS.API.STREAM.PURGE."+stream, "$JS.API.STREAM.DELETE."+stream)
	}
	return append(subjects, "$JS.API.STREAM.CREATE.SPY", "$JS.API.STREAM.UPDATE.TOOLFLEET_CALLS", "$JS.API.STREAM.MSG.DELETE.TOOLFLEET_CALLS", "$JS.API.CONSUMER.DELETE.TOOLFLEET_BATCHES.coordinators", "$JS.API.CONSUMER.PAUSE.TOOLFLEET_BATCHES.coordinators",
		"$JS.API.CONSUMER.CREATE.TOOLFLEET_JOBS.spy", "toolfleet.plan.acme.victim.open", "toolfleet.final.acme.victim.open", "toolfleet.ctl.acme.victim",
		"toolfleet.audit.acme.victim.ended.1.lines", "toolfleet.audit.acme.victim.open.refused.aside", "toolfleet.write.default.acme.victim.open.9", "toolfleet.read.default.acme.victim.open.9",
		"toolfleet.reply.acme.victim.open", "toolfleet.refused.acme.victim.open", "toolfleet.stop.acme.victim.open.9", "toolfleet.batch.acme.victim.forged",
		"toolfleet.approval.decide.acme.victim.reply.7", "toolfleet.approval.news.acme.victim.open.7", "$KV.TOOLFLEET_keys.audit", "$KV.TOOLFLEET_approvals.x",
		"_INBOX.coordinator.x", "_INBOX.operator.x")
}

// tryReplySubjects publishes on each right of an identity, with every hostile reply subject.
// Requests for a record ask for a record that the intruder itself has made.
func (s *attackedFleet) tryReplySubjects(in *natstest.Intruder, who string) {
	s.t.Helper()
	rights, _ := s.ids.May(who)
	in.Publish("toolfleet.call.acme.intruder.b.0", "", nil, []byte(`{}`)) // the requests below ask for it
	for i, right := range rights {
		subject, body := subjectFor(right, i), bodyFor(right)
		for j, reply := range hostileSubjects() {
			if slices.ContainsFunc(rights, func(p string) bool { return matches(p, reply) }) {
				continue // the identity may publish this subject anyway
			}
			in.Publish(subject, reply, nil, body)
			if (i+j)%4 == 0 && !strings.HasPrefix(right, "$KV.") { // could remove the workers
				in.Publish(subject, reply, attackHeaders[(i+j)/4%len(attackHeaders)], body)
			}
		}
		in.Flush()
	}
}

// bodyFor returns the body of a request on a subject that right allows. An attacker may want
// to send the server's answer to another subject.
func bodyFor(right string) []byte {
	switch {
	case strings.Contains(right, ".GET."):
		return []byte(`{"last_by_subj":"toolfleet.call.acme.intruder.b.0"}`)
	case strings.Contains(right, ".MSG.NEXT."):
		return []byte(`{"batch":1,"no_wait":true}`)
	case strings.HasPrefix(right, "$JS.ACK."):
		return []byte(`+NXT`)
	case strings.HasPrefix(right, "toolfleet.queue."):
		return []byte(`{"v":1,"ack_wait_ms":1000}`)
	}
	return []byte(`{}`)
}

// subjectFor returns a subject that right allows and that touches neither the victim nor the
// tools.
func subjectFor(right string, n int) string {
	names := []string{"acme", "intruder", fmt.Sprint("b", n), "0", "x"}
	tokens := strings.Split(right, ".")
	for i, token := range tokens {
		switch {
		case strings.Contains(right, "_JOBS.") && token == "*":
			tokens[i] = "default"
		case strings.HasPrefix(right, "$JS.ACK.") && token == ">":
			tokens[i] = "default.1.1.1.1.0"
		case strings.HasPrefix(right, "$JS.API.STREAM.INFO.") && token == "*":
			tokens[i] = "TOOLFLEET_AUDIT"
		case token == "*":
			tokens[i], names = names[0], names[1:]
		case token == ">":
			tokens[i] = strings.Join(names[:4], ".")
		}
	}
	return strings.Join(tokens, ".")
}
