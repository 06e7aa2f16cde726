package bus

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

	"github.com/toolfleet/toolfleet/messages"
)

const (
	// objectTimeout bounds the transfer of an object whose context has no deadline.
	objectTimeout = time.Minute
	// objectChunk is the most bytes of an object that one message carries.
	objectChunk = 512 << 10
)

// PutObject stores a body under its digest, for longer than a reply is kept. Storing the same body
// again in the first half of the object's life does nothing.
//
// The layout is that of a NATS object store, so that the NATS tools can read it. The client
// library's own Put is not used: it removes the chunks that it replaces. With two writers of the
// same body at the same moment, one would remove the chunks that a reader is reading, and the
// reader would wait for ever. Here old chunks only age out.
func (c *Conn) PutObject(ctx context.Context, data []byte) (messages.Ref, error) {
	ctx, cancel := transfer(ctx)
	defer cancel()
	ref := messages.Ref{Digest: messages.Digest(data), Size: int64(len(data))}
	store, err := c.objects(ctx)
	if err != nil {
		return messages.Ref{}, err
	}
	if young, err := c.hasYoung(ctx, store, ref); err != nil || young {
		return ref, err
	}
	if err := c.putObject(ctx, ref.Digest, data); err != nil {
		return messages.Ref{}, fmt.Errorf("store object %s: %w", ref.Digest, err)
	}
	return ref, nil
}

// dropChunks frees the space of an object that could not be stored whole. Chunks that it cannot
// remove age out.
func (c *Conn) dropChunks(ctx context.Context, nuid string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	request := map[string]any{"filter": c.objectChunks(nuid)}
	if err := c.call(ctx, api("STREAM", "PURGE", "OBJ_"+c.names.Stream(Objects)), request, nil); err != nil {
		c.log.Warn("parts of an object that could not be stored stay until they age out", "err", err)
	}
}

// putObject stores the chunks first, then the entry that names them: an object that can be found is
// whole.
func (c *Conn) putObject(ctx context.Context, name string, data []byte) error {
	sum := sha256.Sum256(data)
	info := jetstream.ObjectInfo{
		ObjectMeta: jetstream.ObjectMeta{Name: name},
		Bucket:     c.names.Stream(Objects),
		NUID:       rand.Text(),
		Size:       uint64(len(data)),
		Digest:     "SHA-256=" + base64.URLEncoding.EncodeToString(sum[:]),
	}
	for chunk := range slices.Chunk(data, min(objectChunk, c.MaxPayload()/2)) {
		if _, err := c.Append(ctx, c.objectChunks(info.NUID), nil, chunk); err != nil {
			c.dropChunks(ctx, info.NUID)
			return err
		}
		info.Chunks++
	}
	entry, err := json.Marshal(info)
	if err != nil {
		return err
	}
	// The rollup replaces the older entry of the same object.
	_, err = c.Append(ctx, c.objectEntry(name), Header{"Nats-Rollup": {"sub"}}, entry)
	return err
}

// hasYoung reports whether the object exists and is in the first half of its life, so that a record
// that refers to it from now on does not outlive it.
func (c *Conn) hasYoung(ctx context.Context, store jetstream.ObjectStore, ref messages.Ref) (bool, error) {
	info, err := store.GetInfo(ctx, ref.Digest)
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for object %s: %w", ref.Digest, sendError(err))
	}
	status, err := store.Status(ctx)
	if err != nil {
		return false, fmt.Errorf("look for object %s: %w", ref.Digest, sendError(err))
	}
	fresh := status.TTL() == 0 || time.Since(info.ModTime) < status.TTL()/2
	return fresh && info.Size == uint64(ref.Size), nil
}

// GetObject reads a body and checks that it has the digest and size of ref. The error is
// ErrNotFound when the body was never stored or has aged out, and ErrCorrupt when its bytes are not
// those that were stored.
//
// The client library's own Get is not used: it reads from the nearest replica. When that replica is
// behind, a new object is not found or is cut short.
func (c *Conn) GetObject(ctx context.Context, ref messages.Ref) ([]byte, error) {
	ctx, cancel := transfer(ctx)
	defer cancel()
	stream := "OBJ_" + c.names.Stream(Objects)
	entry, err := c.Last(ctx, stream, c.objectEntry(ref.Digest))
	if err != nil {
		return nil, fmt.Errorf("read object %s: %w", ref.Digest, err)
	}
	var info jetstream.ObjectInfo
	if err := json.Unmarshal(entry.Data, &info); err != nil {
		return nil, fmt.Errorf("read object %s: %w: %w", ref.Digest, ErrCorrupt, err)
	}
	chunks, err := c.All(ctx, stream, c.objectChunks(info.NUID))
	if err != nil {
		return nil, fmt.Errorf("read object %s: %w", ref.Digest, err)
	}
	data := make([]byte, 0, len(chunks)*objectChunk)
	for _, chunk := range chunks {
		data = append(data, chunk.Data...)
	}
	if int64(len(data)) != ref.Size || messages.Digest(data) != ref.Digest {
		return nil, fmt.Errorf("read object %s: %w", ref.Digest, ErrCorrupt)
	}
	return data, nil
}

// objectEntry is the subject of an object's entry.
func (c *Conn) objectEntry(name string) string {
	return "$O." + c.names.Stream(Objects) + ".M." + base64.URLEncoding.EncodeToString([]byte(name))
}

// objectChunks is the subject of an object's chunks, by the id in its entry.
func (c *Conn) objectChunks(nuid string) string {
	return "$O." + c.names.Stream(Objects) + ".C." + nuid
}

func (c *Conn) objects(ctx context.Context) (jetstream.ObjectStore, error) {
	name := c.names.Stream(Objects)
	store, err := c.js.ObjectStore(ctx, name)
	if errors.Is(err, jetstream.ErrBucketNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		err = ErrNoStream
	}
	if err != nil {
		return nil, fmt.Errorf("open the object store %s: %w", name, sendError(err))
	}
	return store, nil
}

func transfer(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, objectTimeout)
}
