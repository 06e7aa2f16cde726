package toolset

import (
	"fmt"

	"github.com/toolfleet/toolfleet/internal/wire"
)

// Owners holds the pools that belong to one tenant: the tenant's token, by pool. Every other
// pool serves all tenants.
type Owners map[string]string

// Serves reports whether calls of a tenant may go to a pool.
func (o Owners) Serves(pool, tenant string) bool {
	owner := o[pool]
	return owner == "" || owner == tenant
}

// Counts reports whether an announcement may speak of a pool. A worker that is held to a
// tenant speaks only of that tenant's own pools.
func (o Owners) Counts(worker, pool string) bool { return worker == "" || o[pool] == worker }

// Bound is like [Bound]. It also drops pools of which the worker may not speak.
func (o Owners) Bound(w wire.Presence) (bounded wire.Presence, dropped []string) {
	bounded, dropped = Bound(w)
	pools := bounded.Pools
	bounded.Pools = nil
	for _, pool := range pools {
		if o.Counts(w.Tenant, pool) {
			bounded.Pools = append(bounded.Pools, pool)
			continue
		}
		dropped = append(dropped, fmt.Sprintf("pool %s, which is no pool of the tenant %s by the setting tenant_pools", pool, w.Tenant))
	}
	return bounded, dropped
}

// Fleet returns the queues of the announced workers, as far as their announcements count.
func (o Owners) Fleet(present []wire.Presence) *Fleet {
	counts := make([]wire.Presence, len(present))
	for i, w := range present {
		counts[i], _ = o.Bound(w)
	}
	f := New(counts)
	f.owners = o
	return f
}
