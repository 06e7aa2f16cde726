package e2e

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolfleet/toolfleet/coordinator"
)

// gauges looks at the fleet as a coordinator does when it is scraped.
func (f *identified) gauges(t *testing.T) {
	conn := f.connect("coordinator")
	defer conn.Close()
	c, err := coordinator.New(conn, coordinator.Config{})
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(c.Gauges())
	seen, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range seen {
		if family.GetName() == "toolfleet_pool_workers" && family.Metric[0].GetGauge().GetValue() == 2 {
			return
		}
	}
	t.Errorf("the two workers are not seen: %v", seen)
}
