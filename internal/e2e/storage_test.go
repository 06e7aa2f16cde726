package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/messages"
)

// tell runs a command to its end and returns what it printed on stdout and on stderr.
func (p *processes) tell(args ...string) (stdout, stderr string, code int) {
	p.t.Helper()
	path, err := binary()
	if err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Env = append(append(os.Environ(), "NATS_URL="+p.url, "TOOLFLEET_CONFIG=none"), p.env...)
	var out, talk strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &talk
	_ = cmd.Run() // the exit status tells
	return out.String(), talk.String(), cmd.ProcessState.ExitCode()
}

// says fails the test unless a text holds all of the words.
func says(t *testing.T, what, text string, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("%s does not say %q:\n%s", what, word, text)
		}
	}
}

// bus is a connection to the server of the processes.
func (p *processes) bus() *bus.Conn {
	p.t.Helper()
	conn, err := bus.Connect(p.t.Context(), bus.Options{URL: p.url, Name: "test"})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(conn.Close)
	return conn
}

func TestDeadLettersAreListedAndBlockNothing(t *testing.T) {
	p := newProcesses(t, "TOOLFLEET_ACK_WAIT=1s")
	file, _ := p.tools()
	p.ready("coordinator")
	p.ready("worker", "--tools", file)
	conn := p.bus()
	if out, _, code := p.tell("dead", "ls", "-o", "json"); out != `{"dead":[]}`+"\n" || code != 0 {
		t.Errorf("nothing set aside: %q, exit status %d", out, code)
	}
	junk := "no batch\x1b[31m\nand more\xff\u202e"
	if _, err := conn.Append(t.Context(), "toolfleet.batch._.*.b", bus.Header{"X-From": {"a\x07b"}}, []byte(junk)); err != nil {
		t.Fatal(err)
	}
	p.until("the batch is set aside", func() bool { out, _, _ := p.tell("dead", "ls"); return strings.Contains(out, "batch._.*.b") })
	if _, err := conn.Append(t.Context(), "toolfleet.read.default._.s.b.0", nil, []byte("no job")); err != nil {
		t.Fatal(err)
	}
	p.until("the job is set aside", func() bool { out, _, _ := p.tell("dead", "ls"); return strings.Contains(out, "read.default") })

	reply, err := p.client().Run(t.Context(), canonical("s", "after", call{"echo", `{"n":1}`}, call{"note", ""}), nil)
	if err != nil || reply.Status != messages.Completed {
		t.Errorf("a batch after them: %s, %v", reply.Status, err)
	}
	var list struct {
		Dead []struct {
			Seq      uint64    `json:"seq"`
			SetAside time.Time `json:"set_aside"`
			messages.Buried
		} `json:"dead"`
	}
	out, _, _ := p.tell("dead", "ls", "-o", "json")
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list.Dead) != 2 {
		t.Fatalf("dead ls -o json: %v\n%s", err, out)
	}
	job, batch := list.Dead[0], list.Dead[1] // newest first
	if batch.Seq != 1 || job.Seq != 2 || batch.Size != len(junk) || job.Size != 6 || batch.Reason == "" || job.Reason == "" || batch.SetAside.IsZero() {
		t.Errorf("listed are\n%+v\n%+v", batch, job)
	}

	out, _, _ = p.tell("dead", "show", "1")
	says(t, "dead show", out, "toolfleet.batch._.*.b", `no batch\x1b[31m`, "\n  and more", `\xff\u202e`, `X-From: a\x07b`)
	if strings.ContainsAny(out, "\x1b\x07\u202e") {
		t.Errorf("dead show prints what a terminal obeys: %q", out)
	}
	out, _, _ = p.tell("doctor")
	says(t, "the doctor", out, "2 messages could not be processed", batch.Reason[:20], job.Reason[:20], "toolfleet dead ls")

	_, talk, code := p.tell("dead", "drop", "1", "2", "9")
	says(t, "dead drop", talk, "message 2 is forgotten", "no message 9 is set aside")
	if code != 1 {
		t.Errorf("dropping what is not there ends with %d", code)
	}
	if out, _, _ := p.tell("doctor"); strings.Contains(out, "could not be processed") {
		t.Errorf("after the drop the doctor says\n%s", out)
	}
	if _, talk, code := p.tell("dead", "show", "1"); code != 1 || !strings.Contains(talk, "dead ls") {
		t.Errorf("what was dropped is shown: %s", talk)
	}
}
