package audit

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/messages"
)

// Several members of a new fleet need its key at once: one of them makes it.
func TestTheKeyIsMadeOnce(t *testing.T) {
	srv := natstest.Server(t, natstest.Fast)
	conn := connect(t, srv)
	hash := messages.Digest([]byte("{}"))
	hashes := make([]string, 8)
	var members sync.WaitGroup
	for i := range hashes {
		members.Go(func() {
			h, err := open(t, conn, Config{}).Hasher(t.Context())
			if err != nil {
				t.Error(err)
			}
			hashes[i] = h.Of("_", hash)
		})
	}
	members.Wait()
	if len(hashes[0]) != 16 || len(slices.Compact(hashes)) != 1 || hashes[0] == hash[:16] {
		t.Errorf("hashes %v", hashes)
	}
	given, err := open(t, conn, Config{Key: testKey}).Hasher(t.Context())
	if err != nil || given.Of("_", hash) != Keyed([]byte(testKey)).Of("_", hash) {
		t.Errorf("with a key that is given: %v", err)
	}
	plain, err := open(t, conn, Config{Plain: true}).Hasher(t.Context())
	if err != nil || plain.Of("_", hash) != hash[:16] {
		t.Errorf("plain: %v", err)
	}
	if _, err := New(conn, Config{Key: testKey[:31], Include: []string{"x"}}); err == nil || !strings.Contains(err.Error(), "audit.key has 31 bytes") || !strings.Contains(err.Error(), "audit.include") {
		t.Errorf("a short key and a bad entry: %v", err)
	}
}

// The key was deleted: a new one is made. A hash with the new key differs from the hash of the
// same value with the old key.
func TestADeletedKeyIsMadeAgain(t *testing.T) {
	conn := connect(t, natstest.Server(t, natstest.Fast))
	before, err := open(t, conn, Config{}).Hasher(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	keys, err := conn.Bucket(t.Context(), conn.Names().Stream(bus.BucketKeys))
	if err == nil {
		err = keys.Delete(t.Context(), "audit")
	}
	if err != nil {
		t.Fatal(err)
	}
	after, err := open(t, conn, Config{}).Hasher(t.Context())
	if d := messages.Digest(nil); err != nil || after.Of("_", d) == before.Of("_", d) {
		t.Errorf("the same hashes with another key: %v", err)
	}
}

// The bucket with the key is lost while members run. The first member that reads the key again
// decides: if it knows the old key, it stores the old key again. A member with another key
// takes over the stored key.
func TestALostKeyIsOneAgain(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		conn := connect(t, srv)
		hash := func(l *Log) string {
			h, err := l.Hasher(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return h.Of("_", messages.Digest(nil))
		}
		lose := func() {
			keys, err := conn.Bucket(t.Context(), conn.Names().Stream(bus.BucketKeys))
			if err == nil {
				err = keys.Delete(t.Context(), "audit")
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		old := open(t, conn, Config{})
		first := hash(old)
		lose()
		other := open(t, conn, Config{})
		if hash(other) == first || hash(old) != first {
			t.Error("the key was not lost, or is read each time")
		}
		time.Sleep(readAgain + time.Second) // simulated
		second := hash(old)
		if second != hash(other) || second == first {
			t.Error("two members use different keys after readAgain")
		}
		lose()
		time.Sleep(readAgain + time.Second)
		if hash(old) != second || hash(open(t, conn, Config{})) != second {
			t.Error("a member knows the key, and it is not stored again")
		}
		srv.Stop()
		time.Sleep(readAgain + time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if h, err := old.Hasher(ctx); err != nil || h.Of("_", messages.Digest(nil)) != second {
			t.Errorf("a key that cannot be read again is forgotten: %v", err)
		}
	})
}
