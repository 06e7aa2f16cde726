package objects_test

import (
	"bytes"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/bustest"
	"github.com/toolfleet/toolfleet/internal/bus/objects"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/messages"
)

func TestObjects(t *testing.T) {
	c := bustest.Fleet(t)
	body := bytes.Repeat([]byte("0123456789abcdef"), 5<<20/16)
	ref, err := objects.In(c).Put(t.Context(), body)
	if err != nil || ref.Digest != messages.Digest(body) || ref.Size != 5<<20 {
		t.Fatalf("put: %+v, %v", ref, err)
	}
	stored := func() uint64 {
		m, err := c.First(t.Context(), "OBJ_"+c.Names().Stream(bus.Objects), "$O."+c.Names().Stream(bus.Objects)+".C.>")
		if err != nil {
			t.Fatal(err)
		}
		return m.Seq
	}
	before := stored()
	if again, err := objects.In(c).Put(t.Context(), body); err != nil || again != ref {
		t.Errorf("put again: %+v, %v", again, err)
	}
	if stored() != before {
		t.Error("the same body was stored twice")
	}
	got, err := objects.In(c).Get(t.Context(), ref)
	if err != nil || !bytes.Equal(got, body) {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
	if _, err := objects.In(c).Get(t.Context(), messages.Ref{Digest: messages.Digest(nil)}); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("never stored: %v", err)
	}
	if _, err := objects.In(c).Get(t.Context(), messages.Ref{Digest: ref.Digest, Size: 1}); !errors.Is(err, bus.ErrCorrupt) || !bus.IsTerminal(err) {
		t.Errorf("another size: %v", err)
	}
	if got, err := objects.In(c).GetDigest(t.Context(), ref.Digest, ref.Size); err != nil || !bytes.Equal(got, body) {
		t.Errorf("by its digest: %d bytes, %v", len(got), err)
	}
	if _, err := objects.In(c).GetDigest(t.Context(), ref.Digest, ref.Size-1); !errors.Is(err, bus.ErrTooLarge) {
		t.Errorf("more than the limit: %v", err)
	}
	if ref, err := objects.In(c).Put(t.Context(), nil); err != nil || ref.Size != 0 {
		t.Errorf("empty body: %+v, %v", ref, err)
	} else if got, err := objects.In(c).Get(t.Context(), ref); err != nil || len(got) != 0 {
		t.Errorf("empty body: %d bytes, %v", len(got), err)
	}
}

func TestNamedObjects(t *testing.T) {
	store := objects.In(bustest.Fleet(t))
	body := bytes.Repeat([]byte("0123456789abcdef"), 1<<20/16)
	for _, body := range [][]byte{[]byte("first"), body} { // the second replaces the first
		if err := store.PutNamed(t.Context(), "name", body); err != nil {
			t.Fatal(err)
		}
		if got, err := store.GetNamed(t.Context(), "name", int64(len(body))); err != nil || !bytes.Equal(got, body) {
			t.Errorf("got %d bytes, %v", len(got), err)
		}
	}
	if _, err := store.GetNamed(t.Context(), "name", int64(len(body))-1); !errors.Is(err, bus.ErrTooLarge) {
		t.Errorf("more than the limit: %v", err)
	}
	if _, err := store.GetNamed(t.Context(), "other", 1<<20); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("never stored: %v", err)
	}
	if _, err := store.GetDigest(t.Context(), "name", 1<<20); !errors.Is(err, bus.ErrCorrupt) {
		t.Errorf("a name is no digest: %v", err)
	}
}

func TestConcurrentPutsOfOneObject(t *testing.T) {
	c := bustest.Fleet(t, natstest.Fast)
	body := bytes.Repeat([]byte("x"), 1<<20)
	var writers sync.WaitGroup
	for range 8 {
		writers.Go(func() {
			ref, err := objects.In(c).Put(t.Context(), body)
			if err != nil {
				t.Error(err)
				return
			}
			if got, err := objects.In(c).Get(t.Context(), ref); err != nil || !bytes.Equal(got, body) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		})
	}
	writers.Wait()
}

// An object is put again: its lifetime starts anew.
func TestObjectsOutliveWhatRefersToThem(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		c := bustest.Connect(t, srv)
		bustest.Provision(t, c) // replies are kept for 24 h
		body := []byte("a large result")
		for range 3 {
			ref, err := objects.In(c).Put(t.Context(), body)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(24*time.Hour - time.Second)
			if got, err := objects.In(c).Get(t.Context(), ref); err != nil || string(got) != string(body) {
				t.Fatalf("%q, %v", got, err)
			}
		}
		ref, err := objects.In(c).Put(t.Context(), []byte("another"))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(49 * time.Hour)
		if _, err := objects.In(c).Get(t.Context(), ref); !errors.Is(err, bus.ErrNotFound) {
			t.Errorf("after two days: %v", err)
		}
	})
}

func TestObjectsOnACluster(t *testing.T) {
	t.Parallel()
	cl := bustest.Replicated(t)
	const stream = "OBJ_TOOLFLEET_OBJECTS"
	writer, reader := bustest.Dial(t, cl.URLOf(cl.Leader(stream))), bustest.Dial(t, cl.URLOf(cl.Follower(stream)))
	rounds := 20
	if testing.Short() {
		rounds = 5
	}
	for n := range rounds {
		body := bytes.Repeat([]byte{byte(n)}, 3<<20)
		ref, err := objects.In(writer).Put(t.Context(), body)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := objects.In(reader).Get(t.Context(), ref); err != nil || !bytes.Equal(got, body) {
			t.Fatalf("object %d: %d bytes, %v", n, len(got), err)
		}
	}
}
