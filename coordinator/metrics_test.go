package coordinator

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/tracing"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// counted returns the metrics of a registry as name{labels}. For a histogram it returns the
// count.
func counted(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			name := f.GetName()
			for _, l := range m.Label {
				name += "{" + l.GetValue() + "}"
			}
			if v := m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount()); v != 0 {
				seen[name] = v
			}
		}
	}
	return seen
}

// One batch waits for a person, one calls unknown tools, one is refused, and one has no calls.
// Only a batch with calls that all end ok counts as a success.
func TestWhatACoordinatorCounts(t *testing.T) {
	reg := prometheus.NewRegistry()
	inOffice(t, messages.KindWrite, func(t *testing.T, o *office) {
		c, _ := o.coordinator(Config{Metrics: NewMetrics(reg), Slots: 7})
		o.worker()
		key := o.submitWith("s", "b", 1, nil)
		q := o.rests(key.Call(0), c)
		time.Sleep(11 * time.Minute) // the coordinator looks twice, and a third look is not due just now
		o.decide(key.Call(0), o.decision(q, messages.VerdictApprove, "agent"))
		o.decide(key.Call(0), o.decision(q, messages.VerdictApprove, "alice"))
		o.reply(key, soon)
		for i, message := range []string{`{"calls":[{"id":"1","name":"made_up","input":{}},{"id":"2","name":"made up too","input":{}}]}`, `{"calls":0}`, `{"calls":[]}`} {
			b := messages.Batch{V: 1, ID: messages.BatchID(fmt.Sprint(i)), Session: "other", Provider: messages.Canonical, Message: []byte(message)}
			key := wire.KeyOf(messages.OneTenant, b.Session, b.ID)
			_, err := o.conn.Append(t.Context(), o.names.Of(wire.VerbBatch, key), nil, rawjson.MustMarshal(b))
			o.must(err)
			o.reply(key, soon)
		}
		time.Sleep(soon)
	})
	got := counted(t, reg)
	if n := got["toolfleet_batch_redeliveries_total"]; n < 2 || n > 3 { // one for each look for an answer
		t.Errorf("%v redeliveries", n)
	}
	// One for each look, and one for the person's answer.
	if n := got["toolfleet_batches_resumed_total"]; n < 3 || n > 4 {
		t.Errorf("%v drives that went on", n)
	}
	delete(got, "toolfleet_batch_redeliveries_total")
	delete(got, "toolfleet_batches_resumed_total")
	want := map[string]float64{
		"toolfleet_coordinator_slots":                                   7,
		"toolfleet_batches_total{canonical}{completed}":                 3,
		"toolfleet_batches_total{canonical}{refused}":                   1,
		"toolfleet_batches_succeeded_total":                             1,
		"toolfleet_batches_refused_total{malformed_message}":            1,
		"toolfleet_batch_duration_seconds":                              4,
		"toolfleet_batch_round":                                         1,
		"toolfleet_batch_calls_total{write}{ok}{refund}":                1,
		"toolfleet_batch_calls_total{_unknown}{unknown_tool}{_unknown}": 2,
		"toolfleet_approval_decisions_total{approve}":                   1,
		"toolfleet_approval_decisions_refused_total{self_approval}":     1,
		"toolfleet_approval_wait_seconds{high}":                         1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	families, _ := reg.Gather()
	var rare []string
	for _, f := range families {
		h := f.Metric[0].GetHistogram()
		if f.GetName() == "toolfleet_approval_wait_seconds" && (h.GetSampleSum() < 659 || h.GetSampleSum() > 665) {
			t.Errorf("waited %v s for a decision, want 11 minutes", h.GetSampleSum())
		}
		if h != nil && (len(h.Bucket) == 0 || len(h.PositiveSpan) == 0) {
			t.Errorf("%s has %d classic buckets and %d spans of native ones", f.GetName(), len(h.Bucket), len(h.PositiveSpan))
		}
		if f.GetName() == "toolfleet_outcome_unknown_total" {
			for _, m := range f.Metric {
				rare = append(rare, m.Label[0].GetValue())
			}
		}
	}
	if len(rare) != 1 || rare[0] != "refund" {
		t.Errorf("outcomes may be unknown of %v, want the one write", rare)
	}
}

// The trace of a batch is sampled: the metric of its duration has the trace as an exemplar.
func TestADurationHasItsTrace(t *testing.T) {
	for parent, want := range map[string]string{agents: agentTrace, "00-" + agentTrace + "-" + agentSpan + "-00": "", "": ""} {
		reg := prometheus.NewRegistry()
		m := NewMetrics(reg)
		ctx := tracing.Extract(context.Background(), bus.Header{"traceparent": {parent}})
		m.Replied(ctx, messages.Reply{Status: messages.ReplyCompleted}, 0, 1500*time.Millisecond, func(string) string { return "" })
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() != "toolfleet_batch_duration_seconds" {
				continue
			}
			got := ""
			for _, b := range f.Metric[0].GetHistogram().Bucket {
				if e := b.GetExemplar(); e != nil {
					got = e.Label[0].GetName() + "=" + e.Label[0].GetValue()
				}
			}
			if want != "" {
				want = "trace_id=" + want
			}
			if got != want {
				t.Errorf("under %q the exemplar is %q, want %q", parent, got, want)
			}
		}
	}
}
