package httpapi_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// clientProgram is an environment variable that makes this test binary a client: it sends one
// request, prints the answer and exits. The lines of its value are the method, the URL,
// headers and the body.
const clientProgram = "TOOLFLEET_TEST_CLIENT"

func TestMain(m *testing.M) {
	if request := os.Getenv(clientProgram); request != "" {
		if err := sendOnce(request); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func sendOnce(request string) error {
	lines := strings.Split(request, "\n")
	r, err := http.NewRequest(lines[0], lines[1], strings.NewReader(lines[len(lines)-1]))
	if err != nil {
		return err
	}
	for _, line := range lines[2 : len(lines)-1] {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, err = io.Copy(os.Stdout, res.Body)
	return err
}

// A client process is killed while its call runs, and started again: it gets the reply, and
// nothing runs twice.
func TestAClientProcessThatIsKilled(t *testing.T) {
	for name, row := range map[string]struct{ request, want string }{
		"a batch": {"PUT\n%s/v1/sessions/s/batches/b\n" + message("note", "gate"), "open"},
		"a call":  {"PUT\n%s/v1/sessions/s/calls/c\n" + `{"name":"gate"}`, `"output":"open"`},
		"MCP": {"POST\n%s/mcp/s\nContent-Type: application/json\nAccept: application/json, text/event-stream\nMcp-Protocol-Version: 2025-11-25\n" +
			"Idempotency-Key: mine\n" + gateCall, `"text":"open"`},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			start := func() (*exec.Cmd, *strings.Builder) {
				cmd := exec.CommandContext(t.Context(), os.Args[0])
				cmd.Env = append(os.Environ(), clientProgram+"="+fmt.Sprintf(row.request, "http://"+f.addr))
				out := &strings.Builder{}
				cmd.Stdout, cmd.Stderr = out, out
				must(t, cmd.Start())
				return cmd, out
			}
			first, _ := start()
			f.waitEntered()
			must(t, first.Process.Kill()) // SIGKILL
			_ = first.Wait()
			f.until("the server has noticed", func() bool { return f.server.Waiting() == 0 })
			second, out := start()
			f.until("the second one waits", func() bool { return f.server.Waiting() == 1 })
			f.open()
			if err := second.Wait(); err != nil || !strings.Contains(out.String(), row.want) {
				t.Errorf("%v: %s", err, out)
			}
			if len(f.entered) != 0 || f.noted.Load() > 1 {
				t.Errorf("a call ran twice: %d notes", f.noted.Load())
			}
		})
	}
}
