package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/messages"
)

// manyStarts bounds the waits of a test that starts many processes in turn, which is slow on a busy
// machine.
const manyStarts = 5 * time.Minute

// members is a fleet of processes, each with its own identity at the NATS server.
type members struct {
	t   *testing.T
	ctx context.Context
	ids *natstest.Identities
	srv *devserver.Server
}

// command returns a toolfleet command with one of the identities.
func (m *members) command(who string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(m.ctx, "toolfleet", args...)
	cmd.Env = append(os.Environ(), "TOOLFLEET_CONFIG=none", "GORACE=atexit_sleep_ms=0", "NATS_URL="+m.srv.URL(), "NATS_NKEY="+m.ids.Seed(who), "TOOLFLEET_NATS_INBOX_PREFIX="+m.ids.Inbox(who))
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 20 * time.Second
	return cmd
}

// start starts a command that keeps running.
func (m *members) start(who string, args ...string) (cmd *exec.Cmd, out *bytes.Buffer) {
	m.t.Helper()
	cmd, out = m.command(who, args...), &bytes.Buffer{}
	cmd.Stdout = out
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	return cmd, out
}

// questions returns the open questions of tenant acme. It waits for a coordinator that answers.
func (m *members) questions() (list messages.PendingList) {
	m.t.Helper()
	for {
		out, err := m.command("approver", "approvals", "ls", "--tenant", "acme", "-o", "json").Output()
		if err == nil {
			if err = json.Unmarshal(out, &list); err == nil {
				return list
			}
		}
		if m.ctx.Err() != nil {
			m.t.Fatalf("nobody tells which questions are open: %v", err)
		}
	}
}

// A person with the approver's identity, whose key also signs the decisions, approves a call of an
// agent that has its own identity.
func TestApprovalsWithIdentities(t *testing.T) {
	t.Parallel()
	dir, _ := refund(t)
	ids := natstest.NewIdentities(t)
	ctx, cancel := context.WithTimeout(t.Context(), manyStarts)
	m := &members{t: t, ctx: ctx, ids: ids, srv: natstest.Server(t, natstest.Listening, ids.Option)}
	policy := approvedBy(t, dir, ids.Seed("approver")) // one key for identity and signatures
	coordinator, _ := m.start("coordinator", "coordinator", "--policy", policy)
	m.questions() // wait for the streams: a worker may not make them and gives up soon
	worker, _ := m.start("worker", "worker", "--policy", policy, "--tools", filepath.Join(dir, "tools.yaml"))
	t.Cleanup(func() {
		cancel()
		_, _ = worker.Wait(), coordinator.Wait() // how they end is not tested here
	})
	m.questions() // wait for the fleet: an agent gives up soon
	agent, reply := m.start("acme", "run", filepath.Join(dir, "batch.json"))
	list := m.questions()
	for len(list.Pending) == 0 {
		list = m.questions()
	}
	if p := list.Pending[0]; p.Requester != "acme" || p.Tenant != "acme" {
		t.Errorf("the requester is %q of tenant %q, want acme", p.Requester, p.Tenant)
	}
	id := list.Pending[0].ID
	if out, err := m.command("approver", "approvals", "approve", id, "--yes", "--as", "ann", "--key", ids.Seed("approver"), "--tenant", "acme").CombinedOutput(); err != nil {
		t.Fatalf("the approver's identity: %v\n%s", err, out)
	}
	if err := agent.Wait(); err != nil || !strings.Contains(reply.String(), `"output":"refunded`) {
		t.Errorf("the agent's run: %v\n%s", err, reply)
	}
}

// approvedBy returns the example's policy with ann as its approver, whose key is in a file.
func approvedBy(t *testing.T, dir, seed string) (policy string) {
	t.Helper()
	key, err := approval.ReadKey(seed)
	if err != nil {
		t.Fatal(err)
	}
	policy = filepath.Join(dir, "policy.yaml")
	body, err := os.ReadFile(policy)
	if err != nil {
		t.Fatal(err)
	}
	approvers := "\napprovers: [{name: ann, key: " + key.Public() + "}]\n"
	if err := os.WriteFile(policy, append(body, approvers...), 0o600); err != nil {
		t.Fatal(err)
	}
	return policy
}

// refund returns the arguments that run the example, in a copy of it.
func refund(t *testing.T) (dir string, args []string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("../../examples/refund")); err != nil {
		t.Fatal(err)
	}
	_ = os.RemoveAll(filepath.Join(dir, "ledger")) // a copied leftover of a manual run
	return dir, []string{"run", filepath.Join(dir, "batch.json"), "--tools", filepath.Join(dir, "tools.yaml"), "--policy", filepath.Join(dir, "policy.yaml"), "-o", "reply"}
}
