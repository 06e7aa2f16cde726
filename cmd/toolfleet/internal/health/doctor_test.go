package health

import (
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/bus/provision"
	"github.com/toolfleet/toolfleet/internal/bus/service"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// The doctor compares the policies of the fleet's members. In a version, the text after "+" is
// the part of a worker's own tools file.
func TestDoctorComparesPolicies(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		for _, tc := range []struct{ coordinators, workers, status, says string }{
			{"", "p", "ok", "the same"}, // another check reports a fleet without coordinators
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
				stop, err := service.Serve(t.Context(), conn, service.Service{
					Name: "toolfleet", Version: "1.0.0", Metadata: map[string]string{"policy": policy},
					Endpoints: []service.Endpoint{{Name: "control", Subject: conn.Names().EverySession(wire.VerbControl), Handle: func(bus.Msg) {}}},
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
			var workers []wire.Presence
			for _, word := range strings.Fields(tc.workers) {
				workers = append(workers, wire.Presence{Policy: version(word)})
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

// The doctor finds missing streams, calls without workers for them, a pool without its consumer, a
// bucket that somebody else has written to, and a full stream.
func TestDoctorSaysWhatIsMissing(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		conn, err := bus.Connect(t.Context(), bus.Options{InProcess: srv})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		e := &examination{ctx: t.Context(), conn: conn}
		want := func(look func(), lines ...string) {
			t.Helper()
			e.findings = nil
			look()
			for i, f := range e.findings {
				if line := f.Status + " " + f.Check + ": " + f.Detail; i >= len(lines) || !strings.HasPrefix(line, lines[i]) {
					t.Errorf("%s", line)
				}
			}
			if len(e.findings) != len(lines) {
				t.Errorf("got %+v, want %q", e.findings, lines)
			}
		}
		put := func(key, value string) {
			t.Helper()
			bucket, err := conn.Bucket(t.Context(), conn.Names().Stream(bus.BucketWorkers))
			if err == nil {
				err = bucket.Put(t.Context(), key, []byte(value))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		want(e.workers, "fail workers: bucket workers: no such stream, or it is not ready; no fleet has run on this server yet")
		want(e.dead, "fail dead letters: ask about stream TOOLFLEET_DEAD: no such stream")
		if err := provision.Ensure(t.Context(), conn, provision.Config{MaxBytes: map[string]int64{bus.Dead: 1000}}); err != nil {
			t.Fatal(err)
		}
		want(e.server, "ok server: ", "ok jetstream: ", "ok clock: ")
		want(e.consumers, "fail coordinators: none is taking batches, no batch open")
		want(e.workers, "fail workers: there are none")
		tool := func(name, pool string) {
			t.Helper()
			bucket, err := conn.Bucket(t.Context(), conn.Names().Stream(bus.BucketTools))
			if err == nil {
				err = bucket.Put(t.Context(), name, rawjson.MustMarshal(schemas.Tool{Name: name, Pool: pool}))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		job := func(pool string, index int) {
			t.Helper()
			call := wire.CallKey{BatchKey: wire.KeyOf(messages.OneTenant, "s", "b"), Index: index}
			if _, err := conn.Append(t.Context(), conn.Names().Lane(false, pool, call), nil, []byte("{}")); err != nil {
				t.Fatal(err)
			}
		}
		tool("far", "away")
		want(e.workers, "fail workers: there are none")
		job("away", 0)
		want(e.workers, "fail workers: there are none", "fail workers: pool away: 1 call waiting and no worker that serves it")
		put("w1", `{"worker":"w1","pools":["gpu"]}`)
		job("gpu", 1) // a worker serves this pool and will take the job
		job("away", 2)
		want(e.workers, "ok policy: ", "ok workers: 1 worker in 1 pool", "fail workers: pool away: 2 calls waiting and no worker that serves it", "fail workers: ask about consumer gpu")
		if next := e.findings[2].Next; !strings.HasSuffix(next, "a tool of this pool: far.") {
			t.Errorf("what to do: %q", next)
		}
		put("w2", "{")
		want(e.workers, "fail workers: w2 in bucket workers cannot be read: ")
		want(e.dead, "ok dead letters: none")
		want(e.room)
		if _, err := conn.Append(t.Context(), "toolfleet.dead.x", nil, make([]byte, 900)); err != nil {
			t.Fatal(err)
		}
		want(e.room, "warn room: TOOLFLEET_DEAD is nearly full: it holds 9")
	})
}
