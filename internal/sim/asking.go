package sim

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/sim/staff"
	"github.com/toolfleet/toolfleet/internal/sim/world"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// This file simulates the people who are asked about calls, and their answers.

// policy is the set of rules with which a worker was started.
type policy struct {
	version string
	denies  string // the tool that it denies; "": none
}

// policies are the policies of a run, in the order in which the workers get them. Each policy
// asks people about the same tools.
var policies = []policy{{version: "p1"}, {version: "p2"}, {version: "p3", denies: "askonce"}, {version: "p4", denies: "askagain"}}

// keys has the key of each person, by name. The keys are made once for all runs, because
// making a key takes longer than running a history.
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

// Asked makes each person decide about a question at some time.
func (f *Fleet) Asked(key wire.CallKey, q messages.Approval) {
	for _, name := range rawjson.SortedKeys(keys) {
		f.people.Spawn(name, func(t *world.Task) { f.answer(t, name, key, q) })
	}
}

// answer sends one person's answer. The person may approve, edit, deny, answer too late,
// answer two coordinators at once, or not answer at all.
func (f *Fleet) answer(t *world.Task, name string, key wire.CallKey, q messages.Approval) {
	verdict, wait := []messages.Verdict{messages.VerdictApprove, messages.VerdictApprove, messages.VerdictApprove, messages.VerdictEdit, messages.VerdictDeny}[f.Rng.IntN(5)], 30*time.Second
	switch r := f.Rng.IntN(10); {
	case f.shape.Prompt:
		verdict = messages.VerdictApprove
	case r < 5:
		return
	case r < 7:
		wait = f.shape.AskFor
	case r < 8:
		wait = 2 * f.shape.AskFor
	case r < 9: // at about the time at which the question expires
		wait = time.Second
		t.Wait(q.Expires.Add(-wait/2), nil)
	}
	t.Sleep(time.Duration(f.Rng.Int64N(int64(wait))))
	d := approval.Answer(q, verdict, name)
	d.Ticket, d.At = "T-1", t.Now
	if verdict == messages.VerdictEdit {
		d.Input = json.RawMessage(fmt.Sprintf(`{"edited":%q}`, t.Nonce()))
	}
	d, err := keys[name].Sign(d)
	if err != nil {
		panic(err)
	}
	f.judge.Said(key, d)
	if f.Rng.IntN(4) == 0 {
		f.people.Spawn(name+" again", func(t *world.Task) { f.decide(t, key, q, d) })
	}
	f.decide(t, key, q, d)
}

// decide sends a decision until a coordinator answers, at most five times.
func (f *Fleet) decide(t *world.Task, key wire.CallKey, q messages.Approval, d messages.Decision) {
	for range 5 {
		answer, ok := f.request(t, decision{key, d})
		if !ok || answer.(messages.DecisionAnswer).Error != nil && answer.(messages.DecisionAnswer).Error.Class == messages.ClassBusy {
			continue
		}
		f.judge.Told(key, q, d, answer.(messages.DecisionAnswer))
		return
	}
}

// request sends a request to one coordinator as a core message. ok is false if no answer came.
// Then the coordinator may or may not have carried the request out.
func (f *Fleet) request(t *world.Task, what any) (answer any, ok bool) {
	inbox := "inbox." + t.Nonce()
	t.Subscribe(inbox)
	defer t.Unsubscribe(inbox)
	var doors []string
	for _, p := range f.Processes {
		if _, open := f.Heard("doors." + p.Name); open {
			doors = append(doors, "doors."+p.Name)
		}
	}
	if len(doors) > 0 {
		door := doors[f.Rng.IntN(len(doors))]
		t.Tell("request", door, func() { t.Publish(door, request{inbox, what}) })
	}
	t.Wait(t.Now.Add(world.CallTimeout), func() bool { n, _ := t.Heard(inbox); return n > 0 })
	return t.Hear(inbox)
}

// startReform starts a process that changes the policy or the version of the tools once. The
// process then restarts the workers one after another.
func (f *Fleet) startReform() {
	p := f.Start("r", nil)
	p.Spawn("reform", func(t *world.Task) {
		within := f.shape.AskFor
		if f.Rng.IntN(2) == 0 { // a time when many calls run
			within = 20 * time.Second
		}
		t.Sleep(time.Duration(f.Rng.Int64N(int64(within))))
		if f.Rng.IntN(2) == 0 {
			f.policy = policies[1+f.Rng.IntN(len(policies)-1)]
			t.Logf(t.Name, "POLICY", "%s", f.policy.version)
			f.Count("policies")
		} else {
			f.version = (f.version + 1) % staff.Versions
			t.Logf(t.Name, "VERSION", "%d of the tools", f.version)
			f.Count("rolling updates")
		}
		for f.anyBehind() != nil {
			f.anyBehind().drain()
			t.Sleep(time.Duration(1+f.Rng.IntN(5000)) * time.Millisecond)
		}
	})
}

// anyBehind returns a worker that still has the old policy or the old tools.
func (f *Fleet) anyBehind() *worker {
	for _, w := range f.workers {
		if (w.policy != f.policy || w.file.Version != f.version) && !w.Doomed && !w.leave && f.Alive(w.Process) {
			return w
		}
	}
	return nil
}
