package schemas

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/toolfleet/toolfleet/internal/wire"
)

func TestOffered(t *testing.T) {
	// allows denies nothing, or is from a build that does not report what it denies.
	allows := wire.Presence{Tools: []string{"look", "pay"}}
	denies := wire.Presence{Tools: []string{"look", "pay"}, Denied: []string{"pay"}}
	elsewhere := wire.Presence{Tools: []string{"look"}}
	for name, row := range map[string]struct {
		denied  bool // by the announcement
		present []wire.Presence
		want    bool
	}{
		"nobody is there":                    {false, nil, true},
		"nobody is there, denied":            {true, nil, false},
		"served":                             {false, []wire.Presence{allows}, true},
		"denied by a worker":                 {false, []wire.Presence{denies}, false},
		"denied by one of two":               {false, []wire.Presence{allows, denies}, false},
		"denied by the other of two":         {false, []wire.Presence{denies, allows}, false},
		"announced by one that left":         {true, []wire.Presence{allows}, true},
		"denied, and others have other work": {true, []wire.Presence{elsewhere}, false},
		"others have other work":             {false, []wire.Presence{elsewhere}, true},
	} {
		announced := []Announcement{{Tool: Tool{Name: "look"}}, {Tool: Tool{Name: "pay"}, Denied: row.denied}}
		want := []Tool{{Name: "look"}, {Name: "pay"}}
		if !row.want {
			want = want[:1]
		}
		if diff := cmp.Diff(want, Offered(announced, row.present, func(Tool) bool { return true })); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}
}
