package audit

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/messages"
)

// hashDigits is how many hex digits a hash in a line has.
const hashDigits = 16

// Hasher makes the hashes that lines show. The zero value makes plain ones.
type Hasher struct{ key []byte }

// Keyed is a hasher with the key of a fleet.
func Keyed(key []byte) Hasher { return Hasher{key} }

// Of is what a line of a tenant shows in the place of a digest, a hex SHA-256; "" for anything else.
func (h Hasher) Of(tenant messages.TenantID, digest string) string {
	if raw, err := hex.DecodeString(digest); err != nil || len(raw) != sha256.Size {
		return ""
	}
	if h.key != nil {
		digest = hex.EncodeToString(mac(mac(h.key, "toolfleet audit v1 "+string(tenant)), digest))
	}
	return digest[:hashDigits]
}

func mac(key []byte, text string) []byte {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(text))
	return m.Sum(nil)
}

// readAgain is how long a key that was read counts. Another may have taken its place: the bucket was lost, and made anew.
const readAgain = 10 * time.Minute

// Hasher is the one of this record. It reads the key of the fleet, now and then again, and makes it where there is none and
// this user may. What cannot be read again stays as it was.
func (l *Log) Hasher(ctx context.Context) (Hasher, error) {
	if l.plain {
		return Hasher{}, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.given && time.Since(l.read) > readAgain {
		key, err := l.fleetKey(ctx)
		if err != nil && l.key == nil {
			return Hasher{}, fmt.Errorf("read the key of the audit record: %w", err)
		}
		if l.read = time.Now(); err == nil {
			l.key = key
		}
	}
	return Keyed(l.key), nil
}

// errNoKey: whoever may make the key has not yet.
var errNoKey = errors.New("it is not there, and this user may not make it; a coordinator does when it starts")

// fleetKey is in a bucket of its own, because nobody but the daemons may read it. The first who needs it makes it, or puts
// back the one that it knows.
func (l *Log) fleetKey(ctx context.Context) ([]byte, error) {
	bucket := l.names.Stream(bus.BucketKeys)
	subject := "$KV." + bucket + ".audit"
	fresh := l.key
	if fresh == nil {
		fresh = make([]byte, minKey)
		_, _ = rand.Read(fresh) // it never fails
	}
	for {
		kept, err := l.conn.Last(ctx, "KV_"+bucket, subject)
		switch {
		case err == nil && len(kept.Data) >= minKey:
			return kept.Data, nil
		case err == nil: // deleted: another one is made
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
