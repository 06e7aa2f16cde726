package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// ReadBucket returns every value of a bucket, in the order of their keys. The values that
// workers of single tenants have announced come last.
func ReadBucket[T any](ctx context.Context, conn *bus.Conn, name string) ([]T, error) {
	found, err := conn.Values(ctx, conn.Names().Stream(name))
	if errors.Is(err, bus.ErrNoStream) {
		return nil, fmt.Errorf("bucket %s: %w, or it is not ready; no fleet has run on this server yet: start `toolfleet coordinator` and `toolfleet worker`", name, bus.ErrNoStream)
	}
	if err != nil {
		return nil, err
	}
	values := make([]T, len(found))
	keys := rawjson.SortedKeys(found)
	slices.SortStableFunc(keys, func(a, b string) int {
		ofA, _ := wire.AnnouncedBy(a)
		ofB, _ := wire.AnnouncedBy(b)
		return strings.Compare(ofA, ofB)
	})
	for i, key := range keys {
		if err := json.Unmarshal(found[key], &values[i]); err != nil {
			return nil, fmt.Errorf("%s in bucket %s cannot be read: %w", key, name, err)
		}
	}
	return values, nil
}
