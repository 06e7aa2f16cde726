package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// What a worker does about a call that a person has to allow: package pipeline's phase four and lane's park.go.

// policy is the rules that a worker was started with.
type policy struct {
	version string
	denies  string // the tool that it denies; "" none
}

// Policies is what the rules change to, one after another. All of them ask about the same tools.
var policies = []policy{{version: "p1"}, {version: "p2"}, {version: "p3", denies: "askonce"}, {version: "p4"}}

// asks is how many people have to allow a call of the tool.
func asks(tool string) int {
	switch tool {
	case "askonce", "askagain", "askread", "sternask":
		return 1
	case "askboth":
		return 2
	}
	return 0
}

// freeze gives the attempt its input. The hooks of this fleet make another one of it each time that they run.
func (a *attempt) freeze() {
	switch prior := a.record; {
	case a.last == 0 || prior.ArgsHash == "":
		a.input = json.RawMessage(fmt.Sprintf(`{"made":%q}`, a.nonce))
	case prior.Approval != nil && prior.Approval.Input != nil:
		a.input = prior.Approval.Input
	default:
		a.input = prior.Input
	}
	a.argsHash = hashOf(a.input)
}

func hashOf(input json.RawMessage) string {
	canonical, err := rawjson.Canonical(input)
	if err != nil {
		panic(err)
	}
	return messages.Digest(canonical)
}

// allowed reports whether the call may be claimed. If not it is parked or at its end.
func (a *attempt) allowed() bool {
	rules, people := a.worker.policy, asks(a.job.Tool)
	if rules.denies == a.job.Tool {
		a.endUnrun(messages.StatusDenied, messages.CodePolicyDenied)
		return false
	}
	if people == 0 {
		return true
	}
	void := a.void(people)
	var why *messages.Refusal
	switch {
	case void == nil:
		return true
	case errors.As(void, &why) && why.Class == messages.ClassApprovalExpired:
		a.endUnrun(messages.StatusExpired, messages.CodeApprovalExpired)
	case a.unsure(): // nobody can agree any more to what may have been done
		a.endUnrun(messages.StatusOutcomeUnknown, messages.CodeOutcomeUnknown)
	default:
		a.park(people)
	}
	return false
}

var errNotAsked = errors.New("nobody was asked about this")

// void is why what people have said does not let the call run; nil when it does.
func (a *attempt) void(people int) error {
	q := a.record.Approval
	if a.last == 0 || q == nil || q.ArgsHash != a.argsHash || q.Policy != a.worker.policy.version || len(q.Decisions) < people {
		return errNotAsked
	}
	return approvers.Holds(*q, a.Now)
}

// unsure reports whether an attempt before this one may have changed the world.
func (a *attempt) unsure() bool { return a.job.Kind == messages.KindWrite && a.record.Unsure() }

// endUnrun ends a call that this attempt has not run.
func (a *attempt) endUnrun(status messages.Status, code messages.Code) {
	if a.unsure() {
		status, code = messages.StatusOutcomeUnknown, messages.CodeOutcomeUnknown
	}
	a.finish(messages.Result{
		Index: a.key.Index, CallID: a.job.CallID, Tool: a.job.Tool, Attempt: a.record.Attempt, Status: status, Outcome: messages.Failed(code, "not run"),
	})
}

func (a *attempt) question(people int) messages.Approval {
	q := messages.Approval{
		V: messages.Version, Tenant: messages.OneTenant, Session: a.job.Session, Batch: a.job.Batch, Index: a.key.Index, CallID: a.job.CallID,
		Tool: a.job.Tool, Kind: a.job.Kind, ToolDigest: "d", Input: a.input, ArgsHash: a.argsHash, Requester: messages.OneTenant,
		Tier: messages.TierHigh, Approvers: people, Policy: a.worker.policy.version, Asked: a.Now, Expires: a.Now.Add(a.worker.fleet.shape.AskFor),
	}
	if people > 1 {
		q.Tier, q.Ticket = messages.TierCritical, true
	}
	if before := a.record.Approval; before != nil {
		q.Original = before.Original
	}
	q.ID = approval.ID(q)
	return q
}

// park puts the question into the journal and gives the job up.
func (a *attempt) park(people int) {
	q := a.question(people)
	record := wire.CallRecord{
		State: wire.Parked, Nonce: a.nonce + "-parked", Attempt: a.record.Attempt, Lapsed: a.record.Lapsed, Worker: a.name,
		ArgsHash: a.argsHash, Approval: &q,
	}
	_ = a.insist(func() error {
		seq, err := a.write(a.key, record, a.last, never)
		lost, other := err.(*lostTo)
		switch {
		case err == nil:
			a.ack()
			a.say(recorded(a.key.Index, entry{seq, record}))
		case other && lost.newest.record.State == wire.Ended:
			a.say(ended(a.key.Index, lost.newest))
			a.ack()
			return nil
		case other:
			a.say(recorded(a.key.Index, lost.newest))
			a.term()
			return nil
		}
		return err
	})
}

// The people of every fleet here. Keys are made once: they cost more than a history.
var (
	keys      = map[string]approval.Key{}
	approvers = func() approval.Approvers {
		var known []messages.Approver
		for _, name := range []string{"alice", "bob", "carol"} {
			key, err := approval.NewKey()
			if err != nil {
				panic(err)
			}
			keys[name] = key
			known = append(known, messages.Approver{Name: name, Key: key.Public()})
		}
		all, err := approval.NewApprovers(known)
		if err != nil {
			panic(err)
		}
		return all
	}()
)

// asked has everybody think about a question. Who thinks does not need the fleet for it.
func (f *Fleet) asked(key wire.CallKey, q messages.Approval) {
	for _, name := range rawjson.SortedKeys(keys) {
		f.people.spawn(name, func(t *task) { f.answer(t, name, key, q) })
	}
}

// answer is one person's: yes, no, something else, nothing, too late, or the same to two coordinators at once.
func (f *Fleet) answer(t *task, name string, key wire.CallKey, q messages.Approval) {
	verdict, wait := []messages.Verdict{messages.VerdictApprove, messages.VerdictApprove, messages.VerdictApprove, messages.VerdictEdit, messages.VerdictDeny}[f.rng.IntN(5)], 30*time.Second
	switch r := f.rng.IntN(10); {
	case f.shape.Prompt:
		verdict = messages.VerdictApprove
	case r < 5:
		return
	case r < 7:
		wait = f.shape.AskFor
	case r < 8:
		wait = 2 * f.shape.AskFor
	case r < 9: // together with the expiry
		wait = time.Second
		t.wait(q.Expires.Add(-wait/2), nil)
	}
	t.sleep(time.Duration(f.rng.Int64N(int64(wait))))
	d := approval.Answer(q, verdict, name)
	d.Ticket, d.At = "T-1", t.Now
	if verdict == messages.VerdictEdit {
		d.Input = json.RawMessage(fmt.Sprintf(`{"edited":%q}`, t.nonce()))
	}
	d, err := keys[name].Sign(d)
	if err != nil {
		panic(err)
	}
	f.ledger.said(key, d)
	if f.rng.IntN(4) == 0 {
		f.people.spawn(name+" again", func(t *task) { f.decide(t, key, q, d) })
	}
	f.decide(t, key, q, d)
}

// decide sends a decision until somebody answers.
func (f *Fleet) decide(t *task, key wire.CallKey, q messages.Approval, d messages.Decision) {
	for range 5 {
		answer, ok := f.request(t, decision{key, d})
		if !ok || answer.(messages.DecisionAnswer).Error != nil && answer.(messages.DecisionAnswer).Error.Class == messages.ClassBusy {
			continue
		}
		f.ledger.told(key, q, d, answer.(messages.DecisionAnswer))
		return
	}
}

// request asks one coordinator for something, over core messages. Without an answer nobody knows.
func (f *Fleet) request(t *task, what any) (answer any, ok bool) {
	inbox := "inbox." + t.nonce()
	t.Subscribe(inbox)
	defer t.Unsubscribe(inbox)
	var doors []string
	for _, p := range f.processes {
		if _, open := f.inboxes["doors."+p.name]; open {
			doors = append(doors, "doors."+p.name)
		}
	}
	if len(doors) > 0 {
		door := doors[f.rng.IntN(len(doors))]
		t.tell("request", door, func() { t.Publish(door, request{inbox, what}) })
	}
	t.wait(t.Now.Add(callTimeout), func() bool { return len(t.inboxes[inbox]) > 0 })
	return t.Hear(inbox)
}

// startReform changes the policy once, and starts the workers again, one after another.
func (f *Fleet) startReform() {
	p := f.start("r", nil)
	p.spawn("reform", func(t *task) {
		t.sleep(time.Duration(f.rng.Int64N(int64(f.shape.AskFor))))
		f.policy = policies[1+f.rng.IntN(len(policies)-1)]
		t.logf(t.name, "POLICY", "%s", f.policy.version)
		f.tally["policies"]++
		for f.anyBehind() != nil {
			f.anyBehind().doomed = true
			t.sleep(time.Duration(1+f.rng.IntN(5000)) * time.Millisecond)
		}
	})
}

// anyBehind is a worker that has an old policy.
func (f *Fleet) anyBehind() *process {
	for _, w := range f.workers {
		if w.policy != f.policy && !w.doomed && f.alive(w.process) {
			return w.process
		}
	}
	return nil
}
