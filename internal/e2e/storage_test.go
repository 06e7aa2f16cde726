package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker"
)

// tell runs a command to its end and returns its stdout, stderr and exit status.
func (p *processes) tell(args ...string) (stdout, stderr string, code int) {
	p.t.Helper()
	path := binary(p.t)
	cmd := exec.Command(path, args...)
	cmd.Env = append(append(os.Environ(), "NATS_URL="+p.url, "TOOLFLEET_CONFIG=none"), p.env...)
	var out, talk strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &talk
	_ = cmd.Run() // the exit status is checked instead
	return out.String(), talk.String(), cmd.ProcessState.ExitCode()
}

// says fails the test unless the text contains all of the words.
func says(t *testing.T, what, text string, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("%s does not say %q:\n%s", what, word, text)
		}
	}
}

// bus connects to the server of the processes.
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

// Daemons refuse a server that may lose acknowledged messages, unless the settings accept that;
// then the log shows it.
func TestAnUnsafeServerIsRefused(t *testing.T) {
	p, server := serverOn(t, t.TempDir(), []string{"--sync", "1m"})
	p.until("the server says what it risks", func() bool { return strings.Contains(server.log.String(), "lost with the power") })
	file, _ := p.tools()
	for _, args := range [][]string{{"coordinator"}, {"worker", "--tools", file}} {
		_, talk, code := p.tell(args...)
		if code != 1 {
			t.Errorf("%s ends with %d", args[0], code)
		}
		says(t, args[0], talk, "a power failure may lose accepted batches", "sync_interval: always", "unsafe_sync: true", "TOOLFLEET_UNSAFE_SYNC=true")
	}

	p.env = append(p.env, "TOOLFLEET_UNSAFE_SYNC=true")
	for _, args := range [][]string{{"coordinator"}, {"worker", "--tools", file}} {
		d := p.ready(args...)
		// Its output may still be in the pipe.
		p.until("the "+args[0]+" says what is accepted", func() bool {
			said := d.log.String()
			return strings.Contains(said, "unsafe_sync accepts that") && strings.Contains(said, "interval")
		})
	}
	if reply, err := p.client().Run(t.Context(), canonical("s", "b", call{"note", ""}), nil); err != nil || reply.Status != messages.ReplyCompleted {
		t.Errorf("a batch on a server that is accepted: %s, %v", reply.Status, err)
	}
	out, _, _ := p.tell("status")
	says(t, "status", out, "sync: interval: a power failure may lose accepted batches; unsafe_sync accepts that")
	out, _, _ = p.tell("status", "-o", "json")
	says(t, "status -o json", out, `"sync":"interval"`, `"unsafe_sync":true`)
	out, _, _ = p.tell("doctor")
	says(t, "doctor", out, "unsafe_sync accepts that")
}

// jetStream sends a request to the JetStream API, without a body if it is nil, and returns the
// answer.
func jetStream(t *testing.T, conn *bus.Conn, what string, body any) (answer map[string]any) {
	t.Helper()
	var raw []byte
	if body != nil {
		raw = rawjson.MustMarshal(body)
	}
	m, err := conn.Request(t.Context(), "$JS.API."+what, nil, raw)
	if err == nil {
		err = json.Unmarshal(m.Data, &answer)
	}
	if err != nil || answer["error"] != nil {
		t.Fatalf("%s: %v %v", what, err, answer["error"])
	}
	return answer
}

// A stream with a wrong configuration stops every daemon that starts on it, and a missing stream is
// created.
func TestStreamsAreCheckedAtStart(t *testing.T) {
	f, _ := counted(t, natstest.Server(t, natstest.Fast))
	f.close()
	agent := f.connect("operator")
	defer agent.Close()
	const name = "TOOLFLEET_CALLS"
	config := jetStream(t, agent, "STREAM.INFO."+name, nil)["config"].(map[string]any)
	jetStream(t, agent, "STREAM.DELETE."+name, nil)
	config["discard"] = "old"
	jetStream(t, agent, "STREAM.CREATE."+name, config)

	c, err := coordinator.New(agent, coordinator.Config{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := worker.New(agent, f.tools, worker.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for who, run := range map[string]func(context.Context) error{"coordinator": c.Run, "worker": w.Run} {
		err := run(t.Context())
		var mismatch *bus.Mismatch
		if !errors.As(err, &mismatch) {
			t.Errorf("the %s runs on a journal that forgets: %v", who, err)
			continue
		}
		says(t, who, err.Error(), name, "discard", "DiscardOld", "DiscardNew")
	}
	jetStream(t, agent, "STREAM.DELETE."+name, nil)
	jetStream(t, agent, "STREAM.DELETE.TOOLFLEET_JOBS", nil)

	again, runs := counted(t, f.srv)
	defer again.close()
	again.run(canonical("s", "b", call{"count", ""}))
	if runs.Load() != 1 {
		t.Errorf("after the streams were made again a write ran %d times", runs.Load())
	}
}

// An operator deletes a stream with durable data while the fleet runs. No daemon creates it again,
// not even one that starts later. No reply is invented, and the log names the stream until an
// operator acts.
func TestAStreamIsDeletedWhileTheFleetRuns(t *testing.T) {
	for _, stream := range []string{bus.Batches, bus.Calls, bus.Replies} {
		t.Run(stream, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				log := &lockedBuffer{}
				f := newFleet(t, srv)
				defer f.close()
				f.log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))
				gate := make(chan struct{})
				runs := bounded(f, bus.Provision{}, gate)
				b := canonical("s", "b", call{"put", ""}, call{"echo", `{"n":1}`})
				f.submit(b)
				f.until("the write runs", func() bool { return runs.Load() == 1 })
				name := f.conn.Names().Stream(stream)
				jetStream(t, f.conn, "STREAM.DELETE."+name, nil)
				close(gate)
				// Without the log a running batch still ends, and its reply is stored.
				if reply, err := f.await(b, 5*time.Minute); err == nil && (stream != bus.Batches || len(reply.Results) != 2) {
					t.Errorf("a reply without %s: %s", name, rawjson.MustMarshal(reply))
				}
				if _, err := f.conn.First(context.Background(), name, ">"); !errors.Is(err, bus.ErrNoStream) {
					t.Errorf("%s was made anew: %v", name, err)
				}
				says(t, "the log", log.String(), "level=WARN", name[len("TOOLFLEET_"):])
				c, err := coordinator.New(f.conn, coordinator.Config{})
				if err != nil {
					t.Fatal(err)
				}
				w, err := worker.New(f.conn, f.tools, worker.Config{})
				if err != nil {
					t.Fatal(err)
				}
				for who, run := range map[string]func(context.Context) error{"coordinator": c.Run, "worker": w.Run} {
					ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
					says(t, "a "+who+" that starts", fmt.Sprint(run(ctx)), "stream "+name+" is gone", "restore it from a backup")
					cancel()
				}
				if runs.Load() != 1 {
					t.Errorf("the write ran %d times", runs.Load())
				}
			})
		})
	}
}

// Consumers and jobs are only hints. After an operator deletes them, the daemons that use them log
// that and create them again, and accepted batches go on.
func TestHintsThatAreDeletedAreMadeAgain(t *testing.T) {
	for _, what := range []string{"CONSUMER.DELETE.TOOLFLEET_BATCHES.coordinators", "CONSUMER.DELETE.TOOLFLEET_JOBS.default", "STREAM.DELETE.TOOLFLEET_JOBS"} {
		t.Run(what, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				log := &lockedBuffer{}
				f := newFleet(t, srv)
				defer f.close()
				f.log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))
				runs := bounded(f, bus.Provision{}, nil)
				jetStream(t, f.conn, what, nil)
				b := canonical("s", "b", call{"put", ""}, call{"echo", `{"n":1}`})
				f.submit(b)
				f.until("it is said", func() bool { return strings.Contains(log.String(), "no such consumer") })
				reply, err := f.await(b, 5*time.Minute)
				if err != nil || reply.Results[0].Status != messages.StatusOK || reply.Results[1].Status != messages.StatusOK || runs.Load() != 1 {
					t.Errorf("%s, %v, after %d runs of the write", rawjson.MustMarshal(reply), err, runs.Load())
				}
			})
		})
	}
}
