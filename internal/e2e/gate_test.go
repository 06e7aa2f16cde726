package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/toolfleet/toolfleet/client"
	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// gate is a tool whose runs wait until the test closes open, or until they are stopped.
type gate struct {
	runs, stopped atomic.Int32
	probes        atomic.Int32
	applied       atomic.Bool // answer of the probe, if the tool is checkable
	open          chan struct{}
}

// gated registers a tool whose runs wait at a gate. A call with the input {"through":true}
// does not wait.
func (f *fleet) gated(promise schemas.Tool) *gate {
	f.t.Helper()
	g := &gate{open: make(chan struct{})}
	if promise.TimeoutMS == 0 {
		promise.TimeoutMS = 600_000
	}
	run := func(ctx context.Context, c tool.Call) (tool.Output, error) {
		g.runs.Add(1)
		if strings.Contains(string(c.Input), "through") {
			return tool.Text("through"), nil
		}
		select {
		case <-g.open:
			return tool.Text("let through"), nil
		case <-ctx.Done():
			g.stopped.Add(1)
			return tool.Output{}, ctx.Err()
		}
	}
	runner := tool.NewProber(run, func(context.Context, tool.Call) (tool.Probed, error) {
		g.probes.Add(1)
		return tool.Probed{Applied: g.applied.Load()}, nil
	})
	if err := f.tools.Add(promise, runner); err != nil {
		f.t.Fatal(err)
	}
	return g
}

// through is the input of a call that does not wait at a gate.
const through = `{"through":true}`

func (f *fleet) atGate(g *gate, n int) {
	f.t.Helper()
	f.until(fmt.Sprintf("%d runs wait at the gate", n), func() bool { return int(g.runs.Load()) == n })
}

var byOps = client.Reason{By: "ops", Text: "wrong account"}

// abort aborts a batch, or all batches of the session if the id is empty.
func (f *fleet) abort(session, id string) {
	f.t.Helper()
	abort := func() (uint64, error) {
		if id == "" {
			return f.client.AbortSession(context.Background(), messages.SessionID(session), byOps)
		}
		return f.client.Abort(context.Background(), messages.SessionID(session), messages.BatchID(id), byOps)
	}
	seq, err := abort()
	if err != nil || seq == 0 {
		f.t.Fatalf("abort %s of %s: sequence %d, err %v", id, session, seq, err)
	}
}

// reply waits for the reply of a batch. It fails the test if there is none within the given
// time.
func (f *fleet) reply(b messages.Batch, within time.Duration) messages.Reply {
	f.t.Helper()
	reply, err := f.await(b, within)
	if err != nil {
		f.t.Fatalf("batch %s: no reply within %v: %v", b.ID, within, err)
	}
	return reply
}

func (f *fleet) wantStatuses(r messages.Reply, want string) {
	f.t.Helper()
	if got := statuses(r); got != want {
		f.t.Errorf("batch %s ended with %q, want %q", r.Batch, got, want)
		for _, result := range r.Results {
			f.t.Logf("%d %s: %v", result.Index, result.Status, result.Err)
		}
	}
}

// wantWords checks that the error message of a result contains these words.
func (f *fleet) wantWords(r messages.Result, words ...string) {
	f.t.Helper()
	for _, w := range words {
		if r.Err == nil || !strings.Contains(r.Err.Message, w) {
			f.t.Errorf("call %d, %s: the message is %+v, want %q in it", r.Index, r.Status, r.Err, w)
		}
	}
}

// killableCoordinator starts a coordinator. kill closes its connection without a warning, as a
// crash does.
func (f *fleet) killableCoordinator(cfg coordinator.Config) (kill func()) {
	f.t.Helper()
	conn := f.connect("mortal coordinator")
	cfg.Logger, cfg.Drain = f.log, time.Millisecond
	c, err := coordinator.New(conn, cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	p := f.start(conn, c.Run)
	f.until("the coordinator is ready", c.Ready)
	return func() { conn.Close(); p.stop() }
}

// garblingServer is a connection to a server. It garbles the first requests that contain the
// given words, so that the server refuses them.
type garblingServer struct {
	*devserver.Server
	words string
	left  atomic.Int32
}

func (g *garblingServer) InProcessConn() (net.Conn, error) {
	conn, err := g.Server.InProcessConn()
	return garbledConn{conn, g}, err
}

type garbledConn struct {
	net.Conn
	*garblingServer
}

func (g garbledConn) Write(data []byte) (int, error) {
	if g.left.Load() > 0 && bytes.Contains(data, []byte(g.words)) {
		g.left.Add(-1)
		data = bytes.Replace(data, []byte(g.words), bytes.Repeat([]byte("?"), len(g.words)), 1)
	}
	return g.Conn.Write(data)
}
