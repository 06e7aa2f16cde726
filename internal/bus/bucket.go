package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Bucket is a key-value bucket of JetStream. It has the newest value of each key.
type Bucket struct {
	c    *Conn
	kv   jetstream.KeyValue
	name string
}

// Bucket opens a bucket by its full name, for example Names().Stream(BucketTools). It
// returns ErrNoStream if the bucket does not exist.
func (c *Conn) Bucket(ctx context.Context, name string) (*Bucket, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	kv, err := c.js.KeyValue(ctx, name)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		err = ErrNoStream
	}
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", name, err)
	}
	return &Bucket{c: c, kv: kv, name: name}, nil
}

// subject returns the subject of a key's values.
func (b *Bucket) subject(key string) string { return "$KV." + b.name + "." + key }

// Put sets a key. Keys are tokens joined by dots.
func (b *Bucket) Put(ctx context.Context, key string, value []byte) error {
	_, err := b.PutRevision(ctx, key, value)
	return err
}

// PutRevision is like Put, and returns the revision, which [Bucket.DeleteRevision] needs.
func (b *Bucket) PutRevision(ctx context.Context, key string, value []byte) (uint64, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	revision, err := b.kv.Put(ctx, key, value)
	if err != nil {
		return 0, b.failed("put", key, err)
	}
	return revision, nil
}

// Get reads a key. ok is false if the key has no value. If the bucket is replicated, the
// value may be out of date.
func (b *Bucket) Get(ctx context.Context, key string) (value []byte, ok bool, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	entry, err := b.kv.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, b.failed("get", key, err)
	}
	return entry.Value(), true, nil
}

// GetFromLeader is like Get, but it asks the leader, so the value is never out of date.
func (b *Bucket) GetFromLeader(ctx context.Context, key string) (value []byte, ok bool, err error) {
	value, _, err = b.newest(ctx, key)
	return value, value != nil, err
}

// newest reads a key from the leader. If the key has no value, value is nil. seq is the
// sequence of the key's newest entry, which may be a deletion, or 0 if the key has no entry.
func (b *Bucket) newest(ctx context.Context, key string) (value []byte, seq uint64, err error) {
	m, err := b.c.Last(ctx, "KV_"+b.name, b.subject(key))
	switch {
	case errors.Is(err, ErrNotFound):
		return nil, 0, nil
	case err != nil:
		return nil, 0, err
	case m.Header.Get("KV-Operation") != "" || m.Header.Get("Nats-Marker-Reason") != "":
		return nil, m.Seq, nil
	}
	return append([]byte{}, m.Data...), m.Seq, nil
}

// Change replaces the value of a key by the result of change. change gets the present value,
// or nil if the key has none. If several processes change a key at once, each change gets the
// value that the previous one has set. An unchanged value is not written.
func (b *Bucket) Change(ctx context.Context, key string, change func(value []byte) ([]byte, error)) error {
	return Retry(ctx, Backoff{
		First: time.Millisecond, Most: minBackoff, Jitter: true, Again: func(err error) bool { return errors.Is(err, ErrConflict) },
	}, func() error {
		old, seq, err := b.newest(ctx, key)
		if err != nil {
			return err
		}
		value, err := change(old)
		if err != nil || old != nil && bytes.Equal(value, old) {
			return err
		}
		_, err = b.c.CompareAndSet(ctx, b.subject(key), nil, value, seq)
		return err
	})
}

// Delete removes a key. It returns no error if the key has no value.
func (b *Bucket) Delete(ctx context.Context, key string) error { return b.delete(ctx, key) }

// DeleteRevision removes a key if its newest value has this revision. Otherwise it returns
// an error.
func (b *Bucket) DeleteRevision(ctx context.Context, key string, revision uint64) error {
	return b.delete(ctx, key, jetstream.LastRevision(revision))
}

func (b *Bucket) delete(ctx context.Context, key string, options ...jetstream.KVDeleteOpt) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	if err := b.kv.Delete(ctx, key, options...); err != nil {
		return b.failed("delete", key, err)
	}
	return nil
}

// Watch calls each for every key that has a value, then ready once, and then each for every
// change. A nil value means that the key was deleted or has aged out. Watch returns nil when
// ctx ends. It continues after lost connections and restarts of the server. It may then call
// each again with values that it has reported before.
func (b *Bucket) Watch(ctx context.Context, each func(key string, value []byte), ready func()) error {
	lost := make(chan struct{}, 1)
	defer b.c.OnReconnect(func() {
		select {
		case lost <- struct{}{}:
		default:
		}
	})()
	w := &watch{each: each, ready: ready, known: map[string]bool{}}
	for backoff := minBackoff; ctx.Err() == nil; backoff = min(2*backoff, maxBackoff) {
		err := b.watchOnce(ctx, w, lost)
		if err == nil {
			backoff = minBackoff
			continue
		}
		b.c.log.Warn("watching a bucket stopped; trying again", "bucket", b.name, "err", err, "wait", backoff)
		select {
		case <-ctx.Done():
		case <-lost:
		case <-time.After(Jitter(backoff)):
		}
	}
	return nil
}

// watchOnce watches until ctx ends or the connection is lost. In both cases it returns nil.
func (b *Bucket) watchOnce(ctx context.Context, w *watch, lost <-chan struct{}) error {
	watcher, err := b.kv.WatchAll(ctx)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return ClientError(err)
	}
	defer func() { _ = watcher.Stop() }()
	w.begin()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-lost:
			return nil
		case entry, open := <-watcher.Updates():
			switch {
			case !open:
				return errors.New("the watcher ended")
			case entry == nil:
				w.complete()
			case entry.Operation() == jetstream.KeyValuePut:
				w.set(entry.Key(), entry.Value())
			default:
				w.unset(entry.Key())
			}
		}
	}
}

// watch remembers the keys that it has reported. If one of them is missing after a reconnect,
// watch reports it as deleted.
type watch struct {
	each  func(key string, value []byte)
	ready func() // nil after it was called
	known map[string]bool
	seen  map[string]bool // keys of the listing in progress; nil outside of a listing
}

func (w *watch) begin() { w.seen = map[string]bool{} }

func (w *watch) set(key string, value []byte) {
	if value == nil {
		value = []byte{}
	}
	w.known[key] = true
	if w.seen != nil {
		w.seen[key] = true
	}
	w.each(key, value)
}

func (w *watch) unset(key string) {
	if w.known[key] {
		delete(w.known, key)
		w.each(key, nil)
	}
}

// complete ends the initial listing. It reports every key that has disappeared since the last
// listing as deleted.
func (w *watch) complete() {
	for key := range w.known {
		if !w.seen[key] {
			w.unset(key)
		}
	}
	w.seen = nil
	if w.ready != nil {
		w.ready()
		w.ready = nil
	}
}

// Values returns all values of a bucket by key, without a consumer. A replica that is
// behind may answer.
func (c *Conn) Values(ctx context.Context, bucket string) (map[string][]byte, error) {
	prefix := "$KV." + bucket + "."
	found, err := c.Glance(ctx, "KV_"+bucket, prefix+">")
	if err != nil {
		return nil, err
	}
	values := make(map[string][]byte, len(found))
	for _, m := range found {
		if m.Header.Get("KV-Operation") == "" && m.Header.Get("Nats-Marker-Reason") == "" {
			values[strings.TrimPrefix(m.Subject, prefix)] = m.Data
		}
	}
	return values, nil
}

func (b *Bucket) failed(what, key string, err error) error {
	var api *jetstream.APIError
	if errors.As(err, &api) {
		err = apiError(api)
	}
	return fmt.Errorf("%s %s in bucket %s: %w", what, key, b.name, writeError(err))
}
