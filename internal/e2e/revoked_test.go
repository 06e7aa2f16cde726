package e2e

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/e2e/fleettest"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// The key of a worker is revoked while it runs calls. The server cuts the worker off, its
// calls end like those of a lost worker, and other workers go on.
func TestRevokedCredentials(t *testing.T) {
	t.Parallel()
	// There is a data race inside nats-server: a reload compares the counters of accounts
	// while they change.
	if fleettest.RaceDetector {
		t.Skip("a reload of the server's configuration races inside nats-server")
	}
	ids := natstest.NewIdentities(t)
	f := newIdentified(t, natstest.Server(t, natstest.Fast, natstest.Listening, ids.Option), ids)
	defer f.close()
	soon := worker.Config{AckWait: 500 * time.Millisecond, Lease: 500 * time.Millisecond, Grace: 100 * time.Millisecond, Drain: time.Millisecond}
	var runs atomic.Int32
	hang := func(ctx context.Context, c tool.Call) (tool.Output, error) {
		if runs.Add(1) > 2 { // the runs of the second worker
			return tool.Text("done"), nil
		}
		<-ctx.Done()
		return tool.Output{}, ctx.Err()
	}
	f.tool(schemas.Tool{Name: "look", Kind: messages.KindRead, TimeoutMS: 3_600_000}, hang)
	f.tool(schemas.Tool{Name: "pay", TimeoutMS: 3_600_000}, hang)
	f.coordinator(coordinator.Config{AckWait: soon.AckWait, Grace: soon.Grace})
	revoked := f.failingWorker(soon)
	read, write := canonical("reads", "b", call{"look", ""}), canonical("writes", "b", call{"pay", ""})
	f.submit(read)
	f.submit(write)
	f.until("the read and the write run", func() bool { return runs.Load() == 2 })

	old := f.ids.Seed("worker")
	f.ids.Renew("worker")
	if err := f.srv.Reload(); err != nil {
		t.Fatal(err)
	}
	f.worker(worker.Config{AckWait: soon.AckWait}) // this worker has the default lease
	f.wantStatuses(f.reply(read, time.Minute), "ok")
	f.wantStatuses(f.reply(write, time.Minute), "outcome_unknown")
	if runs.Load() != 3 {
		t.Errorf("%d runs, want one of the write and two of the read", runs.Load())
	}
	if err := <-revoked; err == nil || !strings.Contains(err.Error(), "lets this user in no more") {
		t.Errorf("the worker ended with %v", err)
	}
	f.wantStatuses(f.run(canonical("later", "b", call{"look", ""}, call{"pay", ""})), "ok ok")
	if conn, err := bus.Connect(t.Context(), bus.Options{URL: f.srv.URL(), NKey: old, InboxPrefix: f.ids.Inbox("worker")}); err == nil {
		conn.Close()
		t.Error("the old key still opens a connection")
	}
}

// failingWorker starts a worker that is expected to end with an error, and returns that error.
func (f *identified) failingWorker(cfg worker.Config) <-chan error {
	conn := f.connect("worker")
	cfg.Logger = f.log
	w, err := worker.New(conn, f.tools, cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	ended := make(chan error, 1)
	f.start(conn, func(ctx context.Context) error {
		ended <- w.Run(ctx)
		return nil
	})
	return ended
}

// The key of a coordinator is revoked in the middle of a batch. The coordinator ends with an
// error, and another one continues the batch.
func TestARevokedCoordinatorEnds(t *testing.T) {
	t.Parallel()
	// There is a data race inside nats-server: a reload compares the counters of accounts
	// while they change.
	if fleettest.RaceDetector {
		t.Skip("a reload of the server's configuration races inside nats-server")
	}
	ids := natstest.NewIdentities(t)
	f := newIdentified(t, natstest.Server(t, natstest.Fast, natstest.Listening, ids.Option), ids)
	defer f.close()
	g := f.gated(schemas.Tool{Name: "look", Kind: messages.KindRead})
	soon := coordinator.Config{AckWait: 500 * time.Millisecond, Drain: time.Millisecond}
	conn := f.connect("coordinator")
	soon.Logger = f.log
	c, err := coordinator.New(conn, soon)
	if err != nil {
		t.Fatal(err)
	}
	revoked := make(chan error, 1)
	f.start(conn, func(ctx context.Context) error {
		revoked <- c.Run(ctx)
		return nil
	})
	f.worker(worker.Config{})
	f.until("the coordinator is ready", c.Ready)
	b := canonical("s", "b", call{"look", ""})
	f.submit(b)
	f.atGate(g, 1)
	f.ids.Renew("coordinator")
	if err := f.srv.Reload(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-revoked:
		if err == nil || !strings.Contains(err.Error(), "lets this user in no more") {
			t.Errorf("the coordinator ended with %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the coordinator does not end")
	}
	f.coordinator(soon)
	close(g.open)
	f.wantStatuses(f.reply(b, time.Minute), "ok")
}
