package natstest_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/natstest"
)

// A stream survives a change of its leader and the loss of a node, which comes back and catches up.
func TestCluster(t *testing.T) {
	c := natstest.StartCluster(t, natstest.Fast)
	nc, err := nats.Connect(c.URL(), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}, Replicas: natstest.Nodes}); err != nil {
		t.Fatal(err)
	}
	var stored uint64
	publish := func() {
		t.Helper()
		for { // no node answers until there is a leader
			ack, err := js.Publish(ctx, "s", nil, jetstream.WithRetryAttempts(0))
			if err == nil {
				stored = ack.Sequence
				return
			}
			if !sleep(ctx, 10*time.Millisecond) {
				t.Fatal(err)
			}
		}
	}
	publish()
	if before := c.StepDown("S"); c.Leader("S") == before {
		t.Errorf("node %d stepped down and still leads", before)
	}
	publish()
	lost := c.Leader("S")
	c.Stop(lost)
	if c.Leader("S") == lost || c.Follower("S") == lost {
		t.Error("a node that was stopped takes part")
	}
	publish()
	c.Restart(lost)
	c.Current(lost, "S")
	publish()
	s, err := js.Stream(ctx, "S")
	if err != nil {
		t.Fatal(err)
	}
	for {
		info, err := s.Info(ctx)
		if err == nil && (info.State.LastSeq != stored || info.State.Msgs < 4 || len(info.Cluster.Replicas) != natstest.Nodes-1) {
			t.Fatalf("%+v of %+v; want every message up to %d", info.State, info.Cluster, stored)
		}
		behind := func(p *jetstream.PeerInfo) bool { return !p.Current || p.Offline || p.Lag > 0 }
		if err == nil && !slices.ContainsFunc(info.Cluster.Replicas, behind) {
			return
		}
		if !sleep(ctx, 10*time.Millisecond) {
			t.Fatalf("%+v, %v; want every node to catch up", info, err)
		}
	}
}
