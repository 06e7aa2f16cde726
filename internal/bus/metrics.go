package bus

import "github.com/prometheus/client_golang/prometheus"

// Collectors returns the metrics of the connection. Register the metrics of only one
// connection with a registry.
func (c *Conn) Collectors() []prometheus.Collector {
	return []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "toolfleet_nats_connected", Help: "1 while this process is connected to NATS."}, func() float64 {
			if c.Connected() {
				return 1
			}
			return 0
		}),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "toolfleet_nats_reconnects_total", Help: "How often a lost connection to NATS came back."}, func() float64 {
			return float64(c.nc.Stats().Reconnects)
		}),
	}
}
