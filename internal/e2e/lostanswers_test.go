package e2e

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
)

// The acknowledgement of a lease renewal is lost, and the tool ends well. Its result is kept.
func TestALostAckOfARenewalLosesNoResult(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var n atomic.Int64
		sleepTool(f, "pay", messages.KindWrite, time.Minute, messages.OnCrashOnce, &n)
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		b := canonical("s", "b", call{"pay", `{"ms":2000}`})
		f.submit(b)
		f.until("the write runs", func() bool { return n.Load() == 1 })
		j := journal.New(f.conn)
		key := wire.KeyOf("_", "s", "b").Call(0)
		claim, found, err := j.Newest(context.Background(), key)
		if err != nil || !found {
			t.Fatal(found, err)
		}
		// The record of a renewal is stored, but its acknowledgement never reached the worker.
		renewed := claim.Record
		renewed.State, renewed.Nonce, renewed.Fence = wire.Renewed, "lost", claim.Seq
		if _, err := j.Write(context.Background(), key, renewed, claim.Seq); err != nil {
			t.Fatal(err)
		}
		reply, err := f.await(b, 5*time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if got := reply.Results[0]; got.Status != messages.StatusOK {
			t.Errorf("the tool ended well; the result is %s: %v", got.Status, got.Err)
		}
	})
}

// The server is down for a second when a tool ends. The result is not lost.
func TestTheServerIsAwayWhenAToolEnds(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var n atomic.Int64
		sleepTool(f, "pay", messages.KindWrite, time.Minute, messages.OnCrashOnce, &n)
		f.worker(worker.Config{})
		f.coordinator(coordinator.Config{})
		b := canonical("s", "b", call{"pay", `{"ms":1500}`})
		f.submit(b)
		f.until("the write runs", func() bool { return n.Load() == 1 })
		time.Sleep(time.Second)
		srv.Stop()
		time.Sleep(time.Second)
		if err := srv.Restart(); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		var reply messages.Reply
		var err error
		for range 100 {
			if reply, err = f.await(b, time.Minute); err == nil {
				break
			}
			time.Sleep(time.Second)
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := reply.Results[0]; got.Status != messages.StatusOK {
			t.Errorf("the tool ended well; %v after the restart the result is %s: %v", time.Since(began), got.Status, got.Err)
		}
	})
}

// A server is killed while a worker settles a delivery. After its restart it delivers the job
// again at once. A worker that still runs the call recognises the job, and any other worker
// finds the claim of the call.
func TestEarlyRedeliveryAfterAServerKill(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		f := newFleet(t, srv)
		defer f.close()
		var l writeLog
		l.tools(f)
		for range 4 {
			f.worker(worker.Config{Slots: 2})
		}
		f.coordinator(coordinator.Config{})
		f.coordinator(coordinator.Config{})
		var p publishLog
		for n := range 3 {
			p.publish(f, f.conn, canonical("s", fmt.Sprint("b", n), call{"put", `{"ms":4000}`}, call{"count", `{"ms":100}`}, call{"put", `{"ms":4000}`}))
		}
		for range 4 {
			time.Sleep(3 * time.Second) // simulated
			if err := srv.Restart(); err != nil {
				t.Fatal(err)
			}
		}
		for n := range 3 {
			reply, err := f.await(canonical("s", fmt.Sprint("b", n)), 10*time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range reply.Results {
				if r.Status != messages.StatusOK || r.Kind == messages.KindWrite && r.Attempt != 1 {
					t.Errorf("batch %d: %+v", n, r)
				}
			}
		}
		l.checkLogOrder(t, p.log(), 0, 2)
	})
}

// cutter connects to a server and cuts the connection once, right after a message that
// contains what: the server has the message, but its answer is lost.
type cutter struct {
	srv  *devserver.Server
	what string
	done atomic.Bool
}

func (c *cutter) InProcessConn() (net.Conn, error) {
	conn, err := c.srv.InProcessConn()
	return &cutConn{conn, c}, err
}

type cutConn struct {
	net.Conn
	*cutter
}

func (c *cutConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err == nil && strings.Contains(string(b), c.what) && c.done.CompareAndSwap(false, true) {
		err = c.Close()
	}
	return n, err
}

// A message is stored, and its acknowledgement is lost. The sender finds that the message is
// stored: no write runs twice, and none is reported as lost. The texts name the publish
// itself, because requests that create or read a stream name its subjects too.
func TestALostPubAck(t *testing.T) {
	for name, tt := range map[string]struct {
		what   string
		worker bool // cuts off the worker, else the coordinator
	}{
		"of a claim":       {`"state":"claimed"`, true},
		"of a renewal":     {`"state":"renewed"`, true},
		"of a result":      {`"state":"ended"`, true},
		"of a read result": {"PUB toolfleet.result.", true},
		"of a plan":        {"PUB toolfleet.plan.", false},
		"of a job":         {"PUB toolfleet.write.", false},
		"of a reply":       {"PUB toolfleet.final.", false},
	} {
		t.Run(name, func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
				f := newFleet(t, srv)
				defer f.close()
				var l writeLog
				l.tools(f)
				cut := &cutter{srv: srv, what: tt.what}
				conn, err := bus.Connect(context.Background(), bus.Options{InProcess: cut, Name: "cut", Logger: f.log})
				if err != nil {
					t.Fatal(err)
				}
				if tt.worker {
					w, err := worker.New(conn, f.tools, worker.Config{})
					if err != nil {
						t.Fatal(err)
					}
					f.start(conn, w.Run)
					f.coordinator(coordinator.Config{})
				} else {
					c, err := coordinator.New(conn, coordinator.Config{})
					if err != nil {
						t.Fatal(err)
					}
					f.worker(worker.Config{})
					f.start(conn, c.Run)
					f.until("the coordinator is ready", c.Ready)
				}
				b := canonical("s", "b", call{"count", `{"ms":10}`}, call{"put", `{"ms":8000}`}, call{"put", `{"ms":10}`})
				f.submit(b)
				began := time.Now()
				reply, err := f.await(b, 10*time.Minute)
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range reply.Results {
					if r.Status != messages.StatusOK || r.Attempt != 1 {
						t.Errorf("%s: %+v", r.Tool, r)
					}
				}
				// The puts take 8 s. If the delivery is lost too, it is repeated after
				// ack_wait, which is 10 s.
				if took := time.Since(began); took > 25*time.Second {
					t.Errorf("done after %v", took)
				}
				f.until("the connection was cut", cut.done.Load) // the reply may come before the cut
				l.checkLogOrder(t, map[messages.SessionID][]messages.BatchID{"s": {"b"}}, 1, 2)
			})
		})
	}
}
