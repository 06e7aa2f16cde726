package natstest

import (
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/devserver"
)

// Nodes is how many servers a [Cluster] has. It equals the number of replicas of a stream.
const Nodes = 3

// within limits every wait for a cluster: for a leader, or for a node that restarts.
const within = time.Minute

// Cluster is three servers in this process that replicate streams. They are connected by real
// routes on the loopback interface, and each has its own folder. A cluster needs real time, so
// it cannot be used inside a bubble. Its methods are for one goroutine at a time.
type Cluster struct {
	tb    testing.TB
	nodes [Nodes]*node
}

type node struct {
	opts *server.Options
	srv  *server.Server
	log  *lastError // the newest error of srv
}

// lastError is a server's log that keeps only the last error, which explains a failed start.
type lastError struct {
	// Logger stays nil. The server calls only the methods below, which lastError has itself.
	server.Logger
	last atomic.Pointer[string]
}

func (l *lastError) Noticef(string, ...any) {}
func (l *lastError) Warnf(string, ...any)   {}
func (l *lastError) Errorf(text string, of ...any) {
	line := fmt.Sprintf(text, of...)
	l.last.Store(&line)
}
func (l *lastError) Fatalf(text string, of ...any) { l.Errorf(text, of...) }

func (l *lastError) String() string {
	if line := l.last.Load(); line != nil {
		return *line
	}
	return "it reports no error"
}

// StartCluster starts a cluster that ends with the test. It returns when the cluster has a
// leader.
func StartCluster(tb testing.TB, options ...Option) *Cluster {
	tb.Helper()
	var o devserver.Options
	for _, set := range options {
		set(&o)
	}
	c := &Cluster{tb: tb}
	meet := freePort(tb)
	for i := range c.nodes {
		opts := &server.Options{
			ServerName: fmt.Sprint("n", i), JetStream: true, StoreDir: DataDir(tb), SyncAlways: o.SyncInterval == 0, SyncInterval: o.SyncInterval,
			MaxPayload: server.MAX_PAYLOAD_SIZE, MaxControlLine: server.MAX_CONTROL_LINE_SIZE, NoSigs: true, NoLog: true,
			Host: "127.0.0.1", Port: freePort(tb),
			Cluster: server.ClusterOpts{Name: "cluster", Host: "127.0.0.1", Port: freePort(tb)},
			Routes:  []*url.URL{{Scheme: "nats", Host: fmt.Sprint("127.0.0.1:", meet)}},
		}
		if i == 0 {
			opts.Cluster.Port = meet
		}
		c.nodes[i] = &node{opts: opts}
		c.begin(i)
		tb.Cleanup(func() { c.Stop(i) })
	}
	for i := range c.nodes {
		c.ready(i)
	}
	c.until("the cluster has a leader", func() bool {
		for _, n := range c.nodes {
			if n.srv.JetStreamIsLeader() && len(n.srv.JetStreamClusterPeers()) == Nodes {
				return true
			}
		}
		return false
	})
	return c
}

// freePort returns a port that belongs to the test until it ends, so that a restarted node
// keeps its address.
func freePort(tb testing.TB) int {
	tb.Helper()
	addr, err := net.ResolveTCPAddr("tcp", FreeAddr(tb))
	if err != nil {
		tb.Fatal(err)
	}
	return addr.Port
}

// begin starts a node and does not wait until it is ready.
func (c *Cluster) begin(i int) {
	c.tb.Helper()
	srv, err := server.NewServer(c.nodes[i].opts.Clone())
	if err != nil {
		c.tb.Fatalf("configure node %d: %v", i, err)
	}
	c.nodes[i].srv, c.nodes[i].log = srv, &lastError{}
	srv.SetLoggerV2(c.nodes[i].log, false, false, false)
	srv.Start()
}

func (c *Cluster) ready(i int) {
	c.tb.Helper()
	if !c.nodes[i].srv.ReadyForConnections(within) {
		c.tb.Fatalf("node %d does not come up: %v", i, c.nodes[i].log)
	}
}

// URL returns the addresses of all nodes, for a client that may use any node.
func (c *Cluster) URL() string {
	all := make([]string, Nodes)
	for i := range all {
		all[i] = c.URLOf(i)
	}
	return strings.Join(all, ",")
}

// URLOf returns the address of one node. A connected client learns the addresses of the other
// nodes, and moves to one of them when this node stops.
func (c *Cluster) URLOf(i int) string { return fmt.Sprint("nats://127.0.0.1:", c.nodes[i].opts.Port) }

// Leader returns the node that leads a stream, and waits until there is one.
func (c *Cluster) Leader(stream string) int {
	c.tb.Helper()
	leader := -1
	c.until("stream "+stream+" has a leader", func() bool {
		leader = c.leader(stream)
		return leader >= 0
	})
	return leader
}

// leader returns the node that leads a stream at this moment, or -1 if no node does.
func (c *Cluster) leader(stream string) int {
	for i, n := range c.nodes {
		if n.srv != nil && n.srv.JetStreamIsStreamLeader(server.DEFAULT_GLOBAL_ACCOUNT, stream) {
			return i
		}
	}
	return -1
}

// Follower returns a running node that does not lead the stream.
func (c *Cluster) Follower(stream string) int {
	c.tb.Helper()
	leader := c.Leader(stream)
	for i, n := range c.nodes {
		if i != leader && n.srv != nil {
			return i
		}
	}
	c.tb.Fatalf("stream %s has no follower", stream)
	return -1
}

// StepDown makes the leader of a stream step down, and returns when another node leads. The
// old leader may be elected again at once, because the other nodes are behind. Then StepDown
// makes it step down again. StepDown returns the node that led before.
func (c *Cluster) StepDown(stream string) (leader int) {
	c.tb.Helper()
	leader = c.Leader(stream)
	nc, err := nats.Connect(c.URLOf(leader), nats.Timeout(within))
	if err != nil {
		c.tb.Fatal(err)
	}
	defer nc.Close()
	c.until(fmt.Sprintf("another node than %d leads stream %s", leader, stream), func() bool {
		now := c.leader(stream)
		// The answer does not matter: the loop looks at which node leads.
		if now == leader {
			_, _ = nc.Request("$JS.API.STREAM.LEADER.STEPDOWN."+stream, nil, time.Second)
		}
		return now >= 0 && now != leader
	})
	return leader
}

// Stop takes a node down and waits until it is gone. Its folder stays.
func (c *Cluster) Stop(i int) {
	n := c.nodes[i]
	if n.srv == nil {
		return
	}
	n.srv.Shutdown()
	n.srv.WaitForShutdown()
	n.srv = nil
}

// Restart starts a node again with its folder and on its address. If the node runs, Restart
// stops it first. The node may still be behind when Restart returns: see [Cluster.Current].
func (c *Cluster) Restart(i int) {
	c.tb.Helper()
	c.Stop(i)
	c.begin(i)
	c.ready(i)
}

// Current returns when a node has all messages of a stream.
func (c *Cluster) Current(i int, stream string) {
	c.tb.Helper()
	c.until(fmt.Sprintf("node %d holds all of stream %s", i, stream), func() bool {
		return c.nodes[i].srv.JetStreamIsStreamCurrent(server.DEFAULT_GLOBAL_ACCOUNT, stream)
	})
}

func (c *Cluster) until(what string, is func() bool) {
	c.tb.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(within); !is(); <-tick.C {
		if time.Now().After(end) {
			c.tb.Fatalf("waited in vain until %s", what)
		}
	}
}
