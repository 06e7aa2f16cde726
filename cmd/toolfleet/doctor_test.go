package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/messages"
)

// The doctor compares what the members of a fleet decide by. A "+" begins what is of a worker's tools file alone.
func TestDoctorComparesPolicies(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		for _, tc := range []struct{ coordinators, workers, status, says string }{
			{"", "p", "ok", "the same"}, // which a fleet without coordinators is told elsewhere
			{"p", "p p", "ok", "the same"},
			{"-", "-", "ok", "none"},
			{"p", "p+t p+t", "ok", "the same"},
			{"-", "+t", "ok", "the same"},
			{"p", "- p", "fail", "1 worker without a policy"},
			{"p", "q", "warn", "another policy than the coordinators"},
			{"p", "+t", "warn", "another policy than the coordinators"},
			{"-", "p", "warn", "another policy than the coordinators"},
			{"p q", "p", "warn", "2 different policies"},
			{"p -", "-", "warn", "2 different policies"},
			{"p", "p+t p+u", "warn", "the workers decide by 2"},
		} {
			e := &examination{ctx: t.Context()}
			version := func(word string) string { return strings.TrimPrefix(word, "-") }
			var closes []func()
			serve := func(prefix, policy string) {
				conn, err := bus.Connect(t.Context(), bus.Options{InProcess: srv, Prefix: prefix})
				if err != nil {
					t.Fatal(err)
				}
				stop, err := conn.Serve(t.Context(), bus.Service{
					Name: "toolfleet", Version: "1.0.0", Metadata: map[string]string{"policy": policy},
					Endpoints: []bus.Endpoint{{Name: "control", Subject: conn.Names().EverySession(messages.VerbControl), Handle: func(bus.Msg) {}}},
				})
				if err != nil {
					t.Fatal(err)
				}
				closes = append(closes, stop, conn.Close)
			}
			serve("other", "of another fleet")
			for _, word := range strings.Fields(tc.coordinators) {
				serve("", version(word))
			}
			var err error
			if e.conn, err = bus.Connect(t.Context(), bus.Options{InProcess: srv}); err != nil {
				t.Fatal(err)
			}
			var workers []messages.Presence
			for _, word := range strings.Fields(tc.workers) {
				workers = append(workers, messages.Presence{Policy: version(word)})
			}
			e.policies(workers)
			if len(e.findings) != 1 || e.findings[0].Status != tc.status || !strings.Contains(e.findings[0].Detail, tc.says) {
				t.Errorf("coordinators %q and workers %q: %+v, want %s: %s", tc.coordinators, tc.workers, e.findings, tc.status, tc.says)
			}
			for _, f := range append(closes, e.conn.Close) {
				f()
			}
		}
	})
}

// Whoever may not look is told so, and not that the server is broken.
func TestDoctorWithoutRights(t *testing.T) {
	ids := natstest.NewIdentities(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
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
