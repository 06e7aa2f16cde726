package process

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/messages"
)

var auditKills = flag.Int("audit.kills", 40, "how often TestEveryEffectHasItsLine kills a worker")

// Workers are killed with SIGKILL after the effect of a call and before its result, and
// coordinators at random moments. Each effect has exactly one audit line, which says how its
// call ended.
func TestEveryEffectHasItsLine(t *testing.T) {
	t.Parallel()
	kills := *auditKills
	p := newProcesses(t, "TOOLFLEET_ACK_WAIT=1s", "TOOLFLEET_LEASE=1500ms", "TOOLFLEET_GRACE=400ms", "TOOLFLEET_QUEUE_TIMEOUT=1h", "TOOLFLEET_POISON=50")
	dir := t.TempDir()
	ledger, file := filepath.Join(dir, "ledger"), filepath.Join(dir, "tools.yaml")
	// A tool writes its effect as a line into the ledger, and then kills the worker that runs
	// it. pay does so in its only attempt. charge does so in its first attempt, and may then
	// run again with the same key.
	body := `tools:
  - name: pay
    kind: write
    on_crash: once
    input_schema: {type: object}
    env: [LEDGER]
    exec: {command: [sh, -c, 'echo "$TOOLFLEET_CALL_ID" >>"$LEDGER"; kill -9 $PPID; sleep 60']}
    sandbox: {off: true} # it kills its worker
  - name: charge
    kind: write
    on_crash: idempotent
    input_schema: {type: object}
    env: [LEDGER]
    exec: {command: [sh, -c, 'echo "$TOOLFLEET_CALL_ID" >>"$LEDGER"; test "$TOOLFLEET_ATTEMPT" -gt 1 || { kill -9 $PPID; sleep 60; }; echo charged']}
    sandbox: {off: true}
`
	if err := os.WriteFile(file, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	p.env = append(p.env, "LEDGER="+ledger)

	var killed atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	var keepers sync.WaitGroup
	defer keepers.Wait()
	defer stop()
	for i := range 4 { // workers restart when they die
		keepers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				d, err := p.launch("worker", "--tools", file, "--slots", "1", "--name", fmt.Sprintf("w%d-%d", i, n), "--log-level", "error")
				if err != nil {
					t.Error(err)
					return
				}
				ended := context.AfterFunc(ctx, func() { _ = d.cmd.Process.Kill() })
				_ = d.cmd.Wait()
				if ended() {
					killed.Add(1)
				}
			}
		})
	}
	for range 2 { // coordinators are killed after some time to work
		keepers.Go(func() {
			for ctx.Err() == nil {
				d, err := p.launch("coordinator")
				if err != nil {
					t.Error(err)
					return
				}
				for end := time.Now().Add(2 * time.Minute); ctx.Err() == nil && time.Now().Before(end) && !strings.Contains(d.log.String(), "is ready"); {
					<-time.NewTimer(10 * time.Millisecond).C
				}
				select {
				case <-time.NewTimer(3 * time.Second).C:
				case <-ctx.Done():
				}
				_ = d.cmd.Process.Kill()
				_ = d.cmd.Wait()
			}
		})
	}

	c := p.client()
	ids := map[messages.CallID]bool{}
	submit := func(i int) {
		b := canonical(fmt.Sprintf("s%d", i), fmt.Sprintf("b%d", i), call{[]string{"pay", "charge"}[i%2], `{}`})
		b.Message = json.RawMessage(strings.ReplaceAll(string(b.Message), `"c0"`, fmt.Sprintf(`"call-%d"`, i)))
		ids[messages.CallID(fmt.Sprintf("call-%d", i))] = true
		p.until("the batch is accepted", func() bool { return c.Submit(t.Context(), b) == nil })
	}
	replies := map[messages.CallID]messages.Result{}
	await := func(i int) {
		ctx, done := context.WithTimeout(t.Context(), 5*time.Minute)
		defer done()
		reply, err := c.Await(ctx, messages.SessionID(fmt.Sprintf("s%d", i)), messages.BatchID(fmt.Sprintf("b%d", i)))
		if err != nil {
			t.Fatalf("batch %d: %v", i, err)
		}
		replies[reply.Results[0].CallID] = reply.Results[0]
	}
	for i := range kills {
		submit(i)
	}
	for i := range kills {
		await(i)
	}
	// On a busy machine a worker may fail to renew its claim in time. It then stops the tool
	// before the tool kills it.
	for i := kills; int(killed.Load()) < kills && i < 2*kills; i++ {
		submit(i)
		await(i)
	}
	conn, err := bus.Connect(t.Context(), bus.Options{URL: p.url})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	p.awaitEmptyLog(conn) // from now on the lines are stored
	stop()
	keepers.Wait()

	effects := map[messages.CallID]int{}
	written, err := os.ReadFile(ledger)
	if err != nil {
		t.Fatal(err)
	}
	for id := range strings.FieldsSeq(string(written)) {
		effects[messages.CallID(id)]++
	}
	lines := map[messages.CallID][]messages.AuditRecord{}
	for line := range strings.Lines(p.command("audit", "--type", "call", "-o", "json")) {
		var r messages.AuditRecord
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		lines[r.CallID] = append(lines[r.CallID], r)
	}
	tally := map[messages.Status]int{}
	for id := range ids {
		result := replies[id]
		tally[result.Status]++
		if len(lines[id]) != 1 {
			t.Errorf("call %s (%d effects, replied %s) has %d lines", id, effects[id], result.Status, len(lines[id]))
			continue
		}
		line := lines[id][0]
		if line.Status != result.Status || line.Attempt != result.Attempt || line.Tool != result.Tool {
			t.Errorf("call %s was replied %s in attempt %d, its line says %s in attempt %d", id, result.Status, result.Attempt, line.Status, line.Attempt)
		}
		if effects[id] > 0 && (line.ArgsHash == "" || line.Worker == "" || line.Started.IsZero() || line.Permission == nil) {
			t.Errorf("the line of the effect of call %s says too little: %+v", id, line)
		}
		if line.Tool == "pay" && effects[id] > 1 {
			t.Errorf("call %s of a tool that runs once had %d effects", id, effects[id])
		}
	}
	// This worker was killed during the payment, so the line has no duration.
	story := p.command("audit", "--call", "call-0")
	if !strings.Contains(story, "ran        on w") || strings.Contains(story, "took") || !strings.Contains(story, "ended      outcome_unknown") {
		t.Errorf("the story of a lost call is\n%s", story)
	}
	if int(killed.Load()) < kills {
		t.Errorf("%d workers were killed, want %d at least", killed.Load(), kills)
	}
	t.Logf("%d workers killed after an effect, %d calls with an effect, replied %v", killed.Load(), len(effects), tally)
}
