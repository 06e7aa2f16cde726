package schemas

import (
	"slices"

	"github.com/toolfleet/toolfleet/messages"
)

// Announcement is what a worker makes known of a tool. It outlives the worker.
type Announcement struct {
	Tool
	// Denied says that the worker's policy denies every call of the tool. It is no part of the definition, and its
	// digest does not depend on it.
	Denied bool `json:"denied,omitempty"`
}

// Offered is the tools that a model is told of, in the order given: those that the fleet's policy does not deny
// altogether. The workers that serve a tool now decide, and where they disagree, deny wins. Where no worker serves it
// the announcement decides.
func Offered(announced []Announcement, present []messages.Presence) []Tool {
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
