package check

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const (
	alertsFile = observability + "prometheus/rules/alerts.yml"
	board      = observability + "dashboards/toolfleet.json"
	runbooks   = "docs/runbooks/"
	// runbookURL is the address of the runbooks for a person on call.
	runbookURL = "https://github.com/toolfleet/toolfleet/blob/main/" + runbooks
)

// rule is a rule of Prometheus.
type rule struct {
	Record, Alert, Expr, For string
	Labels, Annotations      map[string]string
}

// rules returns every rule that Prometheus reads.
func rules(t *testing.T, edits source) (all []rule) {
	t.Helper()
	for _, file := range glob(t, observability+"prometheus/rules/*.yml") {
		var groups struct {
			Groups []struct {
				Name, Interval string
				Rules          []rule
			}
		}
		if err := yaml.UnmarshalStrict(edits.read(t, file), &groups); err != nil {
			t.Fatal(err)
		}
		for _, g := range groups.Groups {
			all = append(all, g.Rules...)
		}
	}
	return all
}

// glob returns the files of the repository that match.
func glob(t *testing.T, pattern string) (names []string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(root, pattern))
	if err != nil || len(found) == 0 {
		t.Fatalf("no file is like %s: %v", pattern, err)
	}
	for _, path := range found {
		name, err := filepath.Rel(root, path)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, filepath.ToSlash(name))
	}
	return names
}

func TestAlerts(t *testing.T) {
	const tests = observability + "prometheus/tests/people-and-storage.yml"
	for name, tc := range map[string]struct {
		edit source
		want string
	}{
		"as it is":          {},
		"no severity":       {source{alertsFile: {"{severity: info}", "{level: info}"}}, "ToolfleetToolSlow: severity"},
		"another's runbook": {source{alertsFile: {runbookURL + "dead-letters.md", runbookURL + "outcome-unknown.md"}}, "ToolfleetDeadLetters: its runbook is"},
		"lost runbook":      {source{alertsFile: {"ToolfleetDeadLetters", "ToolfleetGoneLetters"}}, "gone-letters.md"},
		"another title":     {source{runbooks + "dead-letters.md": {"# ToolfleetDeadLetters", "# DeadLetters"}}, "ToolfleetDeadLetters: its page has another title"},
		"another name":      {source{runbooks + "README.md": {"[ToolfleetDeadLetters]", "[DeadLetters]"}}, "README.md does not list dead-letters.md"},
		"never fires":       {source{tests: {"eval_time: 8m\n        alertname: ToolfleetDeadLetters", "eval_time: 8m\n        alertname: ToolfleetX"}}, "ToolfleetDeadLetters: no test shows it fire"},
		"always fires":      {source{tests: {"eval_time: 4m, alertname: ToolfleetDeadLetters", "eval_time: 4m, alertname: ToolfleetX"}}, "ToolfleetDeadLetters: no test shows it not fire"},
		"test of nothing":   {source{tests: {"eval_time: 4m, alertname: ToolfleetDeadLetters", "eval_time: 4m, alertname: ToolfleetX"}}, "there is no alert ToolfleetX"},
		"misspelt metric":   {source{alertsFile: {"toolfleet_pool_workers", "toolfleet_pool_worker"}}, "toolfleet_pool_worker is no metric"},
		"misspelt record":   {source{alertsFile: {":ratio_rate30m", ":ratio_rate31m"}}, "ratio_rate31m is no metric"},
		"not on the board":  {source{board: {runbookURL + "claims-contended.md", runbookURL + "dead-letters.md"}}, "claims-contended.md is linked by no panel"},
	} {
		t.Run(name, func(t *testing.T) { expect(t, alertProblems(t, tc.edit), tc.want) })
	}
}

func alertProblems(t *testing.T, edits source) (found []string) {
	all := rules(t, edits)
	known := append(metrics(t), recorded(all)...)
	fires, silent := tested(t, edits)
	var names []string
	for _, r := range all {
		found = append(found, unknownMetrics(known, r.Record+r.Alert, r.Expr)...)
		if r.Alert == "" {
			continue
		}
		names = append(names, r.Alert)
		report := func(format string, args ...any) { found = append(found, r.Alert+": "+fmt.Sprintf(format, args...)) }
		if !slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) {
			report("severity %q", r.Labels["severity"])
		}
		if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			report("says nothing to whoever it wakes")
		}
		page := kebab(strings.TrimPrefix(r.Alert, "Toolfleet")) + ".md"
		if url := r.Annotations["runbook_url"]; url != runbookURL+page {
			report("its runbook is %s, want %s", url, runbookURL+page)
		}
		if _, err := os.Stat(filepath.Join(root, runbooks, page)); err != nil {
			report("%v", err)
		} else if !strings.HasPrefix(string(edits.read(t, runbooks+page)), "# "+r.Alert+"\n") {
			report("its page has another title")
		}
		if !strings.Contains(string(edits.read(t, runbooks+"README.md")), "["+r.Alert+"]("+page+")") {
			report("%sREADME.md does not list %s", runbooks, page)
		}
		if !strings.Contains(string(edits.read(t, board)), runbookURL+page) {
			found = append(found, page+" is linked by no panel of the dashboard")
		}
		if !fires[r.Alert] {
			report("no test shows it fire")
		}
		if !silent[r.Alert] {
			report("no test shows it not fire")
		}
	}
	for _, test := range append(keys(fires), keys(silent)...) {
		if !slices.Contains(names, test) {
			found = append(found, "there is no alert "+test)
		}
	}
	return found
}

// tested returns the alerts that the tests of the rules expect to fire, and not to fire. promtool
// runs these tests.
func tested(t *testing.T, edits source) (fires, silent map[string]bool) {
	t.Helper()
	fires, silent = map[string]bool{}, map[string]bool{}
	for _, file := range glob(t, observability+"prometheus/tests/*.yml") {
		var suite struct {
			Tests []struct {
				Alerts []struct {
					Name string           `json:"alertname"`
					Want []map[string]any `json:"exp_alerts"`
				} `json:"alert_rule_test"`
			}
		}
		if err := yaml.Unmarshal(edits.read(t, file), &suite); err != nil {
			t.Fatal(err)
		}
		for _, test := range suite.Tests {
			for _, a := range test.Alerts {
				if len(a.Want) > 0 {
					fires[a.Name] = true
				} else {
					silent[a.Name] = true
				}
			}
		}
	}
	return fires, silent
}

// kebab turns ToolErrorRate into tool-error-rate.
func kebab(name string) string {
	return strings.ToLower(regexp.MustCompile(`(.)([A-Z])`).ReplaceAllString(name, "$1-$2"))
}

// metrics returns every metric that the code makes, and those of Go, the process and Prometheus
// itself that the rules use.
func metrics(t *testing.T) []string {
	t.Helper()
	names := []string{"ALERTS", "process_resident_memory_bytes", "process_cpu_seconds_total"}
	literal := regexp.MustCompile(`"(toolfleet_[a-z_]+)"`)
	for _, room := range []string{"cmd", "coordinator", "internal", "worker"} {
		err := fs.WalkDir(os.DirFS(root), room, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(filepath.Join(root, path))
			for _, found := range literal.FindAllSubmatch(text, -1) {
				names = append(names, string(found[1]))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return names
}

// recorded returns the names that the rules record.
func recorded(all []rule) (names []string) {
	for _, r := range all {
		if r.Record != "" {
			names = append(names, r.Record)
		}
	}
	return names
}

// unknownMetrics returns the metrics in an expression that do not exist. A histogram has three
// names.
func unknownMetrics(known []string, where, expr string) (found []string) {
	for _, name := range regexp.MustCompile(`[a-z:]*(?:toolfleet[_:]|process_)[a-z0-9_:]+|ALERTS`).FindAllString(expr, -1) {
		plain := regexp.MustCompile(`_(bucket|count|sum)$`).ReplaceAllString(name, "")
		if !slices.Contains(known, name) && !slices.Contains(known, plain) {
			found = append(found, where+": "+name+" is no metric")
		}
	}
	return found
}
