package toolset_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/coordinator/toolset"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// held is a worker of one tenant.
func held(tenant string, w wire.Presence) wire.Presence {
	w.Tenant = tenant
	return w
}

// A pool that belongs to a tenant gets no job of another, whatever is announced.
func TestAPoolOfOneTenant(t *testing.T) {
	acmes := toolset.Owners{"p": "acme"}
	token := wire.QueueToken("p", []string{"a1"})
	for name, tc := range map[string]struct {
		owners  toolset.Owners
		present wire.Presence
		tenant  string
		want    bool
	}{
		"its tenant, its worker":                {acmes, held("acme", worker(1, 0, "a1")), "acme", true},
		"its tenant, a worker of all":           {acmes, worker(1, 0, "a1"), "acme", true},
		"another tenant, its worker":            {acmes, held("acme", worker(1, 0, "a1")), "globex", false},
		"another tenant, a worker of all":       {acmes, worker(1, 0, "a1"), "globex", false},
		"another tenant's worker":               {acmes, held("globex", worker(1, 0, "a1")), "acme", false},
		"and it asks for its own tenant":        {acmes, held("globex", worker(1, 0, "a1")), "globex", false},
		"a worker of acme in a pool of all":     {nil, held("acme", worker(1, 0, "a1")), "acme", false},
		"nor for others":                        {nil, held("acme", worker(1, 0, "a1")), "globex", false},
		"another tenant, and its worker drains": {acmes, draining(held("acme", worker(1, 0, "a1"))), "globex", false},
	} {
		f, wanted := tc.owners.Fleet([]wire.Presence{tc.present}), tool("a1")
		wanted.Tenant = tc.tenant
		got, served := f.Place(wanted, "call", none)
		_, free := f.PlaceFree(wanted, "call", "elsewhere", none)
		if served != tc.want || free != tc.want || f.Serves(wanted) != tc.want || f.Has(wanted) != tc.want || f.Keeps(token, wanted) != tc.want || (got == token) != tc.want {
			t.Errorf("%s: placed in %s, %v; free %v, serves %v, has %v, keeps %v", name, got, served, free, f.Serves(wanted), f.Has(wanted), f.Keeps(token, wanted))
		}
		if busier := f.Busier(tc.present, 1); busier.Serves(wanted) != tc.want {
			t.Errorf("%s: serves %v once it is busier", name, !tc.want)
		}
	}
}

func TestWhatAHeldWorkerMayAnnounce(t *testing.T) {
	owners := toolset.Owners{"own": "acme", "theirs": "globex"}
	w := wire.Presence{Tenant: "acme", Slots: 1, Tools: []string{"a"}, Pools: []string{"own", "theirs", "default"}}
	bounded, dropped := owners.Bound(w)
	if !slices.Equal(bounded.Pools, []string{"own"}) || len(dropped) != 2 || !strings.Contains(dropped[0], "theirs") {
		t.Errorf("%v count, %q are dropped", bounded.Pools, dropped)
	}
	w.Tenant = ""
	if bounded, dropped := owners.Bound(w); len(bounded.Pools) != 3 || len(dropped) > 0 {
		t.Errorf("of a worker of all tenants %v count, %q are dropped", bounded.Pools, dropped)
	}
}
