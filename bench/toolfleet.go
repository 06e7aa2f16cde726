package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/client"
	fleetpkg "github.com/toolfleet/toolfleet/fleet"
	"github.com/toolfleet/toolfleet/messages"
)

// tools is the tools file. The tools return their input. nap sleeps first.
const tools = `tools:
  - {name: look, builtin: noop, kind: read}
  - {name: change, builtin: noop, kind: write}
  - {name: nap, builtin: sleep, kind: read, timeout: 1h}
`

// startServer starts `toolfleet nats`. It is the server of the floor too.
func startServer(f *fleet, binary string) error {
	f.addr = freeAddr()
	server, err := f.start("server", f.command(binary, "nats", "--listen", f.addr, "--data", filepath.Join(f.dir, "nats"), "--sync", f.sync))
	if err != nil {
		return err
	}
	if err := server.listens(f.addr); err != nil {
		return err
	}
	for _, t := range f.taps {
		if err := t.listen(f.addr); err != nil {
			return err
		}
		f.closers = append(f.closers, t.close)
	}
	return nil
}

// command returns a command of a toolfleet binary, with the settings of the fleet only.
func (f *fleet) command(binary string, args ...string) *exec.Cmd {
	cmd := exec.Command(binary, args...)
	cmd.Dir = f.dir
	for _, pair := range os.Environ() {
		if !strings.HasPrefix(pair, "TOOLFLEET_") && !strings.HasPrefix(pair, "NATS_") && !strings.HasPrefix(pair, "OTEL_") {
			cmd.Env = append(cmd.Env, pair)
		}
	}
	cmd.Env = append(cmd.Env, "TOOLFLEET_SERVER_MAX_PAYLOAD=8MB", "TOOLFLEET_UNSAFE_SYNC=true", "TOOLFLEET_LOG_LEVEL=warn")
	cmd.Env = append(cmd.Env, f.env...)
	return cmd
}

// startDaemons starts server, coordinator and workers of a build, with metrics and the audit log.
func startDaemons(f *fleet, binary string) error {
	if err := startServer(f, binary); err != nil {
		return err
	}
	file := filepath.Join(f.dir, "tools.yaml")
	if err := os.WriteFile(file, []byte(tools), 0o600); err != nil {
		return err
	}
	daemon := func(args ...string) error {
		http := freeAddr()
		p, err := f.start(args[0], f.command(binary, append(args, "--nats", f.url(args[0]), "--http", http)...))
		if err != nil {
			return err
		}
		return p.isReady(http)
	}
	if err := daemon("coordinator"); err != nil {
		return err
	}
	for range f.workers {
		if err := daemon("worker", "--tools", file, "--slots", strconv.Itoa(f.slots)); err != nil {
			return err
		}
	}
	return nil
}

// startToolfleet starts a build. Its client publishes batches, and has one subscription to the
// replies of all its sessions.
func startToolfleet(f *fleet, binary string) error {
	if err := startDaemons(f, binary); err != nil {
		return err
	}
	agent, err := connect(f)
	if err != nil {
		return err
	}
	conn, err := nats.Connect(f.url("client"))
	if err != nil {
		return err
	}
	f.closers = append(f.closers, conn.Close)
	var in mailboxes
	_, err = conn.Subscribe("toolfleet.reply._.*.*", func(m *nats.Msg) {
		session, _ := strconv.Atoi(strings.Split(m.Subject, ".")[3])
		in.of(session) <- m.Data
	})
	f.submit = func(ctx context.Context, l load, session int, n uint64) error {
		batch := l.message(session, n)
		for agent.Submit(ctx, batch) != nil { // no answer in time; submitting again is safe
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
		return in.await(ctx, session, func(body []byte) (bool, error) {
			var reply messages.Reply
			if err := json.Unmarshal(body, &reply); err != nil {
				return true, err
			}
			return reply.Batch == batchID(n), l.complete(reply)
		})
	}
	return err
}

// startRun starts a build whose client uses Client.Run, so it also gets the events.
func startRun(f *fleet, binary string) error {
	if err := startDaemons(f, binary); err != nil {
		return err
	}
	agent, err := connect(f)
	if err != nil {
		return err
	}
	f.submit = func(ctx context.Context, l load, session int, n uint64) error {
		reply, err := agent.Run(ctx, l.message(session, n))
		if err != nil {
			return err
		}
		return l.complete(reply)
	}
	return nil
}

// startTraced starts a build that exports the spans of every batch.
func startTraced(f *fleet, binary string) error {
	addr := freeAddr()
	if err := f.child("collector", "collector", addr); err != nil {
		return err
	}
	f.processes[len(f.processes)-1].counted = false
	f.env = append(f.env, "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+addr, "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf")
	return startToolfleet(f, binary)
}

// collector accepts spans and drops them.
func collector(addr string) error {
	go func() {
		_ = http.ListenAndServe(addr, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "application/x-protobuf")
		}))
	}()
	return nil
}

func connect(f *fleet) (*client.Client, error) {
	agent, err := client.Connect(context.Background(), fleetpkg.Options{URL: f.url("client")})
	if err != nil {
		return nil, err
	}
	f.closers = append(f.closers, agent.Close)
	return agent, nil
}

func batchID(n uint64) messages.BatchID { return messages.BatchID(fmt.Sprint("b", n)) }

// message returns the batch of a session: a message of Anthropic with its calls.
func (l load) message(session int, n uint64) messages.Batch {
	type block struct {
		Type  string         `json:"type"`
		ID    string         `json:"id"`
		Name  string         `json:"name"`
		Input map[string]any `json:"input"`
	}
	input := map[string]any{"text": l.input()}
	read := "look"
	if l.sleep > 0 {
		read, input["ms"] = "nap", l.sleep.Milliseconds()
	}
	blocks := make([]block, l.calls())
	for i := range blocks {
		blocks[i] = block{"tool_use", fmt.Sprint("toolu_", i), read, input}
		if i >= l.reads {
			blocks[i].Name = "change"
		}
	}
	body, err := json.Marshal(map[string]any{"role": "assistant", "content": blocks})
	if err != nil {
		panic(err)
	}
	return messages.Batch{ID: batchID(n), Session: messages.SessionID(strconv.Itoa(session)), Provider: messages.Anthropic, Message: body}
}

// complete reports what a reply lacks.
func (l load) complete(reply messages.Reply) error {
	if reply.Status != messages.ReplyCompleted || len(reply.Results) != l.calls() {
		return fmt.Errorf("%s: %s with %d results: %v", reply.Batch, reply.Status, len(reply.Results), reply.Error)
	}
	for _, r := range reply.Results {
		if r.Status != messages.StatusOK {
			return fmt.Errorf("%s: call %d is %s: %v", reply.Batch, r.Index, r.Status, r.Outcome)
		}
	}
	if least := l.calls() * l.bytes; l.sleep == 0 && len(reply.Reinjection) < least {
		return fmt.Errorf("%s: %d bytes to append, want at least %d", reply.Batch, len(reply.Reinjection), least)
	}
	return nil
}
