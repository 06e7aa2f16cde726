package e2e

import (
	"cmp"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/toolfleet/toolfleet/coordinator"
	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/fleetgauges"
	"github.com/toolfleet/toolfleet/internal/httpapi"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/worker"
)

// metricTypes holds the type and the labels of each metric, by name, in the form of
// docs/metrics.md.
type metricTypes map[string]string

// Register implements [prometheus.Registerer]. It records the metrics that would be exposed.
func (s metricTypes) Register(c prometheus.Collector) error {
	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		c.Describe(descs)
	}()
	for d := range descs {
		m := descText.FindStringSubmatch(d.String())
		kind := "gauge"
		switch _, vec := c.(*prometheus.HistogramVec); {
		case vec:
			kind = "histogram"
		case strings.HasSuffix(m[1], "_total"):
			kind = "counter"
		}
		if h, is := c.(interface{ Observe(float64) }); is && h != nil {
			kind = "histogram"
		}
		s[m[1]] = kind + " " + strings.ReplaceAll(m[2], ",", ", ")
	}
	return nil
}

var descText = regexp.MustCompile(`fqName: "(\w+)".*variableLabels: \{(.*?)\}`)

// MustRegister implements [prometheus.Registerer].
func (s metricTypes) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		_ = s.Register(c)
	}
}

// Unregister implements [prometheus.Registerer].
func (s metricTypes) Unregister(prometheus.Collector) bool { return false }

// docs/metrics.md lists exactly our metrics, each with its type and labels, under the daemon
// that exposes it.
func TestMetricsAreDocumented(t *testing.T) {
	document, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	read := map[string]metricTypes{}
	heading := ""
	for line := range strings.Lines(string(document)) {
		if title, ok := strings.CutPrefix(line, "## "); ok {
			heading = strings.TrimSpace(title)
		}
		if m := documentedMetric.FindStringSubmatch(line); m != nil {
			if read[heading] == nil {
				read[heading] = metricTypes{}
			}
			read[heading][m[1]] = m[2] + " " + m[3]
		}
	}
	work, coordinating, both, api := metricTypes{}, metricTypes{}, metricTypes{}, metricTypes{}
	httpapi.NewMetrics(api)
	worker.NewMetrics(work)
	coordinator.NewMetrics(coordinating)
	fleet := metricTypes{}
	fleet.MustRegister(new(fleetgauges.Gauges))
	both.MustRegister(new(bus.Conn).Collectors()...)
	families, err := telemetry.Registry("v0").Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "toolfleet_") {
			var labels []string
			for _, l := range f.Metric[0].Label {
				labels = append(labels, l.GetName())
			}
			slices.SortFunc(labels, func(a, b string) int { return cmp.Compare(b, a) })
			both[f.GetName()] = "gauge " + strings.Join(labels, ", ")
		}
	}
	want := map[string]metricTypes{
		"What a worker shows": work, "What a coordinator shows": coordinating, "What every coordinator shows of the whole fleet": fleet, "What both show": both, "What an HTTP server shows": api,
	}
	if diff := gocmp.Diff(want, read); diff != "" {
		t.Errorf("docs/metrics.md (- is exposed, + is documented)\n%s", diff)
	}
	known := metricTypes{}
	for _, s := range want {
		for name, what := range s {
			if strings.Contains(name, "_total_") || !strings.HasPrefix(name, "toolfleet_") {
				t.Errorf("%s is no name for a metric of ours", name)
			}
			known[name] = what
		}
	}
	for _, name := range regexp.MustCompile(`toolfleet_\w+`).FindAllString(string(document), -1) {
		base := strings.TrimSuffix(name, "_bucket")
		if what, ok := known[base]; !ok || base != name && !strings.HasPrefix(what, "histogram") {
			t.Errorf("docs/metrics.md names %s, which no daemon exposes", name)
		}
	}
}

var documentedMetric = regexp.MustCompile("^\\| `(toolfleet_\\w+)` \\| (\\w+) \\| (.*?) ?\\|")

// gauges reads the gauges of the fleet as a coordinator does when it is scraped.
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
