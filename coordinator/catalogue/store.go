package catalogue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// Objects stores bodies under their digests. [objects.Store] implements it and documents the
// methods.
type Objects interface {
	Put(ctx context.Context, data []byte) (messages.Ref, error)
	GetDigest(ctx context.Context, digest string, limit int64) ([]byte, error)
}

const (
	// maxCached is how many catalogues a Store keeps in memory. Each change of the tools makes
	// a new catalogue.
	maxCached = 64
	// renewEvery is the age at which a catalogue in use is stored again. The object store
	// keeps an object for more than a day after it was last stored.
	renewEvery = time.Hour
)

// Store keeps catalogues by digest. A catalogue is kept at least as long as replies are,
// counted from when it was last stored or used. Safe for concurrent use.
type Store struct {
	objects Objects
	log     *slog.Logger

	mu     sync.Mutex
	cached map[string]cached // by digest; guarded by mu
}

type cached struct {
	tools  schemas.Catalog
	body   []byte    // the stored form of tools
	stored time.Time // when the catalogue was last put into the object store
}

// NewStore returns a store of catalogues. log may be nil.
func NewStore(objects Objects, log *slog.Logger) *Store {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Store{objects: objects, log: log, cached: map[string]cached{}}
}

// Put stores a catalogue and returns its digest. Give the digest to an agent only after Put
// has succeeded, because the agent's batches name it.
func (s *Store) Put(ctx context.Context, tools schemas.Catalog) (digest string, err error) {
	body, digest := Encode(tools)
	if len(body) > MaxBytes {
		return "", fmt.Errorf("store a catalogue of %d bytes: the limit is %d", len(body), MaxBytes)
	}
	c, has := s.lookup(digest)
	if !has {
		c = cached{tools: tools, body: body}
	}
	if err := s.renew(ctx, digest, c); err != nil {
		return "", fmt.Errorf("store the catalogue %s: %w", digest, err)
	}
	return digest, nil
}

// Get returns the catalogue with a digest. found is false if the catalogue was never stored,
// or has been deleted because of its age.
func (s *Store) Get(ctx context.Context, digest string) (tools schemas.Catalog, found bool, err error) {
	if !messages.IsDigest(digest) {
		return schemas.Catalog{}, false, nil
	}
	c, has := s.lookup(digest)
	if !has {
		if c.body, err = s.objects.GetDigest(ctx, digest, MaxBytes); err == nil {
			c.tools, err = Decode(c.body)
		}
		switch {
		case errors.Is(err, bus.ErrNotFound):
			return schemas.Catalog{}, false, nil
		case errors.Is(err, errNone), errors.Is(err, bus.ErrTooLarge), errors.Is(err, bus.ErrCorrupt):
			s.log.Warn("a batch names an object that is no catalogue, or a damaged one; it counts as forgotten", "catalogue", digest, "err", err)
			return schemas.Catalog{}, false, nil
		case err != nil:
			return schemas.Catalog{}, false, fmt.Errorf("read the catalogue %s: %w", digest, err)
		}
		s.keep(digest, c)
	}
	if err := s.renew(ctx, digest, c); err != nil {
		s.log.Warn("a catalogue that is in use was not stored again; its next use tries it again", "catalogue", digest, "err", err)
	}
	return c.tools, true, nil
}

// renew stores a catalogue again if it was last stored more than renewEvery ago.
func (s *Store) renew(ctx context.Context, digest string, c cached) error {
	if time.Since(c.stored) < renewEvery {
		return nil
	}
	if _, err := s.objects.Put(ctx, c.body); err != nil {
		return err
	}
	c.stored = time.Now()
	s.keep(digest, c)
	return nil
}

func (s *Store) lookup(digest string) (cached, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, has := s.cached[digest]
	return c, has
}

// keep caches a catalogue. If the cache is full, it drops any other catalogue, which is read
// again when needed.
func (s *Store) keep(digest string, c cached) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, has := s.cached[digest]; !has && len(s.cached) >= maxCached {
		for other := range s.cached {
			delete(s.cached, other)
			break
		}
	}
	s.cached[digest] = c
}
