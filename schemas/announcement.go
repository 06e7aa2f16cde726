package schemas

import (
	"slices"

	"github.com/toolfleet/toolfleet/internal/wire"
)

// Announcement is what workers publish about a tool. It stays stored after the workers are
// gone.
type Announcement struct {
	// Tool is the definition that was announced last. If the worker announced several
	// versions, Tool is the newest of them.
	Tool
	// Denied says that the worker's policy denies every call of the tool. It is no part of the
	// definition, so the digest does not cover it.
	Denied bool `json:"denied,omitempty"`
	// Versions holds the other announced definitions of the tool, the latest first. They come
	// from other workers, or from the same worker if it serves several versions.
	Versions []Tool `json:"versions,omitempty"`
}

// maxOthers is how many definitions an announcement holds besides the last one. A rolling
// update of a tool without versions needs two definitions.
const maxOthers = 2 * MaxVersions

// All returns every definition of the announcement, the latest first.
func (a Announcement) All() []Tool { return append([]Tool{a.Tool}, a.Versions...) }

// With returns the announcement after a worker has announced the versions of a tool that it
// serves. It keeps the latest maxOthers definitions of other workers.
func (a Announcement) With(served []Tool, denied bool) Announcement {
	served = slices.Clone(served)
	slices.SortStableFunc(served, func(x, y Tool) int { return CompareVersions(y.Version, x.Version) })
	all := served
	if a.Name != "" {
		all = append(all, a.All()...)
	}
	with := Announcement{Tool: all[0], Denied: denied}
	seen := map[string]bool{with.Digest: true}
	for _, t := range all {
		if !seen[t.Digest] && len(with.Versions) < maxOthers {
			seen[t.Digest] = true
			with.Versions = append(with.Versions, t)
		}
	}
	return with
}

// Current returns the definition for calls whose batch names no catalogue: the newest version
// that a worker serves. If two definitions have the same version, Current returns the one
// announced later. If no worker serves the tool, Current returns the definition that was
// announced last. After a rollback that definition is not the newest version.
func (a Announcement) Current(served func(Tool) bool) Tool {
	current := a.Tool
	found := false
	for _, t := range a.All() {
		if served(t) && (!found || CompareVersions(t.Version, current.Version) > 0) {
			current, found = t, true
		}
	}
	return current
}

// Offered returns the current tools to offer to a model, in the given order. It leaves out a
// tool if the fleet's policy denies every call of it. Each worker that serves the tool reports
// what its policy says; if they disagree, deny wins. If no worker serves the tool, its
// announcement decides. served reports whether a worker serves exactly this definition.
func Offered(announced []Announcement, present []wire.Presence, served func(Tool) bool) []Tool {
	var tools []Tool
	for _, a := range announced {
		denied, known := false, false
		for _, w := range present {
			known = known || slices.Contains(w.Tools, a.Name)
			denied = denied || slices.Contains(w.Denied, a.Name)
		}
		if !denied && (known || !a.Denied) {
			tools = append(tools, a.Current(served))
		}
	}
	return tools
}
