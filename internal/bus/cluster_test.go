package bus_test

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/messages"
)

// replicated is a new cluster with all streams on all of its nodes.
func replicated(t *testing.T) *natstest.Cluster {
	t.Helper()
	cl := natstest.StartCluster(t, natstest.Fast)
	c := dial(t, cl.URL())
	if err := c.Provision(t.Context(), bus.Provision{Replicas: natstest.Nodes}); err != nil {
		t.Fatal(err)
	}
	return cl
}

func dial(t *testing.T, url string) *bus.Conn {
	t.Helper()
	c, err := bus.Connect(t.Context(), bus.Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// On three servers a writer that comes while another's write is being agreed on gets an error of its own (10164).
func TestReplicated(t *testing.T) {
	c := dial(t, replicated(t).URL())
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
	}
	t.Logf("the losers were told: %v", codes)
	if codes[10164] == 0 {
		t.Error("no writer met another's write on its way (10164): this test is to show that it is a conflict like 10071")
	}
}

// What was acknowledged is seen by whoever asks afterwards, also where the nearest replica has not got it yet.
func TestReadsAreCurrentBesideALaggingFollower(t *testing.T) {
	cl := replicated(t)
	const stream = "TOOLFLEET_CALLS"
	writer, reader := dial(t, cl.URLOf(cl.Leader(stream))), dial(t, cl.URLOf(cl.Follower(stream)))
	stale, err := nats.Connect(cl.URLOf(cl.Follower(stream)))
	if err != nil {
		t.Fatal(err)
	}
	defer stale.Close()
	// A follower answers direct gets from two seconds after it joined; then some of its answers are old.
	behind, rounds := 0, 0
	for ; behind < 20 && rounds < 10_000; rounds++ {
		n := rounds
		batch := key("s", fmt.Sprint("b", n))
		subject := writer.Names().Of(messages.VerbPlan, batch)
		for range 20 { // so that a follower has something left to apply
			if err := writer.Send(writer.Names().OfCall(messages.VerbCall, key("s", "crowd").Call(n)), nil, make([]byte, 1<<10)); err != nil {
				t.Fatal(err)
			}
		}
		first, err := writer.CompareAndSet(t.Context(), subject, nil, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		last, err := writer.CompareAndSet(t.Context(), subject, bus.Header{"N": {fmt.Sprint(n)}}, []byte(subject), first)
		if err != nil {
			t.Fatal(err)
		}
		if m, err := stale.Request("$JS.API.DIRECT.GET."+stream, fmt.Appendf(nil, `{"last_by_subj":%q}`, subject), 10*time.Second); err != nil || m.Header.Get("Nats-Sequence") != fmt.Sprint(last) {
			behind++
		}
		if m, err := reader.Last(t.Context(), stream, subject); err != nil || m.Seq != last || m.Subject != subject || string(m.Data) != subject || m.Header.Get("N") != fmt.Sprint(n) || m.Time.IsZero() {
			t.Fatalf("last: %+v, %v; want sequence %d", m, err, last)
		}
		if m, err := reader.First(t.Context(), stream, subject); err != nil || m.Seq != first {
			t.Fatalf("first: %+v, %v; want sequence %d", m, err, first)
		}
		if all, err := reader.All(t.Context(), stream, subject); err != nil || len(all) != 2 || all[0].Seq != first || all[1].Seq != last {
			t.Fatalf("all: %+v, %v; want sequences %d and %d", all, err, first, last)
		}
	}
	t.Logf("a direct get through the follower was behind after %d of %d writes", behind, rounds)
	if behind == 0 {
		t.Error("no follower lagged: this test is to show that reads are current beside one that does")
	}
}

func TestObjectsOnACluster(t *testing.T) {
	cl := replicated(t)
	const stream = "OBJ_TOOLFLEET_OBJECTS"
	writer, reader := dial(t, cl.URLOf(cl.Leader(stream))), dial(t, cl.URLOf(cl.Follower(stream)))
	for n := range 20 {
		body := bytes.Repeat([]byte{byte(n)}, 3<<20)
		ref, err := writer.PutObject(t.Context(), body)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := reader.GetObject(t.Context(), ref); err != nil || !bytes.Equal(got, body) {
			t.Fatalf("object %d: %d bytes, %v", n, len(got), err)
		}
	}
}
