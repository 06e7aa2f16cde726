package announced_test

import (
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/coordinator/announced"
	"github.com/toolfleet/toolfleet/coordinator/toolset"
	"github.com/toolfleet/toolfleet/schemas"
)

// in is the definition of a tool in a pool.
func in(pool string) schemas.Tool { return schemas.Tool{Name: "t", Pool: pool} }

// Each tenant has the tools of its own pools, and those of the pools of all.
func TestView(t *testing.T) {
	owners := toolset.Owners{"acmes": "acme", "globexes": "globex"}
	fleet, own := schemas.Announcement{Tool: in("default")}, schemas.Announcement{Tool: in("acmes")}
	both := schemas.Announcement{Tool: in("acmes"), Versions: []schemas.Tool{in("default")}}
	type all = map[string]schemas.Announcement
	for name, tc := range map[string]struct {
		announced    all
		acme, globex string // the pools of the tool's versions
		served       string // the only pool whose definition workers serve; "": none
	}{
		"of all":                          {all{"t": fleet}, "default", "default", ""},
		"its own":                         {all{"acme.t": own}, "acmes", "", ""},
		"its own before that of all":      {all{"acme.t": own, "t": fleet}, "acmes", "default", "acmes"},
		"both, which nobody serves":       {all{"acme.t": own, "t": fleet}, "acmes", "default", ""},
		"its own, which nobody serves":    {all{"acme.t": own, "t": fleet}, "default", "default", "default"},
		"in its pool, by a worker of all": {all{"t": own}, "acmes", "", ""},
		"a version of it":                 {all{"t": both}, "acmes default", "default", ""},
		"in a pool of all, by its worker": {all{"acme.t": fleet, "t": own}, "acmes", "", ""},
		"in another's pool":               {all{"globex.t": own}, "", "", ""},
		"beside one that does not count":  {all{"acme.t": both}, "acmes", "", ""},
		"nobody's":                        {all{"elsewhere.t": fleet}, "", "", ""},
	} {
		for tenant, want := range map[string]string{"acme": tc.acme, "globex": tc.globex} {
			var pools []string
			for _, a := range announced.View(tenant, owners, tc.announced, func(t schemas.Tool) bool { return t.Pool == tc.served }) {
				for _, t := range a.All() {
					pools = append(pools, t.Pool)
				}
			}
			if got := strings.Join(pools, " "); got != want {
				t.Errorf("%s: %s has it in %q, want %q", name, tenant, got, want)
			}
		}
	}
}
