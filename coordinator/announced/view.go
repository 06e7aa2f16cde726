package announced

import (
	"maps"
	"slices"

	"github.com/toolfleet/toolfleet/coordinator/toolset"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/schemas"
)

// View returns the announcements that count for a tenant, sorted by tool: what workers of all
// tenants have announced, as far as the pools are not another tenant's, and what the tenant's own
// workers have announced for its pools. If both have announced a tool, the tenant's own counts,
// unless workers serve only the other. all is by key in the bucket. served reports whether a
// worker serves exactly this definition for the tenant.
func View(tenant string, owners toolset.Owners, all map[string]schemas.Announcement, served func(schemas.Tool) bool) []schemas.Announcement {
	view := map[string]schemas.Announcement{}
	for key, a := range all {
		by, name := wire.AnnouncedBy(key)
		if by != "" && by != tenant {
			continue
		}
		a, any := within(a, func(pool string) bool { return owners.Counts(by, pool) && owners.Serves(pool, tenant) })
		if !any {
			continue
		}
		if other, both := view[name]; both {
			own, general := a, other
			if by == "" {
				own, general = other, a
			}
			if a = own; !slices.ContainsFunc(own.All(), served) && slices.ContainsFunc(general.All(), served) {
				a = general
			}
		}
		view[name] = a
	}
	tools := make([]schemas.Announcement, 0, len(view))
	for _, name := range rawjson.SortedKeys(view) {
		tools = append(tools, view[name])
	}
	return tools
}

// within returns an announcement with the versions in allowed pools. any is false if there are
// none.
func within(a schemas.Announcement, allowed func(pool string) bool) (_ schemas.Announcement, any bool) {
	versions := slices.DeleteFunc(a.All(), func(t schemas.Tool) bool { return !allowed(t.Pool) })
	if len(versions) == 0 {
		return a, false
	}
	a.Tool, a.Versions = versions[0], versions[1:]
	return a, true
}

// special returns the tenants whose tools differ from those of the others.
func special(owners toolset.Owners) []string {
	return slices.Compact(slices.Sorted(maps.Values(owners)))
}
