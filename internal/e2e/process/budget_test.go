package process

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/messages"
)

// serverOn starts a NATS server that keeps its data in the folder data, with further flags. It
// returns the fleet and the server's process.
func serverOn(t *testing.T, data string, flags []string, env ...string) (*processes, *daemon) {
	t.Helper()
	addr := natstest.FreeAddr(t)
	p := &processes{t: t, env: env, url: "nats://" + addr}
	server := p.start(append([]string{"nats", "--listen", addr, "--data", data}, flags...)...)
	p.until("the server listens", func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
	return p, server
}

// awaitEmptyLog waits until the log is empty. A batch leaves the log a moment after its reply
// is published.
func (p *processes) awaitEmptyLog(conn *bus.Conn) {
	p.t.Helper()
	p.until("the log is empty", func() bool {
		_, err := conn.First(p.t.Context(), conn.Names().Stream(bus.Batches), ">")
		return errors.Is(err, bus.ErrNotFound)
	})
}

// synced matches a synced file in a line of strace -y.
var synced = regexp.MustCompile(`(?:fsync|fdatasync)\(\d+<[^>]*/streams/([^>]*)>`)

// countSyncs counts the syncs of a process while do runs, with strace: those of messages, by
// stream, and all others. It skips the test if strace is missing or may not attach.
func countSyncs(t *testing.T, process int, do func()) (byStream map[string]int, others int) {
	t.Helper()
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("there is no strace here to count syncs with")
	}
	out, talk := filepath.Join(t.TempDir(), "trace"), &lockedBuffer{}
	cmd := exec.Command(strace, "-f", "-y", "-e", "trace=fsync,fdatasync,sync_file_range", "-o", out, "-p", fmt.Sprint(process))
	cmd.Stderr = talk
	if err := cmd.Start(); err != nil {
		t.Skipf("strace does not start: %v", err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill(); <-ended }()
	for looks := time.NewTicker(10 * time.Millisecond); !strings.Contains(talk.String(), "attached"); {
		select {
		case <-ended:
			t.Skipf("strace may not attach here: %s", strings.TrimSpace(talk.String()))
		case <-looks.C:
		}
	}
	do()
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	<-ended
	body, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	byStream = map[string]int{}
	for line := range bytes.Lines(body) {
		file := synced.FindSubmatch(line)
		if file == nil {
			continue
		}
		if stream, _, messages := strings.Cut(string(file[1]), "/msgs/"); messages {
			byStream[stream]++
		} else {
			others++
		}
	}
	return byStream, others
}

// A batch of 8 reads and 2 writes runs on a real server, and its syncs are counted. They
// decide how many batches a disk can take. Each sync is listed here, and one more is a
// regression:
//
//	BATCHES    the publish; the removal once the reply is stored
//	CALLS      the plan with the reads before the first write; claim and end of each write;
//	           and one more plan record for reads between two writes
//	REPLIES    the reply
//	AUDIT      the lines of all its calls, in one message, at the same time as the reply
//
// Jobs, results of reads, announcements of workers and events cost no sync. The server also
// syncs the state of the coordinators' consumer, at most ten times a second however many
// batches there are.
func TestDurabilityBudget(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs processes")
	}
	p, server := serverOn(t, natstest.DataDir(t), nil)
	file := filepath.Join(t.TempDir(), "tools.yaml")
	tools := "tools:\n  - {name: look, kind: read, builtin: noop}\n  - {name: put, kind: write, builtin: noop}\n"
	if err := os.WriteFile(file, []byte(tools), 0o600); err != nil {
		t.Fatal(err)
	}
	p.ready("coordinator")
	p.ready("worker", "--tools", file)
	c, conn := p.client(), p.bus()
	look, put := call{"look", `{"n":1}`}, call{"put", `{"n":1}`}
	four := []call{look, look, look, look}
	const batches = 10
	for _, tt := range []struct {
		name  string
		calls []call
		plans int
	}{
		{"reads, then writes", append(append(four[:4:4], four...), put, put), 1},
		{"reads between the writes too", append(append(append(four[:4:4], put), four...), put), 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			run := func(id string) {
				reply, err := c.Run(t.Context(), canonical("s", tt.name+id, tt.calls...))
				if err != nil || reply.Status != messages.ReplyCompleted {
					t.Fatalf("batch %s: %s, %v", id, reply.Status, err)
				}
			}
			run("first")
			p.awaitEmptyLog(conn)
			got, others := countSyncs(t, server.cmd.Process.Pid, func() {
				for n := range batches {
					run(fmt.Sprint(n))
				}
				p.awaitEmptyLog(conn)
			})
			want := map[string]int{
				"TOOLFLEET_BATCHES": 2 * batches, "TOOLFLEET_CALLS": (tt.plans + 4) * batches, "TOOLFLEET_REPLIES": batches,
				"TOOLFLEET_AUDIT": batches,
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("syncs of %d batches by stream (-want +got):\n%s", batches, diff)
			}
			sum := 0
			for _, n := range got {
				sum += n
			}
			t.Logf("%d batches cost %d syncs of messages, and %d of the consumer's state", batches, sum, others)
		})
	}
}
