// Package objects stores large bodies under their digests, in the object store of a fleet.
package objects

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/messages"
)

const (
	// transferTimeout limits the transfer of an object if the context has no deadline.
	transferTimeout = time.Minute
	// chunkSize is the largest part of an object in one message, in bytes.
	chunkSize = 512 << 10
)

// Store is the object store of a fleet. Package provision makes its stream.
type Store struct {
	conn *bus.Conn
	name string // name of the store
}

// In returns the object store of the fleet that conn is connected to.
func In(conn *bus.Conn) Store { return Store{conn, conn.Names().Stream(bus.Objects)} }

// Put stores a body under its digest, for longer than any reply is kept. If the body is stored
// already and is in the first half of its life, Put does nothing.
//
// The layout is that of a NATS object store, so the NATS tools can read it. But Put does not
// use the client library, because the library's Put removes the chunks of the older object. If
// two writers stored the same body at once, one could remove chunks that a reader still needs,
// and the reader would wait for ever. Here old chunks are never removed. The server deletes
// them when they reach the maximum age.
func (s Store) Put(ctx context.Context, data []byte) (messages.Ref, error) {
	ctx, cancel := transfer(ctx)
	defer cancel()
	ref := messages.Ref{Digest: messages.Digest(data), Size: int64(len(data))}
	store, err := s.open(ctx)
	if err != nil {
		return messages.Ref{}, err
	}
	if young, err := s.hasYoung(ctx, store, ref); err != nil || young {
		return ref, err
	}
	if err := s.put(ctx, ref.Digest, data); err != nil {
		return messages.Ref{}, fmt.Errorf("store object %s: %w", ref.Digest, err)
	}
	return ref, nil
}

// PutNamed stores a body under a name that the caller chooses, and replaces the earlier body
// of that name. [Store.GetNamed] reads it. It is kept as long as a body from Put.
func (s Store) PutNamed(ctx context.Context, name string, data []byte) error {
	ctx, cancel := transfer(ctx)
	defer cancel()
	if err := s.put(ctx, name, data); err != nil {
		return fmt.Errorf("store object %s: %w", name, err)
	}
	return nil
}

// GetNamed reads a body that PutNamed stored. If the body has more than limit bytes, the
// error is bus.ErrTooLarge. The other errors are those of Get.
func (s Store) GetNamed(ctx context.Context, name string, limit int64) ([]byte, error) {
	return s.get(ctx, name, atMost(limit))
}

// dropChunks removes the chunks of an object that was stored only in part. If it fails, or if
// the user may not purge, the server deletes the chunks at their maximum age.
func (s Store) dropChunks(ctx context.Context, nuid string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bus.CallTimeout)
	defer cancel()
	request, purge := map[string]any{"filter": s.chunks(nuid)}, "$JS.API.STREAM.PURGE.OBJ_"+s.name
	if !s.conn.May(ctx, purge) {
		return
	}
	if err := s.conn.Call(ctx, purge, request, nil); err != nil {
		s.conn.Logger().Warn("parts of an object that could not be stored stay until they age out", "err", err)
	}
}

// put stores the chunks first, and then the entry that names them. A reader that finds the
// entry can therefore read the whole object.
func (s Store) put(ctx context.Context, name string, data []byte) error {
	info := jetstream.ObjectInfo{
		ObjectMeta: jetstream.ObjectMeta{Name: name},
		Bucket:     s.name,
		NUID:       rand.Text(),
		Size:       uint64(len(data)),
		Digest:     digestOf(data),
	}
	for chunk := range slices.Chunk(data, min(chunkSize, s.conn.MaxPayload()/2)) {
		if _, err := s.conn.Append(ctx, s.chunks(info.NUID), nil, chunk); err != nil {
			s.dropChunks(ctx, info.NUID)
			return err
		}
		info.Chunks++
	}
	entry, err := json.Marshal(info)
	if err != nil {
		return err
	}
	// The rollup header makes the server remove the older entry of this object.
	_, err = s.conn.Append(ctx, s.entry(name), bus.Header{"Nats-Rollup": {"sub"}}, entry)
	return err
}

// hasYoung reports whether the object exists and is in the first half of its life. An older
// object must be stored again, because a new record that refers to it could be kept for longer
// than it.
func (s Store) hasYoung(ctx context.Context, store jetstream.ObjectStore, ref messages.Ref) (bool, error) {
	info, err := store.GetInfo(ctx, ref.Digest)
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for object %s: %w", ref.Digest, bus.ClientError(err))
	}
	status, err := store.Status(ctx)
	if err != nil {
		return false, fmt.Errorf("look for object %s: %w", ref.Digest, bus.ClientError(err))
	}
	fresh := status.TTL() == 0 || time.Since(info.ModTime) < status.TTL()/2
	return fresh && info.Size == uint64(ref.Size), nil
}

// Get reads a body and checks its digest and size. The error is bus.ErrNotFound if the body
// was never stored or has reached its maximum age. It is bus.ErrCorrupt if the bytes are not
// those that were stored.
func (s Store) Get(ctx context.Context, ref messages.Ref) ([]byte, error) {
	data, err := s.get(ctx, ref.Digest, func(int64) error { return nil })
	if err == nil && (int64(len(data)) != ref.Size || messages.Digest(data) != ref.Digest) {
		err = fmt.Errorf("read object %s: %w", ref.Digest, bus.ErrCorrupt)
	}
	return data, err
}

// GetDigest is like Get, for a body of unknown size. If the body has more than limit bytes,
// the error is bus.ErrTooLarge.
func (s Store) GetDigest(ctx context.Context, digest string, limit int64) ([]byte, error) {
	data, err := s.get(ctx, digest, atMost(limit))
	if err == nil && messages.Digest(data) != digest {
		return nil, fmt.Errorf("read object %s: %w", digest, bus.ErrCorrupt)
	}
	return data, err
}

func atMost(limit int64) func(size int64) error {
	return func(size int64) error {
		if size < 0 || size > limit {
			return fmt.Errorf("%d bytes, with a limit of %d: %w", size, limit, bus.ErrTooLarge)
		}
		return nil
	}
}

// get reads a body if check accepts its size. It verifies that the bytes are those that were
// stored.
//
// It does not use the client library, because the library's Get reads from the nearest
// replica. If that replica is behind, it has no new object, or only a part of it.
func (s Store) get(ctx context.Context, name string, check func(size int64) error) ([]byte, error) {
	ctx, cancel := transfer(ctx)
	defer cancel()
	stream := "OBJ_" + s.name
	entry, err := s.conn.Last(ctx, stream, s.entry(name))
	if err != nil {
		return nil, fmt.Errorf("read object %s: %w", name, err)
	}
	var info jetstream.ObjectInfo
	if err := json.Unmarshal(entry.Data, &info); err != nil {
		return nil, fmt.Errorf("read object %s: %w: %w", name, bus.ErrCorrupt, err)
	}
	if err := check(int64(info.Size)); err != nil { //nolint:gosec // a size that overflows is negative, and refused
		return nil, fmt.Errorf("read object %s: %w", name, err)
	}
	chunks, err := s.conn.All(ctx, stream, s.chunks(info.NUID))
	if err != nil {
		return nil, fmt.Errorf("read object %s: %w", name, err)
	}
	data := make([]byte, 0, len(chunks)*chunkSize)
	for _, chunk := range chunks {
		data = append(data, chunk.Data...)
	}
	if info.Digest != digestOf(data) {
		return nil, fmt.Errorf("read object %s: %w", name, bus.ErrCorrupt)
	}
	return data, nil
}

// digestOf returns the digest in the form of an object's entry.
func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "SHA-256=" + base64.URLEncoding.EncodeToString(sum[:])
}

// entry returns the subject of an object's entry.
func (s Store) entry(name string) string {
	return "$O." + s.name + ".M." + base64.URLEncoding.EncodeToString([]byte(name))
}

// chunks returns the subject of an object's chunks. nuid is the object's id in its entry.
func (s Store) chunks(nuid string) string {
	return "$O." + s.name + ".C." + nuid
}

func (s Store) open(ctx context.Context) (jetstream.ObjectStore, error) {
	store, err := s.conn.JetStream().ObjectStore(ctx, s.name)
	if errors.Is(err, jetstream.ErrBucketNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		err = bus.ErrNoStream
	}
	if err != nil {
		return nil, fmt.Errorf("open the object store %s: %w", s.name, bus.ClientError(err))
	}
	return store, nil
}

func transfer(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, transferTimeout)
}
