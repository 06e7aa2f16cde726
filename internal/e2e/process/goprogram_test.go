package process

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/messages"
)

// The program of examples/tool-go reports that it is ready as toolfleet worker does, and
// serves its tool. At a signal it ends after its calls have ended.
func TestAProgramWithATool(t *testing.T) {
	p := newProcesses(t)
	dependOn(t, "../../../examples/tool-go", "../../../worker")
	program := filepath.Join(t.TempDir(), "shout")
	if out, err := exec.Command("go", "build", "-o", program, "../../../examples/tool-go").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	p.ready("coordinator")
	addr := natstest.FreeAddr(t)
	d := &daemon{cmd: exec.Command(program, "--nats", p.url, "--name", "in-go", "--slots", "3", "--http", addr, "--log-format", "json"), log: &lockedBuffer{}}
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	d.cmd.Env = append(os.Environ(), "TOOLFLEET_CONFIG=none")
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer d.kill()
	p.until("the program is ready", func() bool {
		resp, err := http.Get("http://" + addr + "/readyz")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	reply, err := p.client().Run(t.Context(), canonical("s", "b", call{"shout", `{"text":"hello"}`}, call{"shout", `{"text":1}`}))
	if err != nil {
		t.Fatal(err)
	}
	if statuses(reply) != "ok validation_error" || !strings.Contains(string(reply.Reinjection), "HELLO!") || reply.Results[1].Err.Code != messages.CodeInvalidArguments {
		t.Errorf("got %s: %+v", statuses(reply), reply.Results)
	}
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	if want := `"msg":"worker is ready","worker":"in-go","pools":["default"],"tools":1,"slots":3}`; !strings.Contains(d.log.String(), want) {
		t.Errorf("want a line with %s in\n%s", want, d.log)
	}
}
