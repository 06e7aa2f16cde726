package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/messages"
)

// objectTimeout bounds the transfer of an object whose context has no deadline.
const objectTimeout = time.Minute

// PutObject stores a body under its digest, for as long as a reply is kept and longer. Storing it again does nothing.
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
	if _, err := store.Put(ctx, jetstream.ObjectMeta{Name: ref.Digest}, bytes.NewReader(data)); err != nil {
		return messages.Ref{}, fmt.Errorf("store object %s: %w", ref.Digest, writeError(err))
	}
	return ref, nil
}

// hasYoung reports whether the object is there and in the first half of its life, so that whoever refers to
// it now will not outlive it.
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

// GetObject reads a body and checks that it has the digest and size of ref. ErrNotFound when it was never stored
// or is forgotten, ErrCorrupt when its bytes are not those that were stored.
func (c *Conn) GetObject(ctx context.Context, ref messages.Ref) ([]byte, error) {
	ctx, cancel := transfer(ctx)
	defer cancel()
	store, err := c.objects(ctx)
	if err != nil {
		return nil, err
	}
	data, err := getObject(ctx, store, ref)
	if errors.Is(err, ErrCorrupt) {
		// Two writers of the same body at the same moment: the later one replaces the chunks under a reader's hands.
		data, err = getObject(ctx, store, ref)
	}
	return data, err
}

func getObject(ctx context.Context, store jetstream.ObjectStore, ref messages.Ref) ([]byte, error) {
	data, err := store.GetBytes(ctx, ref.Digest)
	switch {
	case errors.Is(err, jetstream.ErrObjectNotFound):
		return nil, fmt.Errorf("read object %s: %w", ref.Digest, ErrNotFound)
	case errors.Is(err, jetstream.ErrDigestMismatch):
		return nil, fmt.Errorf("read object %s: %w", ref.Digest, ErrCorrupt)
	case err != nil:
		return nil, fmt.Errorf("read object %s: %w", ref.Digest, sendError(err))
	case int64(len(data)) != ref.Size || messages.Digest(data) != ref.Digest:
		return nil, fmt.Errorf("read object %s: %w", ref.Digest, ErrCorrupt)
	}
	return data, nil
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
