//go:build unix

package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// askFor is how long a person has to answer a question.
const askFor = 6 * time.Second

// policyFile returns the approvers with their keys, and the text of a policy file. The file
// lists the approvers and the tools that need an approval.
func policyFile() (people map[string]approval.Key, file string, err error) {
	people, file = map[string]approval.Key{}, "approvers:\n"
	for _, name := range []string{"alice", "bob"} {
		if people[name], err = approval.NewKey(); err != nil {
			return nil, "", err
		}
		file += fmt.Sprintf("  - {name: %s, key: %s}\n", name, people[name].Public())
	}
	file += "ask:\n"
	for _, name := range rawjson.SortedKeys(Tools) {
		if Tools[name].Asks {
			file += fmt.Sprintf("  - {tool: %s}\n", name)
		}
	}
	return people, file, nil
}

// person reads the open questions and answers most of them, until ctx ends.
func (l *load) person(ctx context.Context, name string, rng *rand.Rand) {
	var thinking sync.WaitGroup
	defer thinking.Wait()
	seen := map[string]bool{}
	for ; ctx.Err() == nil; pause(ctx, 200*time.Millisecond) {
		open, err := l.client.Approvals(ctx)
		if err != nil {
			continue
		}
		for _, p := range open {
			if verdict, answers := answerTo(p.ID, name); answers && !seen[p.ID] {
				wait := time.Duration(rng.Int64N(int64(2 * time.Second)))
				if rng.IntN(8) == 0 { // the answer meets the expiry of the question
					wait = time.Until(p.Expires) - 100*time.Millisecond + time.Duration(rng.IntN(200))*time.Millisecond
				}
				thinking.Go(func() {
					pause(ctx, wait)
					l.decide(ctx, name, p, verdict)
				})
			}
			seen[p.ID] = true
		}
	}
}

// answerTo returns how a person answers a question. answers is false if the person does not
// answer. Some questions get no answer, and others get two different answers.
func answerTo(question, name string) (verdict messages.Verdict, answers bool) {
	alice := name == "alice"
	switch strings.IndexByte("0123456789abcdef", question[0]) {
	case 0, 1: // nobody answers, so the question expires
		return "", false
	case 2, 3:
		return messages.VerdictDeny, alice
	case 4, 5:
		return messages.VerdictEdit, !alice
	case 6, 7:
		if alice {
			return messages.VerdictDeny, true
		}
		return messages.VerdictApprove, true
	case 8:
		if alice {
			return messages.VerdictEdit, true
		}
		return messages.VerdictApprove, true
	case 9, 10:
		return messages.VerdictApprove, true
	}
	return messages.VerdictApprove, alice
}

// decide sends a decision again and again until the fleet answers it. It records the signed
// decision before it is sent for the first time.
func (l *load) decide(ctx context.Context, name string, p messages.Pending, v messages.Verdict) {
	var q messages.Approval
	for err := errors.New("not asked"); err != nil; pause(ctx, 200*time.Millisecond) {
		var refused *messages.Refusal
		if q, err = l.client.Approval(ctx, p.Session, p.Batch, p.Index); ctx.Err() != nil || errors.As(err, &refused) && refused.Class == messages.ClassNotPending {
			return
		}
	}
	d := approval.Answer(q, v, name)
	var in Input
	if err := json.Unmarshal(q.Input, &in); err != nil {
		panic(err)
	}
	if v == messages.VerdictEdit {
		in.MS += 50
		d.Input = rawjson.MustMarshal(in)
	}
	decision := Decision{By: name, Verdict: v, At: time.Now(), MS: in.MS}
	d.At = decision.At.UTC()
	d, err := l.people[name].Sign(d)
	if err != nil {
		panic(err)
	}
	key := callKey{string(p.Batch), p.Index}.String()
	l.mu.Lock()
	l.decisions[key] = append(l.decisions[key], decision)
	place := len(l.decisions[key]) - 1
	l.mu.Unlock()
	for ctx.Err() == nil {
		answer, err := l.client.Decide(ctx, d)
		var refused *messages.Refusal
		if errors.As(err, &refused) && refused.Class != messages.ClassBusy {
			return
		}
		if err == nil {
			l.mu.Lock()
			l.decisions[key][place].State = answer.State
			l.mu.Unlock()
			return
		}
		pause(ctx, 100*time.Millisecond)
	}
}
