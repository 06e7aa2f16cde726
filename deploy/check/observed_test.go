package check

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/types"
	"sigs.k8s.io/yaml"
)

const observability = "deploy/observability/"

// observers lists the services that run only with the profile observe.
var observers = []string{"grafana", "jaeger", "otel-collector", "prometheus"}

// observedProblems checks the profile observe. Without it the observers and the traces of the
// fleet are off. With it the traces go to a service that exists.
func observedProblems(t *testing.T, edits source, bare, project *types.Project) (found []string) {
	report := func(service, format string, args ...any) {
		found = append(found, service+": "+fmt.Sprintf(format, args...))
	}
	for _, name := range observers {
		if _, there := bare.Services[name]; there {
			report(name, "runs without the profile")
		}
		if _, there := project.Services[name]; !there {
			report(name, "is not part of the profile")
		}
	}
	for _, name := range []string{"coordinator", "worker", "http"} {
		if to := bare.Services[name].Environment["OTEL_EXPORTER_OTLP_ENDPOINT"]; to == nil || *to != "" {
			report(name, "without the profile traces go to %v", to)
		}
		to := project.Services[name].Environment["OTEL_EXPORTER_OTLP_ENDPOINT"]
		if to == nil {
			report(name, "sends no traces")
			continue
		}
		found = append(found, reaches(project, *to, collectorPorts(t, edits))...)
	}
	return found
}

// reaches checks an address: its host is a service of the project, and its port one of the given
// ports.
func reaches(project *types.Project, address string, ports []string) []string {
	u, err := url.Parse(address)
	if err != nil {
		return []string{err.Error()}
	}
	if _, there := project.Services[u.Hostname()]; !there {
		return []string{u.Host + " is no service of docker-compose.yml"}
	}
	if !slices.Contains(ports, u.Port()) {
		return []string{u.Hostname() + " does not listen at " + u.Port()}
	}
	return nil
}

func TestCollector(t *testing.T) {
	const file = observability + "otel-collector.yaml"
	for name, tc := range map[string]struct {
		edit source
		want string
	}{
		"as it is":            {},
		"no such processor":   {source{file: {"processors: [memory_limiter, batch]", "processors: [memory_limiter, batches]"}}, "batches is not set up"},
		"unlimited":           {source{file: {"processors: [memory_limiter, batch]", "processors: [batch]"}}, "memory_limiter is not the first"},
		"unused":              {source{file: {"exporters: [otlp/jaeger]", "exporters: []"}}, "otlp/jaeger is not used"},
		"to nobody":           {source{file: {"endpoint: jaeger:4317", "endpoint: tempo:4317"}}, "tempo:4317 is no service"},
		"deaf":                {source{file: {"0.0.0.0:4318", "127.0.0.1:4318"}}, "127.0.0.1:4318 is heard by nobody else"},
		"unknown section":     {source{file: {"exporters:\n  otlp", "exporter:\n  otlp"}}, "exporter"},
		"sampling is no YAML": {source{file: {"  # tail_sampling:", "  # tail_sampling"}}, "commented"},
	} {
		t.Run(name, func(t *testing.T) { expect(t, collectorProblems(t, tc.edit), tc.want) })
	}
}

// collector holds those parts of a Collector's configuration that the tests check. A real Collector
// checks more.
type collector struct {
	Receivers map[string]struct {
		Protocols map[string]struct {
			Endpoint string `json:"endpoint"`
		} `json:"protocols"`
	} `json:"receivers"`
	Processors map[string]map[string]any `json:"processors"`
	Exporters  map[string]struct {
		Endpoint string         `json:"endpoint"`
		TLS      map[string]any `json:"tls"`
	} `json:"exporters"`
	Service struct {
		Pipelines map[string]struct {
			Receivers  []string `json:"receivers"`
			Processors []string `json:"processors"`
			Exporters  []string `json:"exporters"`
		} `json:"pipelines"`
	} `json:"service"`
}

func loadCollector(text []byte) (c collector, err error) { return c, yaml.UnmarshalStrict(text, &c) }

// collectorPorts returns the ports on which the Collector listens.
func collectorPorts(t *testing.T, edits source) (ports []string) {
	t.Helper()
	c, err := loadCollector(edits.read(t, observability+"otel-collector.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range c.Receivers["otlp"].Protocols {
		ports = append(ports, p.Endpoint[strings.LastIndex(p.Endpoint, ":")+1:])
	}
	return ports
}

func collectorProblems(t *testing.T, edits source) (found []string) {
	text := edits.read(t, observability+"otel-collector.yaml")
	c, err := loadCollector(text)
	if err != nil {
		return []string{err.Error()}
	}
	for _, p := range c.Receivers["otlp"].Protocols {
		if !strings.HasPrefix(p.Endpoint, "0.0.0.0:") {
			found = append(found, p.Endpoint+" is heard by nobody else")
		}
	}
	line := c.Service.Pipelines["traces"]
	found = append(found, uses("receiver", keys(c.Receivers), line.Receivers)...)
	found = append(found, uses("processor", keys(c.Processors), line.Processors)...)
	found = append(found, uses("exporter", keys(c.Exporters), line.Exporters)...)
	if len(line.Processors) == 0 || line.Processors[0] != "memory_limiter" {
		found = append(found, "memory_limiter is not the first processor: what comes before it can run out of memory")
	}
	project, err := loadCompose(t, nil, observe)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range c.Exporters {
		found = append(found, reaches(project, "//"+e.Endpoint, []string{"4317"})...)
	}
	// The block that is commented out has to be right once its comment signs are removed.
	block := regexp.MustCompile(`(?m)^  # tail_sampling:\n(?:  #   .*\n)+`).Find(text)
	uncommented := regexp.MustCompile(`(?m)^  # `).ReplaceAll(block, []byte("  "))
	var sampling struct {
		TailSampling struct {
			Wait     string `json:"decision_wait"`
			Policies []struct {
				Name, Type string
			} `json:"policies"`
		} `json:"tail_sampling"`
	}
	if err := yaml.Unmarshal(uncommented, &sampling); err != nil || len(sampling.TailSampling.Policies) != 3 {
		found = append(found, fmt.Sprintf("the commented tail_sampling: %v, %d policies", err, len(sampling.TailSampling.Policies)))
	}
	return found
}

// uses returns the names that are used and not defined, and those that are defined and not used.
func uses(kind string, there, named []string) (found []string) {
	for _, name := range named {
		if !slices.Contains(there, name) {
			found = append(found, kind+" "+name+" is not set up")
		}
	}
	for _, name := range there {
		if !slices.Contains(named, name) {
			found = append(found, kind+" "+name+" is not used")
		}
	}
	return found
}

func keys[V any](m map[string]V) (names []string) {
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func TestPrometheusFindsTheFleet(t *testing.T) {
	const file = observability + "prometheus/prometheus.yml"
	for name, tc := range map[string]struct {
		edit source
		want string
	}{
		"as it is":   {},
		"to nobody":  {source{file: {"names: [worker]", "names: [workers]"}}, "workers is no service"},
		"wrong port": {source{file: {"port: 8080", "port: 9090"}}, "coordinator serves its metrics at 8080, not at 9090"},
		"no rules":   {source{file: {"rules/*.yml", "rules/*.yaml"}}, "no rules"},
		"one job":    {source{file: {"  - job_name: toolfleet-worker\n    dns_sd_configs: [{names: [worker],", "  - job_name: toolfleet-worker\n    dns_sd_configs: [{names: [coordinator],"}}, "worker is not scraped"},
	} {
		t.Run(name, func(t *testing.T) { expect(t, prometheusProblems(t, tc.edit), tc.want) })
	}
}

func prometheusProblems(t *testing.T, edits source) (found []string) {
	var settings struct {
		RuleFiles []string `json:"rule_files"`
		Scrapes   []struct {
			Job string `json:"job_name"`
			DNS []struct {
				Names []string `json:"names"`
				Port  int      `json:"port"`
			} `json:"dns_sd_configs"`
		} `json:"scrape_configs"`
	}
	if err := yaml.Unmarshal(edits.read(t, observability+"prometheus/prometheus.yml"), &settings); err != nil {
		return []string{err.Error()}
	}
	project, err := loadCompose(t, nil, observe)
	if err != nil {
		t.Fatal(err)
	}
	scraped := map[string]bool{}
	for _, s := range settings.Scrapes {
		for _, dns := range s.DNS {
			for _, name := range dns.Names {
				service, there := project.Services[name]
				if !there {
					found = append(found, name+" is no service of docker-compose.yml")
					continue
				}
				scraped[name] = true
				if want := fmt.Sprintf(":%d", dns.Port); !slices.Contains(service.Command, want) {
					found = append(found, fmt.Sprintf("%s serves its metrics at 8080, not at %d", name, dns.Port))
				}
			}
		}
	}
	for _, name := range []string{"coordinator", "worker", "http"} {
		if !scraped[name] {
			found = append(found, name+" is not scraped")
		}
	}
	for _, pattern := range settings.RuleFiles {
		if files, _ := filepath.Glob(filepath.Join(root, observability, "prometheus", pattern)); len(files) == 0 {
			found = append(found, "no rules at "+pattern)
		}
	}
	return found
}

// TestGrafanaFindsItsSources checks that the files and addresses that Grafana reads at its start
// exist in docker-compose.yml.
func TestGrafanaFindsItsSources(t *testing.T) {
	project, err := loadCompose(t, nil, observe)
	if err != nil {
		t.Fatal(err)
	}
	var sources struct {
		APIVersion  int `json:"apiVersion"`
		Datasources []struct {
			Name, UID, Type, Access, URL string
			IsDefault                    bool `json:"isDefault"`
			JSONData                     struct {
				Exemplars []struct {
					Name string `json:"name"`
					UID  string `json:"datasourceUid"`
				} `json:"exemplarTraceIdDestinations"`
			} `json:"jsonData"`
		} `json:"datasources"`
	}
	if err := yaml.Unmarshal(source(nil).read(t, observability+"grafana/provisioning/datasources/toolfleet.yaml"), &sources); err != nil {
		t.Fatal(err)
	}
	uids := map[string]bool{}
	for _, s := range sources.Datasources {
		uids[s.UID] = true
		expect(t, reaches(project, s.URL, map[string][]string{"prometheus": {"9090"}, "jaeger": {"16686"}}[s.Type]), "")
	}
	if len(uids) != 2 {
		t.Errorf("data sources %v, want Prometheus and Jaeger", uids)
	}
	for _, s := range sources.Datasources {
		for _, e := range s.JSONData.Exemplars {
			if e.Name != "trace_id" || !uids[e.UID] {
				t.Errorf("exemplars lead from %s to %s", e.Name, e.UID)
			}
		}
	}
	var boards struct {
		Providers []struct {
			Options struct{ Path string }
		}
	}
	if err := yaml.Unmarshal(source(nil).read(t, observability+"grafana/provisioning/dashboards/toolfleet.yaml"), &boards); err != nil {
		t.Fatal(err)
	}
	home := project.Services["grafana"].Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
	for _, p := range boards.Providers {
		if !slices.ContainsFunc(project.Services["grafana"].Volumes, func(v types.ServiceVolumeConfig) bool {
			_, err := os.Stat(filepath.Join(v.Source, "toolfleet.json"))
			return v.Target == p.Options.Path && err == nil && home != nil && *home == v.Target+"/toolfleet.json"
		}) {
			t.Errorf("no dashboard is mounted at %s", p.Options.Path)
		}
	}
}
