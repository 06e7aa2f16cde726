package process

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/messages"
)

// A worker has too few file descriptors. A call that it cannot start gets a result with that
// reason, the other calls run, and the worker starts calls again later.
func TestAWorkerHasNoFilesLeft(t *testing.T) {
	t.Parallel()
	p := newProcesses(t)
	path := binary(t)
	file := filepath.Join(t.TempDir(), "tools.yaml")
	body := `tools:
  - name: hold
    kind: read
    timeout: 60s
    input_schema: {type: object}
    env: [GO]
    exec: {command: [sh, -c, 'while [ ! -e "$GO" ]; do sleep 0.05; done']}
  - {name: pay, input_schema: {type: object}, exec: {command: [echo, paid]}}
`
	if err := os.WriteFile(file, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	p.ready("coordinator")
	d := &daemon{cmd: exec.Command("sh", "-c", `ulimit -n 40 && exec "$0" worker --tools "$1"`, path, file), log: &lockedBuffer{}}
	goOn := filepath.Join(t.TempDir(), "go")
	d.cmd.Env = append(os.Environ(), "NATS_URL="+p.url, "TOOLFLEET_CONFIG=none", "GO="+goOn)
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.kill)
	p.until("the worker is ready", func() bool { return strings.Contains(d.log.String(), "is ready") })
	c := p.client()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	calls := make([]call, 8)
	for i := range calls {
		calls[i].Name = "hold"
	}
	reply, err := c.Run(ctx, canonical("s", "many", append(calls, call{"pay", ""})...), client.OnEvent(func(e messages.Event) {
		if e.Type == messages.EventEnd { // a call could not start: let the others end
			_ = os.WriteFile(goOn, nil, 0o600)
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for _, r := range reply.Results[:8] {
		if r.Status == messages.StatusError && strings.Contains(r.Err.Message, "too many open files") {
			refused++
		} else if r.Status != messages.StatusOK {
			t.Errorf("result %+v", r)
		}
	}
	if refused == 0 || reply.Results[8].Status != messages.StatusOK {
		t.Errorf("%d of 8 programs at once could not be started with 40 files; the write behind them: %+v", refused, reply.Results[8])
	}
	for n := range 4 {
		if r := p.run(c, canonical("s", fmt.Sprint("after", n), call{"pay", ""})); r.Status != messages.StatusOK {
			t.Errorf("later: %+v", r)
		}
	}
}
