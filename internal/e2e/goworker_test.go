package e2e

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/toolfleet/toolfleet/coordinator"
	connection "github.com/toolfleet/toolfleet/fleet"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker"
	"github.com/toolfleet/toolfleet/worker/hook"
)

// transfer is the input of a write. The tool sees the amount with the digits that the model
// wrote.
type transfer struct {
	To     string      `json:"to"`
	Amount json.Number `json:"amount"`
}

type transferred struct {
	To     string      `json:"to"`
	Amount json.Number `json:"amount"`
	Key    string      `json:"key"`
}

// A program with tools in Go joins a fleet whose server asks for credentials. The worker and
// the coordinator have the same policy file.
func TestAWorkerInGoJoinsAFleet(t *testing.T) {
	t.Parallel()
	ids := natstest.NewIdentities(t)
	f := newIdentified(t, natstest.Server(t, natstest.Listening, ids.Option), ids)
	defer f.close()
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(policy, []byte("deny: [{tool: transfer, name: no-mallory, when: input.to == \"mallory\", reason: never}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.coordinator(coordinator.Config{Policy: platformPolicy(t, policy)})

	var tries atomic.Int32
	tools := []worker.Tool{
		worker.New("transfer", "Moves money.", worker.Write, func(ctx context.Context, in transfer) (transferred, error) {
			return transferred{in.To, in.Amount, worker.CallOf(ctx).IdempotencyKey}, nil
		}, worker.Idempotent()),
		worker.New("flaky", "Fails once.", worker.Compute, func(ctx context.Context, _ struct{}) (string, error) {
			worker.Progress(ctx, 0.5, "half")
			if tries.Add(1) == 1 {
				return "", worker.TryAgain(worker.Errorf("busy", "not now"))
			}
			return "done", nil
		}, worker.Retry(2, 1, 1)),
	}
	var said lockedBuffer
	ready := make(chan struct{})
	ctx, stop := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		err := worker.Run(ctx, worker.Options{
			Fleet:  connection.Options{URL: f.srv.URL(), NKey: ids.Seed("worker"), InboxPrefix: ids.Inbox("worker")},
			Policy: policy,
			Hooks: []hook.Hook{{Name: "greets", Match: "flaky", After: func(context.Context, hook.Call, hook.Done) (hook.Change, error) {
				return hook.Change{Context: "from a hook"}, nil
			}}},
			Name:    "in-go",
			OnReady: func() { close(ready) },
			Logger:  slog.New(slog.NewTextHandler(&said, nil)),
		}, tools...)
		if err != nil {
			t.Error("the worker ended with:", err)
		}
	})
	defer serving.Wait()
	defer stop()
	f.until("the worker is ready", func() bool {
		select {
		case <-ready:
			return true
		default:
			return false
		}
	})

	reply := f.run(canonical("s", "b", call{"transfer", `{"to":"alice","amount":10.50}`}, call{"transfer", `{"to":"mallory","amount":1}`},
		call{"flaky", ""}, call{"transfer", `{"to":"alice","amount":"1"}`}))
	f.wantStatuses(reply, "ok denied ok validation_error")
	for _, want := range []string{`{"to":"alice","amount":10.50,"key":"`, `"done`, "from a hook"} {
		if !strings.Contains(string(reply.Reinjection), want) {
			t.Errorf("want %s in %s", want, reply.Reinjection)
		}
	}
	if got := reply.Results[2]; got.Attempt != 2 {
		t.Errorf("flaky: got %+v", got)
	}
	if log := said.String(); !strings.Contains(log, `msg="worker is ready" worker=in-go`) || strings.Contains(log, "WARN") && strings.Contains(log, "policy") {
		t.Errorf("the worker's log:\n%s", log)
	}

	// The server refuses a worker without a key.
	err := worker.Run(t.Context(), worker.Options{Fleet: connection.Options{URL: f.srv.URL()}, Policy: policy}, tools...)
	if err == nil || !strings.Contains(strings.ToLower(err.Error()), "authorization") {
		t.Errorf("without a key: got %v", err)
	}
}

// platformPolicy returns the version of a policy file in the form that coordinators keep.
func platformPolicy(t *testing.T, file string) string {
	t.Helper()
	cfg, err := config.Load(config.Sources{File: config.NoFile, Environ: func() []string { return []string{"TOOLFLEET_POLICY=" + file} }})
	if err != nil {
		t.Fatal(err)
	}
	p, err := cfg.ReadPolicy("", schemas.Rules{})
	if err != nil {
		t.Fatal(err)
	}
	return wire.PlatformPolicy(p.Version())
}
