package bus_test

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/messages"
)

// restricted is a server as an operator would run it, whose one user may do little. It returns its URL.
func restricted(t *testing.T) string {
	t.Helper()
	return start(t, &server.Options{
		Users: []*server.User{{
			Username: "agent", Password: "secret",
			Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"forbidden"}}},
		}},
	})
}

// cluster is three servers that replicate. It returns the URL of one.
func cluster(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	meet := l.Addr().(*net.TCPAddr)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var all []*server.Options
	for i, port := range []int{meet.Port, server.RANDOM_PORT, server.RANDOM_PORT} {
		all = append(all, &server.Options{
			ServerName: fmt.Sprint("n", i), JetStream: true, StoreDir: t.TempDir(),
			Cluster: server.ClusterOpts{Name: "c", Host: "127.0.0.1", Port: port},
			Routes:  []*url.URL{{Scheme: "nats", Host: meet.String()}},
		})
	}
	return start(t, all...)
}

// start starts servers and waits until all are ready. It returns the URL of the first.
func start(t *testing.T, all ...*server.Options) string {
	t.Helper()
	var servers []*server.Server
	for _, o := range all {
		o.Host, o.Port, o.NoSigs, o.NoLog = "127.0.0.1", server.RANDOM_PORT, true, true
		srv, err := server.NewServer(o)
		if err != nil {
			t.Fatal(err)
		}
		srv.Start()
		t.Cleanup(func() {
			srv.Shutdown()
			srv.WaitForShutdown()
		})
		servers = append(servers, srv)
	}
	for _, srv := range servers {
		if !srv.ReadyForConnections(30 * time.Second) {
			t.Fatal("not ready")
		}
	}
	return servers[0].ClientURL()
}

// On three servers a writer that comes while another's write is being agreed on gets an error of its own (10164).
func TestReplicated(t *testing.T) {
	c, err := bus.Connect(t.Context(), bus.Options{URL: cluster(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Provision(t.Context(), bus.Provision{Replicas: 3}); err != nil {
		t.Fatal(err)
	}
	if err := c.Provision(t.Context(), bus.Provision{}); err != nil {
		t.Errorf("more replicas than asked for: %v", err)
	}
	codes := map[jetstream.ErrorCode]int{}
	for round := range 30 {
		subject := c.Names().OfCall(messages.VerbCall, key("s", "b").Call(round))
		var mu sync.Mutex
		var writers sync.WaitGroup
		winners := 0
		for range 8 {
			writers.Go(func() {
				_, err := c.CompareAndSet(t.Context(), subject, nil, []byte("mine"), 0)
				mu.Lock()
				defer mu.Unlock()
				var api *jetstream.APIError
				switch {
				case err == nil:
					winners++
				case errors.Is(err, bus.ErrConflict) && errors.As(err, &api):
					codes[api.ErrorCode]++
				default:
					t.Error(err)
				}
			})
		}
		writers.Wait()
		if winners != 1 {
			t.Fatalf("%d writers won", winners)
		}
		if _, err := c.LastFromLeader(t.Context(), c.Names().Stream(bus.Calls), subject); err != nil {
			t.Error(err)
		}
	}
	t.Logf("the losers were told: %v", codes)
	if codes[10164] == 0 {
		t.Error("no writer met another's write on its way (10164): this test is to show that it is a conflict like 10071")
	}
}
