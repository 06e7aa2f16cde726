package main

import (
	"context"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/natstest"
)

// Only an operator may list open batches. An agent gets an error that says so, and can still see
// its own batch by id.
func TestBatchLsWithIdentities(t *testing.T) {
	t.Parallel()
	dir, _ := refund(t)
	ids := natstest.NewIdentities(t)
	ctx, cancel := context.WithTimeout(t.Context(), manyStarts)
	m := &members{t: t, ctx: ctx, ids: ids, srv: natstest.Server(t, natstest.Listening, ids.Option)}
	policy := approvedBy(t, dir, ids.Seed("approver"))
	coordinator, _ := m.start("coordinator", "coordinator", "--policy", policy)
	m.questions() // wait for the streams: a worker may not make them and gives up soon
	worker, _ := m.start("worker", "worker", "--tools", filepath.Join(dir, "tools.yaml"), "--policy", policy)
	t.Cleanup(func() {
		cancel()
		_, _ = worker.Wait(), coordinator.Wait() // how they end is not tested here
	})
	m.questions() // wait for the fleet: an agent gives up soon
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
