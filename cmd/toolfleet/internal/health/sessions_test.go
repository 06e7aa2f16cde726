package health

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/command"
	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/coordinator/tuning"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/config"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// The doctor names two kinds of sessions: those that have an answered batch in the log again, and
// those that no coordinator drives. It does not name a session whose oldest batch runs.
func TestDoctorNamesSessionsThatStandStill(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		conn, err := bus.Connect(t.Context(), bus.Options{InProcess: srv})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		registry := &tool.Registry{}
		for name, kind := range map[string]messages.Kind{"read": messages.KindRead, "write": messages.KindWrite} {
			nap := tool.Func(func(ctx context.Context, _ tool.Call) (tool.Output, error) {
				select {
				case <-time.After(20 * time.Minute):
				case <-ctx.Done():
				}
				return tool.Text("slept"), ctx.Err()
			})
			if err := registry.Add(schemas.Tool{Name: name, Kind: kind, TimeoutMS: 1_500_000}, nap); err != nil {
				t.Fatal(err)
			}
		}
		c, err := coordinator.New(conn, coordinator.Config{})
		if err != nil {
			t.Fatal(err)
		}
		w, err := worker.New(conn, registry, worker.Config{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		ended := make(chan error, 2)
		go func() { ended <- w.Run(ctx) }()
		go func() { ended <- c.Run(ctx) }()
		time.Sleep(time.Second) // simulated

		agent := command.ClientOver(conn, "")
		submit := func(session, batch, calls string) {
			t.Helper()
			b := messages.Batch{V: 1, ID: messages.BatchID(batch), Session: messages.SessionID(session), Provider: messages.Canonical, Message: []byte(`{"calls":[` + calls + `]}`)}
			if err := agent.Submit(t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}
		e := &examination{ctx: t.Context(), conn: conn, cfg: &config.Config{Coordinators: tuning.Config{QueueTimeout: time.Minute}}}
		want := func(when string, want ...string) {
			t.Helper()
			e.findings = nil
			e.sessions()
			var got []string
			for _, f := range e.findings {
				got = append(got, f.Status+" "+f.Check+": "+f.Detail)
			}
			if !slices.EqualFunc(got, want, strings.HasPrefix) {
				t.Errorf("%s: got %q, want %q", when, got, want)
			}
		}
		const none = "ok sessions: none stands still"
		submit("again", "b", "")
		if _, err := agent.Await(t.Context(), "again", "b"); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"read", "write"} {
			submit(name, "b", `{"id":"c","name":"`+name+`","input":{}}`)
			submit(name, "behind", "")
		}
		time.Sleep(19 * time.Minute)
		want("two heads run", none)
		time.Sleep(2 * time.Minute)
		want("they have ended", none)
		stop()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		submit("undriven", "b", "")
		submit("undriven", "behind", "")
		submit("again", "b", "")
		time.Sleep(2 * time.Minute)
		want("a batch is back in the log", "fail sessions: session again stands still: its batch b has had its reply for 2m and is still in the log")
		time.Sleep(31 * time.Minute)
		want("nobody drives the other",
			"fail sessions: session undriven stands still: no call of its batch b has been queued, run or waited for a person for 33m",
			"fail sessions: session again stands still: its batch b has had its reply for 33m")
	})
}
