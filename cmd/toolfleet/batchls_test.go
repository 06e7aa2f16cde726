package main

import (
	"context"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/natstest"
)

// What is open is the operator's to see. An agent is told that it is not, and sees its own batch by its id.
func TestBatchLsWithIdentities(t *testing.T) {
	dir, _ := refund(t)
	ids := natstest.NewIdentities(t)
	ctx, cancel := context.WithTimeout(t.Context(), manyStarts)
	m := &members{t: t, ctx: ctx, ids: ids, srv: natstest.Server(t, natstest.Listening, ids.Option)}
	policy := approvedBy(t, dir, ids.Seed("approver"))
	coordinator, _ := m.start("coordinator", "coordinator", "--policy", policy)
	m.questions() // a worker does not wait long for streams that it may not make
	worker, _ := m.start("worker", "worker", "--tools", filepath.Join(dir, "tools.yaml"), "--policy", policy)
	t.Cleanup(func() {
		cancel()
		_, _ = worker.Wait(), coordinator.Wait() // how they end is not the subject
	})
	m.questions() // an agent does not wait long for a fleet that is not there
	agent, _ := m.start("acme", "run", filepath.Join(dir, "batch.json"), "--batch", "turn-7")
	t.Cleanup(func() {
		cancel()
		_ = agent.Wait()
	})
	row := regexp.MustCompile(`(?m)^[0-9ms]+ +acme +refund +turn-7 +3 +waits for a person: issue_refund `)
	for {
		out, err := m.command("operator", "batch", "ls").CombinedOutput()
		if err == nil && row.Match(out) {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("the operator does not see the batch: %v\n%s", err, out)
		}
	}
	out, err := m.command("acme", "batch", "ls").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "may not read the log of batches") {
		t.Errorf("an agent: %v\n%s", err, out)
	}
	out, err = m.command("acme", "batch", "get", "turn-7", "--session", "refund", "--timeline").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "batch turn-7 of session refund: waits for a person") {
		t.Errorf("the agent's own batch: %v\n%s", err, out)
	}
}
