package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/natstest"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/hook"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// A batch has five calls: one succeeds, one fails, one is rejected, one reports progress, and
// one has a post-hook that cannot run. Each call is counted, and has an event and an audit
// line with its duration and decision. Only audit lines of chosen tools show arguments, and no
// event does.
func TestEveryOutcomeIsCountedAndReported(t *testing.T) {
	f := newFleet(t, natstest.Server(t, natstest.Fast))
	defer f.close()
	read := func(name string, run func(c tool.Call) (tool.Output, error)) {
		f.tool(schemas.Tool{Name: name, Kind: messages.KindRead}, func(_ context.Context, c tool.Call) (tool.Output, error) { return run(c) })
	}
	fine := func(tool.Call) (tool.Output, error) { return tool.Text("done"), nil }
	read("chosen", fine)
	read("rejected", fine)
	read("hooked", fine)
	read("fails", func(tool.Call) (tool.Output, error) { return tool.Output{}, errors.New("no") })
	read("steps", func(c tool.Call) (tool.Output, error) {
		c.Progress(messages.Progress{Fraction: 0.5})
		c.Progress(messages.Progress{Text: "nearly"})
		return tool.Text("done"), nil
	})
	workers, coordinators := prometheus.NewRegistry(), prometheus.NewRegistry()
	f.worker(worker.Config{
		Name: "w", Metrics: worker.NewMetrics(workers), Rules: rules(t, "deny: [{tool: rejected, name: never}]\nallow: [{tool: fails, name: may-fail}]\n"),
		Hooks: hooks(t, hook.Hook{Name: "lost", Match: "hooked", Class: hook.Observe, After: func(context.Context, hook.Call, hook.Done) (hook.Change, error) {
			return hook.Change{}, errors.New("cannot run")
		}}),
	})
	cfg := coordinator.Config{Metrics: coordinator.NewMetrics(coordinators)}
	cfg.Audit.Include = []string{"chosen.id"}
	f.coordinator(cfg)

	const input = `{"id":"A-1001","other":1}`
	b := canonical("s", "b", call{"chosen", input}, call{"fails", input}, call{"rejected", input}, call{"steps", input}, call{"hooked", input})
	var told feed
	listen(t, f.conn, &told) // before the batch, because hook events are not repeated
	f.submit(b)
	reply := f.reply(b, time.Minute)
	f.until("the end of every call has come", func() bool {
		return len(slices.DeleteFunc(told.all(), func(e messages.Event) bool { return e.Type != messages.EventEnd })) >= 5
	})
	lines := f.wantAuditLines(b, reply)

	type outcome struct {
		Status  messages.Status
		Effect  string
		Source  string
		Rule    string
		Took    bool   // whether a duration is reported
		Shown   string // the arguments that are shown
		Besides string // other members of its events
	}
	want := []outcome{
		{Status: messages.StatusOK, Effect: "allow", Source: "default", Took: true, Shown: `map[id:"A-1001"]`},
		{Status: messages.StatusError, Effect: "allow", Source: "rule", Rule: "may-fail", Took: true, Shown: `map[]`},
		{Status: messages.StatusDenied, Effect: "deny", Source: "rule", Rule: "never", Took: true, Shown: `map[]`},
		{Status: messages.StatusOK, Effect: "allow", Source: "default", Took: true, Shown: `map[]`, Besides: `0.5 "" 0.5 "nearly" `},
		{Status: messages.StatusOK, Effect: "allow", Source: "default", Took: true, Shown: `map[]`, Besides: "lost hook_error_during_execution "},
	}
	events, recorded := make([]outcome, len(want)), make([]outcome, len(want))
	for _, e := range told.all() {
		switch e.Type {
		case messages.EventProgress:
			events[e.Index].Besides += fmt.Sprintf("%v %q ", e.Progress.Fraction, e.Progress.Text)
		case messages.EventHook:
			events[e.Index].Besides += fmt.Sprintf("%s %s ", e.Hook.Hook, e.Hook.Type)
		case messages.EventEnd:
			o, p := &events[e.Index], cmp.Or(e.Result.Permission, &messages.Permission{})
			o.Status, o.Effect, o.Source, o.Rule, o.Took = e.Result.Status, p.Effect, p.Source, p.Rule, e.Result.DurationMS > 0
			o.Shown = want[e.Index].Shown // events show no arguments
		}
	}
	for i, l := range lines {
		shown := map[string]string{}
		for name, value := range l.Arguments {
			shown[name] = string(value)
		}
		p := cmp.Or(l.Permission, &messages.Permission{})
		recorded[i] = outcome{l.Status, p.Effect, p.Source, p.Rule, l.DurationMS > 0, fmt.Sprint(shown), want[i].Besides}
	}
	if diff := gocmp.Diff(want, events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if diff := gocmp.Diff(want, recorded); diff != "" {
		t.Errorf("the audit log (-want +got):\n%s", diff)
	}

	series := map[string]float64{
		`toolfleet_calls_total read ok chosen`:                 1,
		`toolfleet_calls_total read error fails`:               1,
		`toolfleet_calls_total read denied rejected`:           1,
		`toolfleet_calls_total read ok steps`:                  1,
		`toolfleet_calls_total read ok hooked`:                 1,
		`toolfleet_batch_calls_total read ok chosen`:           1,
		`toolfleet_batch_calls_total read error fails`:         1,
		`toolfleet_batch_calls_total read denied rejected`:     1,
		`toolfleet_call_duration_seconds read ok chosen`:       1,
		`toolfleet_call_duration_seconds read denied rejected`: 1,
		`toolfleet_permission_decisions_total allow default`:   3,
		`toolfleet_permission_decisions_total allow rule`:      1,
		`toolfleet_permission_decisions_total deny rule`:       1,
		`toolfleet_call_progress_total`:                        2,
		`toolfleet_hook_failures_total observe lost`:           1,
	}
	var unlike []string
	defer func() {
		if t.Failed() {
			t.Log(unlike)
		}
	}()
	f.until("every call is counted, which whoever did it does after it has told of it", func() bool {
		unlike = nil
		got := counts(t, workers, coordinators)
		for name, n := range series {
			if got[name] != n {
				unlike = append(unlike, fmt.Sprintf("%s is %v, want %v", name, got[name], n))
			}
		}
		return len(unlike) == 0
	})
}

// counts returns the values of registries by metric name and label values. The value of a
// histogram is its number of observations.
func counts(t *testing.T, registries ...*prometheus.Registry) map[string]float64 {
	t.Helper()
	all := map[string]float64{}
	for _, reg := range registries {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			for _, m := range family.Metric {
				name := family.GetName()
				for _, l := range m.Label {
					name += " " + l.GetValue()
				}
				all[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return all
}
