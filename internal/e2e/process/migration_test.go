package process

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/e2e/oldbuild"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/messages"
)

// Every process of an old build is killed while calls run, batches wait behind them, and a
// person is asked. The new build starts on the old data directory and finishes everything.
func TestANewBuildStartsOnTheDataOfTheOldOne(t *testing.T) {
	t.Parallel()
	binary(t)
	old := t.TempDir()
	if err := oldbuild.Build(old); errors.Is(err, oldbuild.ErrNoHistory) {
		t.Skip("SKIP:", err)
	} else if err != nil {
		t.Fatal(err)
	}
	addr := natstest.FreeAddr(t)
	p := &processes{t: t, url: "nats://" + addr, path: filepath.Join(old, "toolfleet")}
	file, dir := p.effectTools()
	body, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	oldFile := filepath.Join(dir, "old.yaml") // the old build knows no sandbox
	if err := os.WriteFile(oldFile, regexp.MustCompile(`(?m)^ *sandbox:.*\n`).ReplaceAll(body, nil), 0o600); err != nil {
		t.Fatal(err)
	}
	policy := filepath.Join(dir, "policy.yaml")
	alice, err := approval.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("approvers: [{name: alice, key: %s}]\nask: [{tool: check, name: checks}]\n", alice.Public())
	if err := os.WriteFile(policy, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p.env = append(p.env, "TOOLFLEET_ACK_WAIT=2s", "TOOLFLEET_LEASE=10s", "TOOLFLEET_GRACE=3s", "TOOLFLEET_POLICY="+policy)
	data := natstest.DataDir(t)
	serve := func() *daemon {
		d := p.start("nats", "--listen", addr, "--data", data)
		p.until("the server listens", func() bool {
			conn, err := net.Dial("tcp", addr)
			if err == nil {
				_ = conn.Close()
			}
			return err == nil
		})
		return d
	}
	fleet := []*daemon{serve(), p.ready("coordinator"), p.ready("coordinator"), p.worker(oldFile, "old", "--slots", "8")}

	var batches []messages.Batch
	want := map[messages.BatchID]string{}
	add := func(session, id, statuses string, calls ...call) {
		b := canonical(session, id, calls...)
		batches, want[b.ID] = append(batches, b), statuses
	}
	add("reads", "r1", "ok ok", call{"look", ""}, call{"look", ""})
	add("idempotent", "i1", "ok ok", call{"idem", ""}, call{"once", ""})
	add("once", "o1", "outcome_unknown skipped", call{"once", ""}, call{"once", ""})
	add("asked", "a1", "ok", call{"check", ""})
	const queued = 12
	for i := range queued { // the first read holds up the writes behind it
		tool := "once"
		if i%4 == 0 {
			tool = "look"
		}
		add("queue", fmt.Sprintf("q%02d", i), "ok", call{tool, ""})
	}
	c := p.client()
	for _, b := range batches {
		if err := c.Submit(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	p.started(dir, 5) // two reads, two writes, and the first read of the queue
	var question messages.Approval
	p.until("a person is asked", func() bool {
		question, err = c.Approval(t.Context(), "asked", "a1", 0)
		return err == nil
	})
	for _, d := range slices.Backward(fleet) {
		d.kill()
	}

	p.path = ""
	serve()
	p.ready("coordinator")
	p.worker(file, "new", "--slots", "8")
	p.goOn(dir)
	decision := approval.Answer(question, messages.VerdictApprove, "alice")
	decision.At = time.Now().UTC()
	signed, err := alice.Sign(decision)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Decide(t.Context(), signed); err != nil {
		t.Errorf("the question of the old build is not answered: %v", err)
	}
	for _, b := range batches {
		var got []string
		for _, r := range p.reply(c, b).Results {
			got = append(got, string(r.Status))
		}
		if s := strings.Join(got, " "); s != want[b.ID] {
			t.Errorf("batch %s ended as %s, want %s", b.ID, s, want[b.ID])
		}
	}
	_, dones := ledgerLines(dir)
	writes := map[string]int{} // by fence and key; a read has no fence
	for _, line := range dones {
		if f := strings.Fields(line); len(f) > 2 {
			writes[f[len(f)-2]]++
		}
	}
	for key, n := range writes {
		if n > 1 {
			t.Errorf("the effect of %s was had %d times", key, n)
		}
	}
}
