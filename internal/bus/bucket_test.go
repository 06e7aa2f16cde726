package bus_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/bustest"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
)

func openBucket(t *testing.T, c *bus.Conn, name string) *bus.Bucket {
	t.Helper()
	b, err := c.Bucket(t.Context(), c.Names().Stream(name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestBucket(t *testing.T) {
	c := bustest.Connect(t, natstest.Server(t))
	if _, err := c.Bucket(t.Context(), c.Names().Stream(bus.BucketTools)); !errors.Is(err, bus.ErrNoStream) {
		t.Errorf("before Provision: %v", err)
	}
	bustest.Provision(t, c)
	b := openBucket(t, c, bus.BucketTools)
	gets := map[string]func(context.Context, string) ([]byte, bool, error){"get": b.Get, "get from leader": b.GetFromLeader}
	check := func(key, want string, there bool) {
		t.Helper()
		for name, get := range gets {
			if v, ok, err := get(t.Context(), key); err != nil || ok != there || string(v) != want {
				t.Errorf("%s %s: %q, %v, %v; want %q, %v", name, key, v, ok, err, want, there)
			}
		}
	}
	name := c.Names().Stream(bus.BucketTools)
	if values, err := c.Values(t.Context(), name); err != nil || len(values) != 0 {
		t.Errorf("values of an empty bucket: %s, %v", values, err)
	}
	check("grep", "", false)
	for _, kv := range [][2]string{{"read", "1"}, {"grep", "1"}, {"grep", "2"}, {"empty", ""}} {
		if err := b.Put(t.Context(), kv[0], []byte(kv[1])); err != nil {
			t.Fatal(err)
		}
	}
	check("grep", "2", true)
	check("empty", "", true)
	for range 2 {
		if err := b.Delete(t.Context(), "read"); err != nil {
			t.Error(err)
		}
	}
	check("read", "", false)
	if values, err := c.Values(t.Context(), name); err != nil || len(values) != 2 || string(values["grep"]) != "2" || values["empty"] == nil {
		t.Errorf("values: %s, %v", values, err)
	}
	if err := b.Put(t.Context(), "a key", nil); err == nil {
		t.Error("put under a key with a space")
	}
	if err := b.Put(t.Context(), "large", make([]byte, c.MaxPayload()+1)); !errors.Is(err, bus.ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
}

// news records what a watcher reports, as "key=value" or "key gone".
type news struct {
	mu    sync.Mutex
	lines []string
}

func (n *news) add(key string, value []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if value == nil {
		n.lines = append(n.lines, key+" gone")
		return
	}
	n.lines = append(n.lines, fmt.Sprintf("%s=%s", key, value))
}

// take returns the reports since the last take.
func (n *news) take() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	lines := n.lines
	n.lines = nil
	return lines
}

func watch(t *testing.T, b *bus.Bucket) *news {
	t.Helper()
	n := &news{}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done, ready := make(chan error, 1), make(chan struct{}, 10)
	go func() { done <- b.Watch(ctx, n.add, func() { ready <- struct{}{} }) }()
	t.Cleanup(func() {
		cancel()
		if err := bustest.Receive(t, done); err != nil {
			t.Error(err)
		}
		if len(ready) != 0 {
			t.Errorf("ready was called %d times more", len(ready))
		}
	})
	bustest.Receive(t, ready)
	return n
}

func TestWatch(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		c := bustest.Connect(t, srv)
		bustest.Provision(t, c)
		b := openBucket(t, c, bus.BucketTools)
		put := func(b *bus.Bucket, key, value string) {
			t.Helper()
			if err := b.Put(t.Context(), key, []byte(value)); err != nil {
				t.Fatal(err)
			}
		}
		remove := func(b *bus.Bucket, key string) {
			t.Helper()
			if err := b.Delete(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		put(b, "a", "1")
		put(b, "a", "2")
		put(b, "b", "1")
		put(b, "gone", "")
		remove(b, "gone")

		n := watch(t, b)
		check := func(what string, want ...string) {
			t.Helper()
			time.Sleep(time.Minute)
			if got := n.take(); !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", what, got, want)
			}
		}
		check("what is there", "a=2", "b=1")
		put(b, "c", "")
		remove(b, "b")
		remove(b, "never")
		check("changes", "c=", "b gone")

		// While the watcher is disconnected, another connection deletes and puts keys.
		if err := srv.Restart(); err != nil {
			t.Fatal(err)
		}
		other := bustest.Connect(t, srv)
		b2 := openBucket(t, other, bus.BucketTools)
		remove(b2, "a")
		put(b2, "d", "1")
		if c.Connected() {
			t.Fatal("the watcher is back too early for this test")
		}
		check("after a restart", "c=", "a gone", "d=1")
		put(b, "e", "1")
		check("changes after a restart", "e=1")
	})
}

// A worker stops announcing itself: watchers learn that it is gone.
func TestPresenceAgesOut(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		c := bustest.Connect(t, srv)
		if err := provision.Ensure(t.Context(), c, provision.Config{WorkerTTL: 30 * time.Second}); err != nil {
			t.Fatal(err)
		}
		b := openBucket(t, c, bus.BucketWorkers)
		n := watch(t, b)
		for range 10 {
			for _, worker := range []string{"w1", "w2"} {
				if err := b.Put(t.Context(), worker, nil); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(10 * time.Second)
		}
		if got := n.take(); len(got) != 20 || slices.Contains(got, "w1 gone") {
			t.Errorf("while both announce themselves: %q", got)
		}
		for range 6 {
			if err := b.Put(t.Context(), "w1", nil); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Second)
		}
		if got := n.take(); !slices.Contains(got, "w2 gone") || slices.Contains(got, "w1 gone") {
			t.Errorf("w2 fell silent for a minute: %q", got)
		}
		for _, get := range []func(context.Context, string) ([]byte, bool, error){b.Get, b.GetFromLeader} {
			if _, ok, err := get(t.Context(), "w2"); ok || err != nil {
				t.Errorf("w2 is there: %v, %v", ok, err)
			}
		}
		values, err := c.Values(t.Context(), c.Names().Stream(bus.BucketWorkers))
		if _, there := values["w1"]; err != nil || len(values) != 1 || !there {
			t.Errorf("values: %s, %v", values, err)
		}
	})
}

func TestValues(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		c := bustest.Connect(t, srv)
		if err := provision.Ensure(t.Context(), c, provision.Config{WorkerTTL: 10 * time.Second}); err != nil {
			t.Fatal(err)
		}
		name := c.Names().Stream(bus.BucketWorkers)
		bucket, err := c.Bucket(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		put := func(key string) {
			t.Helper()
			if err := bucket.Put(t.Context(), key, []byte("value of "+key)); err != nil {
				t.Fatal(err)
			}
		}
		put("aged")
		bustest.Until(t, "the old value has aged", time.Minute, func() bool {
			_, found, err := bucket.Get(t.Context(), "aged")
			return err == nil && !found
		})
		put("a")
		put("b")
		put("gone")
		if err := bucket.Delete(t.Context(), "gone"); err != nil {
			t.Fatal(err)
		}
		got, err := c.Values(t.Context(), name)
		if want := map[string][]byte{"a": []byte("value of a"), "b": []byte("value of b")}; err != nil || !cmp.Equal(got, want) {
			t.Errorf("%s, %v", got, err)
		}
	}, natstest.Fast)
}

// Several writers change a value at the same time: no change is lost.
func TestBucketChange(t *testing.T) {
	c := bustest.Fleet(t, natstest.Fast)
	b := openBucket(t, c, bus.BucketTools)
	add := func(word string) error {
		return b.Change(t.Context(), "k", func(value []byte) ([]byte, error) { return append(value, word...), nil })
	}
	var writers sync.WaitGroup
	for i := range 8 {
		writers.Go(func() {
			if err := add(string(rune('a' + i))); err != nil {
				t.Error(err)
			}
		})
	}
	writers.Wait()
	got, _, err := b.GetFromLeader(t.Context(), "k")
	slices.Sort(got)
	if err != nil || string(got) != "abcdefgh" {
		t.Errorf("%q, %v", got, err)
	}
	before, err := c.Last(t.Context(), "KV_"+c.Names().Stream(bus.BucketTools), "$KV."+c.Names().Stream(bus.BucketTools)+".k")
	if err != nil || add("") != nil {
		t.Fatal(err)
	}
	if after, _ := c.Last(t.Context(), "KV_"+c.Names().Stream(bus.BucketTools), "$KV."+c.Names().Stream(bus.BucketTools)+".k"); after.Seq != before.Seq {
		t.Error("the same value was written again")
	}
	if err := b.Delete(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	if err := b.Change(t.Context(), "k", func(value []byte) ([]byte, error) {
		if value != nil {
			t.Errorf("a deleted key has the value %q", value)
		}
		return []byte("new"), nil
	}); err != nil {
		t.Error(err)
	}
	refused := errors.New("no")
	if err := b.Change(t.Context(), "k", func([]byte) ([]byte, error) { return nil, refused }); !errors.Is(err, refused) {
		t.Errorf("a change that fails: %v", err)
	}
	if got, _, err := b.GetFromLeader(t.Context(), "k"); err != nil || string(got) != "new" {
		t.Errorf("%q, %v", got, err)
	}
}
