package bus_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolfleet/toolfleet/internal/bus/bustest"
	"github.com/toolfleet/toolfleet/internal/devserver"
	"github.com/toolfleet/toolfleet/internal/natstest"
)

func TestTheMetricsOfAConnection(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T, srv *devserver.Server) {
		c := bustest.Connect(t, srv)
		reg := prometheus.NewRegistry()
		reg.MustRegister(c.Collectors()...)
		want := func(when string, want map[string]float64) {
			t.Helper()
			families, err := reg.Gather()
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]float64{}
			for _, f := range families {
				got[f.GetName()] = f.Metric[0].GetGauge().GetValue() + f.Metric[0].GetCounter().GetValue()
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got)\n%s", when, diff)
			}
		}
		want("at first", map[string]float64{"toolfleet_nats_connected": 1, "toolfleet_nats_reconnects_total": 0})
		srv.Stop()
		time.Sleep(time.Second)
		want("while the server is away", map[string]float64{"toolfleet_nats_connected": 0, "toolfleet_nats_reconnects_total": 0})
		if err := srv.Restart(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		want("after that", map[string]float64{"toolfleet_nats_connected": 1, "toolfleet_nats_reconnects_total": 1})
	}, natstest.Fast)
}
