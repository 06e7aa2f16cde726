package schemas

import (
	"slices"

	"github.com/toolfleet/toolfleet/internal/wire"
)

// Announcement is what a worker publishes about a tool. It outlives the worker.
type Announcement struct {
	Tool
	// Denied: the worker's policy denies every call of the tool. It is not part of the definition,
	// so the digest does not depend on it.
	Denied bool `json:"denied,omitempty"`
}

// Offered returns the tools to offer to a model, in the given order. It leaves out a tool if the
// fleet's policy denies every call of it. The workers that serve the tool now decide that; if they
// disagree, deny wins. If no worker serves the tool, its announcement decides.
func Offered(announced []Announcement, present []wire.Presence) []Tool {
	var tools []Tool
	for _, a := range announced {
		denied, served := false, false
		for _, w := range present {
			served = served || slices.Contains(w.Tools, a.Name)
			denied = denied || slices.Contains(w.Denied, a.Name)
		}
		if !denied && (served || !a.Denied) {
			tools = append(tools, a.Tool)
		}
	}
	return tools
}
