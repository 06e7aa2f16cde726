package toolset

import (
	"fmt"
	"slices"

	"github.com/toolfleet/toolfleet/internal/wire"
)

// Limits of one worker's announcement. An announcement is not signed, so these limits bound
// what it can claim: see docs/identities.md.
const maxPools, maxTools, maxSlots = 64, 4096, 4096

// Bound returns the part of an announcement that counts. dropped describes what it leaves out:
// pools, tools and slots beyond the limits, and queues that do not belong to their tools.
func Bound(w wire.Presence) (bounded wire.Presence, dropped []string) {
	drop := func(format string, args ...any) { dropped = append(dropped, fmt.Sprintf(format, args...)) }
	bounded = w
	if w.Slots > maxSlots {
		drop("%d slots, of which %d count", w.Slots, maxSlots)
		bounded.Slots = maxSlots
	}
	if len(w.Pools) > maxPools {
		drop("%d pools, of which %d count", len(w.Pools), maxPools)
		w.Pools = w.Pools[:maxPools]
	}
	bounded.Pools = nil
	for _, pool := range w.Pools {
		q, has := w.Queues[pool]
		switch n := max(len(q.Tools), len(w.Toolsets[pool]), len(w.Tools)); {
		case slices.Contains(bounded.Pools, pool):
		case wire.PoolOf(pool) != pool:
			drop("pool %.80q, which is no name of one", pool)
		case n > maxTools:
			drop("pool %s with %d tools; at most %d count", pool, n, maxTools)
		case has && !q.IsOf(pool):
			drop("queue %.80q of pool %s, which is not the one of its tools", q.Token, pool)
		default:
			bounded.Pools = append(bounded.Pools, pool)
		}
	}
	return bounded, dropped
}
