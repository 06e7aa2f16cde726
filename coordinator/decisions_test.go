package coordinator

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

func edit(input string) func(*messages.Decision) {
	return func(d *messages.Decision) { d.Input = []byte(input) }
}

func ticket(d *messages.Decision) { d.Ticket = "OPS-7" }

// asked starts a coordinator, a worker, and a batch with one call that needs an approval.
func (o *office) asked() (wire.CallKey, messages.Approval) {
	o.t.Helper()
	c, _ := o.coordinator(Config{})
	o.worker()
	key := o.submit("s", "b", 1).Call(0)
	return key, o.rests(key, c)
}

// A decision is refused: it changes nothing, and its audit line has no arguments.
func TestDecisionsThatAreRefused(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		key, q := o.asked()
		other := q
		other.ArgsHash = messages.Digest([]byte("others"))
		forged := func(d *messages.Decision) { d.By = "bob" }
		change := func(body []byte, from, to string) []byte {
			if !strings.Contains(string(body), from) {
				t.Fatalf("no %s in %s", from, body)
			}
			return []byte(strings.Replace(string(body), from, to, 1))
		}
		approve := o.decision(q, messages.VerdictApprove, "alice")
		for _, tt := range []struct {
			what string
			body []byte
			want messages.Class
		}{
			{"no JSON", []byte("{"), messages.ClassInvalidDecision},
			{"a key twice", []byte(`{"v":1,"v":1}`), messages.ClassInvalidDecision},
			{"of another call", change(approve, `"index":0`, `"index":1`), messages.ClassSubjectMismatch},
			{"a field of a megabyte", change(approve, `"policy":"p1"`, `"policy":"`+strings.Repeat("x", 900_000)+`"`), messages.ClassInvalidDecision},
			{"a reason of a megabyte", o.decision(q, messages.VerdictApprove, "alice", func(d *messages.Decision) { d.Reason = strings.Repeat("x", 900_000) }), messages.ClassInvalidDecision},
			{"another's name", o.decision(q, messages.VerdictApprove, "alice", forged), messages.ClassBadSignature},
			{"changed after it was signed", change(approve, `"verdict":"approve"`, `"verdict":"deny"`), messages.ClassBadSignature},
			{"other arguments", o.decision(other, messages.VerdictApprove, "alice"), messages.ClassApprovalMismatch},
			{"one's own call", o.decision(q, messages.VerdictApprove, "agent"), messages.ClassSelfApproval},
			{"an edit that is no input", o.decision(q, messages.VerdictEdit, "alice", edit(`{"amount":"much"}`)), messages.ClassInvalidDecision},
			{"an edit that changes nothing", o.decision(q, messages.VerdictEdit, "alice", edit(string(q.Input))), messages.ClassInvalidDecision},
		} {
			answer := o.decide(key, tt.body)
			if answer.OK || answer.Error == nil || answer.Error.Class != tt.want || len(answer.Error.Message) > 1000 {
				t.Errorf("%s: answered %+v, %+v; want %s", tt.what, answer, answer.Error, tt.want)
			}
			if strings.Contains(fmt.Sprint(answer.Error), "149.99") {
				t.Errorf("%s: an argument in %v", tt.what, answer.Error)
			}
		}
		nobody, err := o.conn.Request(t.Context(), o.names.OfCall(wire.VerbDecide, key.BatchKey.Call(7)), nil, []byte(strings.Replace(string(approve), `"index":0`, `"index":7`, 1)))
		o.must(err)
		if nobody.Header.Get(bus.ServiceErrorCodeHeader) != "409" {
			t.Errorf("about a call that asks nothing: %v %s", nobody.Header, nobody.Data)
		}
		types, lines := o.audited()
		if len(types) != 1+11+1 {
			t.Errorf("audited %v", types)
		}
		for _, line := range lines {
			if text := string(rawjson.MustMarshal(line)); strings.Contains(text, "149.99") || strings.Contains(text, `"much"`) || len(text) > 8<<10 {
				t.Errorf("a line with arguments, or of %d bytes: %.300s", len(text), text)
			}
		}
		if still := o.rests(key); o.runs.Load() != 0 || len(still.Decisions) != 0 {
			t.Errorf("ran %d times, decisions %+v", o.runs.Load(), still.Decisions)
		}
		// The decision grants the call, and then the same decision is sent again.
		if answer := o.decide(key, approve); answer.State != messages.DecisionGranted {
			t.Errorf("answered %+v, %+v", answer, answer.Error)
		}
		o.reply(key.BatchKey, soon)
		if again := o.decide(key, approve); again.OK || again.Error.Class != messages.ClassNotPending || !strings.Contains(again.Error.Message, "alice") && !strings.Contains(again.Error.Message, "ended") {
			t.Errorf("a replayed decision was answered %+v", again.Error)
		}
		if o.runs.Load() != 1 {
			t.Errorf("ran %d times", o.runs.Load())
		}
	})
}

func TestADenialIsWhatTheModelReads(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		key, q := o.asked()
		why := func(d *messages.Decision) { d.Reason = "Ask the customer for the receipt first." }
		if answer := o.decide(key, o.decision(q, messages.VerdictDeny, "bob", why)); answer.State != messages.DecisionDenied {
			t.Fatalf("answered %+v", answer)
		}
		r := o.reply(key.BatchKey, soon).Results[0]
		if r.Status != messages.StatusDenied || r.Err.Code != messages.CodeDeniedByUser || r.Err.Retryable || r.Err.Message != "Denied by bob: Ask the customer for the receipt first." {
			t.Errorf("ended %+v, %+v", r, r.Err)
		}
		if p := r.Permission; p == nil || p.Effect != "deny" || p.Source != "person" || fmt.Sprint(p.By) != "[bob]" || p.Approval != q.ID {
			t.Errorf("permission %+v", p)
		}
		types, lines := o.audited()
		if fmt.Sprint(types) != "[approval_asked approval_decided]" || lines[1].Decision.By != "bob" || lines[1].Decision.ArgsHash != q.ArgsHash || len(lines[1].ArgsHash) != 16 || lines[1].ArgsHash != lines[0].ArgsHash {
			t.Errorf("audited %v, %+v", types, lines)
		}
	})
}

func TestAnEditRunsWithItsArguments(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		key, q := o.asked()
		if answer := o.decide(key, o.decision(q, messages.VerdictEdit, "alice", edit(`{"amount":10}`))); answer.State != messages.DecisionGranted {
			t.Fatalf("answered %+v, %+v", answer, answer.Error)
		}
		reply := o.reply(key.BatchKey, soon)
		if !strings.Contains(string(reply.Reinjection), `{\"amount\":10}`) && !strings.Contains(string(reply.Reinjection), `{"amount":10}`) {
			t.Errorf("ran with other arguments: %s", reply.Reinjection)
		}
		_, lines := o.audited()
		if last := lines[len(lines)-1]; last.Original != lines[0].ArgsHash || last.ArgsHash == lines[0].ArgsHash || !last.Permission.Edited || last.Decision.Input != nil {
			t.Errorf("audited %+v", last)
		}
	})
}

// A critical call needs two people and a ticket. The first person approves and the second one
// edits, so the first person has to approve again.
func TestTwoHaveToAgreeToWhatIsCritical(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		o.ask = func(q *messages.Approval) { q.Tier, q.Approvers, q.Ticket = messages.TierCritical, 2, true }
		key, q := o.asked()
		take := func(body []byte, state messages.DecisionState, class messages.Class) {
			t.Helper()
			answer := o.decide(key, body)
			if answer.State != state || (answer.Error == nil) != (class == "") || answer.Error != nil && answer.Error.Class != class {
				t.Fatalf("answered %+v, %+v; want %s %s", answer, answer.Error, state, class)
			}
		}
		take(o.decision(q, messages.VerdictApprove, "alice"), messages.DecisionWaiting, "")
		take(o.decision(q, messages.VerdictApprove, "alice", ticket), "", messages.ClassSameApprover)
		take(o.decision(q, messages.VerdictApprove, "bob"), "", messages.ClassTicketMissing)
		o.until("the list says who has agreed", soon, func() bool { return fmt.Sprint(o.pending()[0].Agreed) == "[alice]" })
		time.Sleep(6 * time.Minute)
		take(o.decision(q, messages.VerdictEdit, "bob", edit(`{"amount":10}`), ticket), messages.DecisionWaiting, "")
		if o.runs.Load() != 0 {
			t.Fatal("ran before two had agreed")
		}
		take(o.decision(q, messages.VerdictApprove, "alice", ticket), "", messages.ClassApprovalMismatch)
		now := o.rests(key)
		take(o.decision(now, messages.VerdictApprove, "alice"), messages.DecisionGranted, "")
		r := o.reply(key.BatchKey, soon).Results[0]
		if r.Status != messages.StatusOK || o.runs.Load() != 1 {
			t.Errorf("ran %d times: %+v", o.runs.Load(), r)
		}
		types, _ := o.audited()
		if want := "[approval_asked approval_decided decision_refused decision_refused approval_decided decision_refused approval_decided]"; fmt.Sprint(types) != want {
			t.Errorf("audited %v", types)
		}
	})
}

// Several coordinators get decisions at the same moment: one decision counts. The sender of a
// late decision learns whose decision counted.
func TestTheFirstDecisionCounts(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		for range 3 {
			o.coordinator(Config{})
		}
		o.worker()
		for round := range 5 {
			key := o.submit("s", fmt.Sprint("b", round), 1).Call(0)
			q := o.rests(key)
			bodies := [][]byte{
				o.decision(q, messages.VerdictApprove, "alice"), o.decision(q, messages.VerdictDeny, "bob"), o.decision(q, messages.VerdictApprove, "bob"),
				o.decision(q, messages.VerdictEdit, "alice", edit(`{"amount":1}`)), o.decision(q, messages.VerdictApprove, "alice"),
			}
			var deciding sync.WaitGroup
			answers := make([]messages.DecisionAnswer, len(bodies))
			for i, body := range bodies {
				deciding.Go(func() { answers[i] = o.decide(key, body) })
			}
			deciding.Wait()
			taken := ""
			for _, a := range answers {
				if a.OK {
					taken += string(a.State)
				} else if a.Error.Class != messages.ClassNotPending || !strings.Contains(a.Error.Message, "by alice") && !strings.Contains(a.Error.Message, "by bob") && !strings.Contains(a.Error.Message, "ended") {
					t.Errorf("who came too late was answered %+v", a.Error)
				}
			}
			before := o.runs.Load()
			r := o.reply(key.BatchKey, soon).Results[0]
			if want := map[string]messages.Status{"granted": messages.StatusOK, "denied": messages.StatusDenied}[taken]; want == "" || r.Status != want {
				t.Errorf("taken: %q; the call ended %s", taken, r.Status)
			}
			if ran := o.runs.Load(); ran-before > 1 || int(ran) > round+1 {
				t.Errorf("ran %d times in %d rounds", ran, round+1)
			}
		}
	})
}

func TestShowAndList(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		key, q := o.asked()
		show := func(key wire.CallKey) (answer messages.ApprovalAnswer) {
			m, err := o.conn.Request(t.Context(), o.names.OfCall(wire.VerbShow, key), nil, nil)
			o.must(err)
			o.must(json.Unmarshal(m.Data, &answer))
			return answer
		}
		if a := show(key); a.Approval == nil || a.Approval.ID != q.ID || string(a.Approval.Input) != `{"amount":149.99}` {
			t.Errorf("shown: %+v", a)
		}
		if a := show(key.BatchKey.Call(3)); a.Error == nil || a.Error.Class != messages.ClassNotPending {
			t.Errorf("shown of a call that asks nothing: %+v", a)
		}
		if got := o.pending(); len(got) != 1 || got[0].Line != approval.Line("refund", q.Input) {
			t.Errorf("listed: %+v", got)
		}
		m, err := o.conn.Request(t.Context(), o.names.OfTenant(wire.VerbList, "elsewhere"), nil, nil)
		o.must(err)
		if string(m.Data) != `{"v":1,"pending":[]}` {
			t.Errorf("listed for another tenant: %s", m.Data)
		}
		o.decide(key, o.decision(q, messages.VerdictDeny, "bob"))
		if a := show(key); a.Error == nil || a.Error.Message != "The question was answered: denied by bob." {
			t.Errorf("shown afterwards: %+v", a.Error)
		}
	})
}

// There are more open questions than the server returns at once: the list has all of them, and
// none that has expired.
func TestALongList(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		const open = 1500
		now := time.Now()
		for i := range open + 1 {
			q := messages.Approval{ID: fmt.Sprint(i), Asked: now.Add(-time.Duration(i) * time.Second), Expires: now.Add(time.Hour)}
			if i == open {
				q.Expires = now
			}
			key := wire.BatchKey{Tenant: messages.OneTenant, Session: "s", Batch: fmt.Sprint(i)}.Call(0)
			for again := range 2 {
				if fresh, err := o.journal.Ask(t.Context(), key, q); err != nil || fresh != (again == 0) {
					t.Fatalf("question %d, asked %d times before: new %v, %v", i, again, fresh, err)
				}
			}
		}
		got, err := o.journal.Pending(t.Context(), messages.OneTenant)
		if err != nil || len(got) != open || got[0].ID != fmt.Sprint(open-1) {
			t.Errorf("%d are listed, %v", len(got), err)
		}
		key := wire.BatchKey{Tenant: messages.OneTenant, Session: "s", Batch: "7"}.Call(0)
		for again := range 2 {
			if was, found, err := o.journal.Forget(t.Context(), key); err != nil || found != (again == 0) || found && was.ID != "7" {
				t.Errorf("forgotten %d times before: %v %v %v", again, was, found, err)
			}
		}
		if fresh, err := o.journal.Ask(t.Context(), key, messages.Approval{ID: "7", Expires: now.Add(time.Hour)}); err != nil || !fresh {
			t.Errorf("asked once more: new %v, %v", fresh, err)
		}
	})
}

// refusalBurst is how many refused decisions package approvals writes to the log at once.
const refusalBurst = 100

// A flood of forged decisions comes: the audit log and the process's log get only a bounded
// number of lines.
func TestAFloodOfForgeriesIsNotAllWrittenDown(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		key, q := o.asked()
		forged := o.decision(q, messages.VerdictApprove, "alice", func(d *messages.Decision) { d.By = "bob" })
		for range 500 {
			o.decide(key, forged)
		}
		if o.decide(key, o.decision(q, messages.VerdictApprove, "agent")); o.runs.Load() != 0 {
			t.Error("ran")
		}
		types, lines := o.audited()
		if len(types) > refusalBurst+30 || len(types) < refusalBurst {
			t.Errorf("%d lines", len(types))
		}
		if last := lines[len(lines)-1]; last.Refusal == nil || last.Refusal.Class != messages.ClassSelfApproval {
			t.Errorf("somebody whose key counts was not written down: %+v", last)
		}
	})
}

func TestWithoutApproversNobodyDecides(t *testing.T) {
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		all := o.list
		o.list = approval.Approvers{}
		c, _ := o.coordinator(Config{})
		o.list = all
		o.worker()
		key := o.submit("s", "b", 1).Call(0)
		q := o.rests(key, c)
		if a := o.decide(key, o.decision(q, messages.VerdictApprove, "alice")); a.OK || a.Error.Class != messages.ClassBadSignature || !strings.Contains(a.Error.Message, "without approvers") {
			t.Errorf("answered %+v", a.Error)
		}
	})
}
