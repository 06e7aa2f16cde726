package catalogue_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/catalogue"
	"github.com/toolfleet/toolfleet/internal/bus/bustest"
	"github.com/toolfleet/toolfleet/internal/bus/objects"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/messages"
)

func TestStore(t *testing.T) {
	c := bustest.Fleet(t)
	digest, err := catalogue.NewStore(objects.In(c), nil).Put(t.Context(), catalog(t, look, pay))
	if err != nil {
		t.Fatal(err)
	}
	another := catalogue.NewStore(objects.In(c), nil) // as another coordinator, which has not seen the catalogue
	tools, found, err := another.Get(t.Context(), digest)
	if err != nil || !found || catalogue.Digest(tools) != digest {
		t.Errorf("stored: %v, %v, %v", tools.Tools(), found, err)
	}
	result, err := objects.In(c).Put(t.Context(), []byte(`{"output":"a large result"}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, unknown := range []string{messages.Digest(nil), result.Digest, "nonsense", ""} {
		if _, found, err := another.Get(t.Context(), unknown); found || err != nil {
			t.Errorf("%q: %v, %v", unknown, found, err)
		}
	}
}

// A catalogue that is used stays stored. A catalogue that is not used is removed after a
// while.
func TestStoreKeepsWhatIsUsed(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		c := bustest.Connect(t, srv)
		bustest.Provision(t, c)
		users := catalogue.NewStore(objects.In(c), nil)
		used, err := users.Put(t.Context(), catalog(t, look))
		if err != nil {
			t.Fatal(err)
		}
		unused, err := users.Put(t.Context(), catalog(t, pay))
		if err != nil {
			t.Fatal(err)
		}
		for range 6 {
			time.Sleep(23 * time.Hour)
			if _, found, err := users.Get(t.Context(), used); !found || err != nil {
				t.Fatalf("in use: %v, %v", found, err)
			}
		}
		later := catalogue.NewStore(objects.In(c), nil)
		if _, found, err := later.Get(t.Context(), used); !found || err != nil {
			t.Errorf("in use: %v, %v", found, err)
		}
		if _, found, err := later.Get(t.Context(), unused); found || err != nil {
			t.Errorf("not used for days: %v, %v", found, err)
		}
	})
}

// broken is an object store that fails every request.
type broken struct{}

func (broken) Put(context.Context, []byte) (messages.Ref, error) {
	return messages.Ref{}, errors.New("no answer")
}

func (broken) GetDigest(context.Context, string, int64) ([]byte, error) {
	return nil, errors.New("no answer")
}

func TestStoreDoesNotGuess(t *testing.T) {
	store := catalogue.NewStore(broken{}, nil)
	if digest, err := store.Put(t.Context(), catalog(t, look)); err == nil {
		t.Errorf("put: %s", digest)
	}
	if _, found, err := store.Get(t.Context(), messages.Digest(nil)); err == nil {
		t.Errorf("get: %v", found)
	}
}

func TestStoreDropsFromItsCache(t *testing.T) {
	c := bustest.Fleet(t, natstest.Fast)
	store := catalogue.NewStore(objects.In(c), nil)
	var digests []string
	for i := range 80 {
		digest, err := store.Put(t.Context(), catalog(t, definition(fmt.Sprint("tool", i), `{"type":"object"}`)))
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, digest)
	}
	for i, digest := range digests {
		if tools, found, err := store.Get(t.Context(), digest); !found || err != nil || tools.Tools()[0].Name != fmt.Sprint("tool", i) {
			t.Fatalf("%d: %v, %v", i, found, err)
		}
	}
}
