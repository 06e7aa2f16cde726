package main

import (
	"context"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/natstest"
)

// A user has no right to inspect the server: the doctor names this right, and does not report
// the server as broken.
func TestDoctorWithoutRights(t *testing.T) {
	t.Parallel()
	ids := natstest.NewIdentities(t)
	ctx, cancel := context.WithTimeout(t.Context(), manyStarts)
	defer cancel()
	m := &members{t: t, ctx: ctx, ids: ids, srv: natstest.Server(t, natstest.Listening, ids.Option)}
	for who, want := range map[string]string{"worker": "rights", "coordinator": "rights", "operator": "streams"} {
		out, err := m.command(who, "doctor").Output()
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		if last := lines[len(lines)-1]; err == nil || !strings.HasPrefix(last, "fail") || !strings.Contains(last, want) {
			t.Errorf("as %s: %v, want to end with what is wrong with the %s\n%s", who, err, want, out)
		}
	}
}
