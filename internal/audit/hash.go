package audit

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/messages"
)

// hashDigits is how many hex digits a hash in a line has.
const hashDigits = 16

// Hasher makes the hashes in lines. The zero value makes hashes without a key.
type Hasher struct{ key []byte }

// Keyed returns a hasher with the key of a fleet.
func Keyed(key []byte) Hasher { return Hasher{key} }

// Of returns the hash for a digest in the lines of a tenant. It returns "" if digest is not a
// hex SHA-256.
func (h Hasher) Of(tenant messages.TenantID, digest string) string {
	return h.in(tenant).of(digest)
}

// tenantHasher makes the hashes in the lines of one tenant. It is for one goroutine.
type tenantHasher struct{ mac hash.Hash } // nil: hashes without a key

// in returns the hasher of a tenant. Each tenant has a key of its own, made from the fleet's.
func (h Hasher) in(tenant messages.TenantID) tenantHasher {
	if h.key == nil {
		return tenantHasher{}
	}
	mac := hmac.New(sha256.New, h.key)
	mac.Write([]byte("toolfleet audit v1 " + string(tenant)))
	return tenantHasher{hmac.New(sha256.New, mac.Sum(nil))}
}

// of is [Hasher.Of].
func (h tenantHasher) of(digest string) string {
	var raw, sum [sha256.Size]byte
	if n, err := hex.Decode(raw[:], []byte(digest[:min(len(digest), 2*sha256.Size)])); err != nil || n != sha256.Size || len(digest) != 2*sha256.Size {
		return ""
	}
	if h.mac == nil {
		return digest[:hashDigits]
	}
	h.mac.Reset()
	h.mac.Write([]byte(digest))
	return hex.EncodeToString(h.mac.Sum(sum[:0])[:hashDigits/2])
}

// readAgain is how long a key is used before it is read again. A bucket that was lost and made
// again has another key.
const readAgain = 10 * time.Minute

// Hasher returns the hasher of this log. It reads the key of the fleet, and reads it again
// after readAgain. If there is no key, it makes one, provided that this user may. If a later
// read fails, it continues with the known key.
func (l *Log) Hasher(ctx context.Context) (Hasher, error) {
	if l.plain {
		return Hasher{}, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.given && time.Since(l.read) > readAgain {
		key, err := l.fleetKey(ctx)
		if err != nil && l.key == nil {
			return Hasher{}, fmt.Errorf("read the key of the audit log: %w", err)
		}
		if l.read = time.Now(); err == nil {
			l.key = key
		}
	}
	return Keyed(l.key), nil
}

// errNoKey means that there is no key and that this user may not make one.
var errNoKey = errors.New("it is not there, and this user may not make it; a coordinator does when it starts")

// fleetKey reads the key from its bucket, which only the daemons may read. If there is no key,
// the first process that needs it writes one: the key that the process knows, or a new key.
func (l *Log) fleetKey(ctx context.Context) ([]byte, error) {
	bucket := l.names.Stream(bus.BucketKeys)
	subject := "$KV." + bucket + ".audit"
	fresh := l.key
	if fresh == nil {
		fresh = make([]byte, minKey)
		_, _ = rand.Read(fresh) // never fails
	}
	for {
		kept, err := l.conn.Last(ctx, "KV_"+bucket, subject)
		switch {
		case err == nil && len(kept.Data) >= minKey:
			return kept.Data, nil
		case err == nil: // the key was deleted or is too short, so write a key
		case !errors.Is(err, bus.ErrNotFound):
			return nil, err
		}
		if !l.conn.May(ctx, subject) {
			return nil, errNoKey
		}
		_, err = l.conn.CompareAndSet(ctx, subject, nil, fresh, kept.Seq)
		if err == nil {
			return fresh, nil
		}
		if !errors.Is(err, bus.ErrConflict) {
			return nil, err
		}
	}
}
