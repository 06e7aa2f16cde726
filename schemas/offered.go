package schemas

import (
	"slices"

	"github.com/toolfleet/toolfleet/internal/wire"
)

// Announcement is what a worker publishes about a tool. It outlives the worker.
type Announcement struct {
	Tool
	// Denied says that the worker's policy denies every call of the tool. It is not part of the
	// definition, and the digest does not depend on it.
	Denied bool `json:"denied,omitempty"`
}

// Offered returns the tools to offer to a model, in the order given: those of which the fleet's
// policy does not deny every call. The workers that serve a tool now decide; where they disagree,
// deny wins. When no worker serves the tool, its announcement decides.
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
