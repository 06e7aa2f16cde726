package process

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

func TestDeadLettersAreListedAndBlockNothing(t *testing.T) {
	t.Parallel()
	p := newProcesses(t, "TOOLFLEET_ACK_WAIT=1s")
	file, _ := p.tools()
	p.ready("coordinator")
	p.ready("worker", "--tools", file)
	conn := p.bus()
	if out, _, code := p.exec("dead", "ls", "-o", "json"); out != `{"dead":[]}`+"\n" || code != 0 {
		t.Errorf("no dead letters: %q, exit status %d", out, code)
	}
	if out, talk, code := p.exec("dead", "ls"); out != "" || !strings.Contains(talk, "there are no dead letters") || code != 0 {
		t.Errorf("no dead letters: %q, %q, exit status %d", out, talk, code)
	}
	junk := "no batch\x1b[31m\nand more\xff\u202e"
	if _, err := conn.Append(t.Context(), "toolfleet.batch._.*.b", bus.Header{"X-From": {"a\x07b"}}, []byte(junk)); err != nil {
		t.Fatal(err)
	}
	p.until("the batch is a dead letter", func() bool { out, _, _ := p.exec("dead", "ls"); return strings.Contains(out, "batch._.*.b") })
	if _, err := conn.Append(t.Context(), "toolfleet.read.default._.s.b.0", nil, []byte("no job")); err != nil {
		t.Fatal(err)
	}
	p.until("the job is a dead letter", func() bool { out, _, _ := p.exec("dead", "ls"); return strings.Contains(out, "read.default") })

	reply, err := p.client().Run(t.Context(), canonical("s", "after", call{"echo", `{"n":1}`}, call{"note", ""}))
	if err != nil || reply.Status != messages.ReplyCompleted {
		t.Errorf("a batch after them: %s, %v", reply.Status, err)
	}
	var list struct {
		Dead []struct {
			Seq      uint64    `json:"seq"`
			SetAside time.Time `json:"set_aside"`
			wire.DeadLetter
		} `json:"dead"`
	}
	out, _, _ := p.exec("dead", "ls", "-o", "json")
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list.Dead) != 2 {
		t.Fatalf("dead ls -o json: %v\n%s", err, out)
	}
	job, batch := list.Dead[0], list.Dead[1] // newest first
	if batch.Seq != 1 || job.Seq != 2 || batch.Size != len(junk) || job.Size != 6 || batch.Reason == "" || job.Reason == "" || batch.SetAside.IsZero() {
		t.Errorf("listed are\n%+v\n%+v", batch, job)
	}

	out, _, _ = p.exec("dead", "show", "1")
	says(t, "dead show", out, "toolfleet.batch._.*.b", `no batch\x1b[31m`, "\n  and more", `\xff\u202e`, `X-From: a\x07b`)
	if strings.ContainsAny(out, "\x1b\x07\u202e") {
		t.Errorf("dead show prints what a terminal obeys: %q", out)
	}
	out, _, _ = p.exec("doctor")
	says(t, "the doctor", out, "2 messages could not be processed", batch.Reason[:20], job.Reason[:20], "toolfleet dead ls")

	_, talk, code := p.exec("dead", "drop", "1", "2", "9")
	says(t, "dead drop", talk, "dead letter 2 is deleted", "there is no dead letter 9")
	if code != 1 {
		t.Errorf("dropping what is not there ends with %d", code)
	}
	if out, _, _ := p.exec("doctor"); strings.Contains(out, "could not be processed") {
		t.Errorf("after the drop the doctor says\n%s", out)
	}
	if _, talk, code := p.exec("dead", "show", "1"); code != 1 || !strings.Contains(talk, "dead ls") {
		t.Errorf("what was dropped is shown: %s", talk)
	}
}

// A server may lose acknowledged messages in a power failure. Daemons refuse to use that
// server. If the settings accept the risk, the daemons use the server and log that.
func TestAnUnsafeServerIsRefused(t *testing.T) {
	t.Parallel()
	p, server := serverOn(t, natstest.DataDir(t), []string{"--sync", "1m"})
	p.until("the server's log names the risk", func() bool { return strings.Contains(server.log.String(), "lost with the power") })
	file, _ := p.tools()
	for _, args := range [][]string{{"coordinator"}, {"worker", "--tools", file}} {
		_, talk, code := p.exec(args...)
		if code != 1 {
			t.Errorf("%s ends with %d", args[0], code)
		}
		says(t, args[0], talk, "a power failure may lose accepted batches", "sync_interval: always", "unsafe_sync: true", "TOOLFLEET_UNSAFE_SYNC=true")
	}

	p.env = append(p.env, "TOOLFLEET_UNSAFE_SYNC=true")
	for _, args := range [][]string{{"coordinator"}, {"worker", "--tools", file}} {
		d := p.ready(args...)
		// The output may still be in the pipe.
		p.until("the "+args[0]+" logs the accepted risk", func() bool {
			said := d.log.String()
			return strings.Contains(said, "unsafe_sync accepts that") && strings.Contains(said, "interval")
		})
	}
	if reply, err := p.client().Run(t.Context(), canonical("s", "b", call{"note", ""})); err != nil || reply.Status != messages.ReplyCompleted {
		t.Errorf("a batch on a server that is accepted: %s, %v", reply.Status, err)
	}
	out, _, _ := p.exec("status")
	says(t, "status", out, "sync: interval: a power failure may lose accepted batches; unsafe_sync accepts that")
	out, _, _ = p.exec("status", "-o", "json")
	says(t, "status -o json", out, `"sync":"interval"`, `"unsafe_sync":true`)
	out, _, _ = p.exec("doctor")
	says(t, "doctor", out, "unsafe_sync accepts that")
}
