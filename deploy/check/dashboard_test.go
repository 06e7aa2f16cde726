package check

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestDashboard(t *testing.T) {
	for name, tc := range map[string]struct {
		edit source
		want string
	}{
		"as it is":        {},
		"no JSON":         {source{board: {`"panels": [`, `"panels": `}}, "invalid character"},
		"fixed source":    {source{board: {`"uid": "${datasource}"`, `"uid": "prometheus"`}}, "asks the data source prometheus"},
		"misspelt metric": {source{board: {"toolfleet_claims_refused_total", "toolfleet_claims_refuse_total"}}, "toolfleet_claims_refuse_total is no metric"},
		"unknown choice":  {source{board: {`\"$tool\"`, `\"$tools\"`}}, "$tools is no variable"},
		"unexplained":     {source{board: {`"description": "Calls that wait for a person`, `"desc": "Calls that wait for a person`}}, "has no description"},
		"no unit":         {source{board: {`"unit": "cpm"`, `"unit": ""`}}, "has no unit"},
		"dead link":       {source{board: {"runbooks/dead-letters.md", "runbooks/dead-letter.md"}}, "dead-letter.md"},
		"overlap":         {source{board: {`"x": 8,`, `"x": 4,`}}, "lies on"},
		"one id twice":    {source{board: {`"id": 3,`, `"id": 2,`}}, "id 2 twice"},
		"no exemplars":    {source{board: {`"exemplar": true`, `"exemplar": false`}}, "no panel shows exemplars"},
	} {
		t.Run(name, func(t *testing.T) { expect(t, dashboardProblems(t, tc.edit), tc.want) })
	}
}

// dashboard holds those parts of a Grafana dashboard that the tests check.
type dashboard struct {
	UID           string `json:"uid"`
	Title         string `json:"title"`
	SchemaVersion int    `json:"schemaVersion"`
	Panels        []panel
	Templating    struct {
		List []struct{ Name, Type string }
	}
}

type panel struct {
	ID                       int
	Type, Title, Description string
	Datasource               datasource
	GridPos                  rectangle `json:"gridPos"`
	Links                    []struct{ Title, URL string }
	FieldConfig              struct {
		Defaults struct{ Unit string }
	} `json:"fieldConfig"`
	Targets []struct {
		Datasource datasource
		Expr       string
		Exemplar   bool
	}
}

type datasource struct{ Type, UID string }

type rectangle struct{ X, Y, W, H int }

func (a rectangle) overlaps(b rectangle) bool {
	return a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H
}

func dashboardProblems(t *testing.T, edits source) (found []string) {
	var d dashboard
	if err := json.Unmarshal(edits.read(t, board), &d); err != nil {
		return []string{err.Error()}
	}
	report := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	variables := []string{"$__rate_interval"}
	for _, v := range d.Templating.List {
		variables = append(variables, "$"+v.Name)
	}
	known := append(metrics(t), recorded(rules(t, nil))...)
	exemplars := false
	for i, p := range d.Panels {
		for _, other := range d.Panels[:i] {
			if p.ID == other.ID {
				report("id %d twice", p.ID)
			}
			if p.GridPos.overlaps(other.GridPos) {
				report("%s lies on %s", p.Title, other.Title)
			}
		}
		if p.GridPos.X+p.GridPos.W > 24 {
			report("%s leaves the page", p.Title)
		}
		if p.Type == "row" {
			continue
		}
		if len(p.Description) < 30 {
			report("%s has no description that a stranger understands", p.Title)
		}
		if p.FieldConfig.Defaults.Unit == "" {
			report("%s has no unit", p.Title)
		}
		for _, l := range p.Links {
			page, ours := strings.CutPrefix(l.URL, runbookURL)
			if _, err := os.Stat(filepath.Join(root, runbooks, page)); !ours || err != nil {
				report("%s: link to %s: %v", p.Title, l.URL, err)
			}
		}
		if len(p.Targets) == 0 {
			report("%s asks nothing", p.Title)
		}
		for _, target := range p.Targets {
			exemplars = exemplars || target.Exemplar
			for _, source := range []datasource{p.Datasource, target.Datasource} {
				if source != (datasource{"prometheus", "${datasource}"}) {
					report("%s asks the data source %s", p.Title, source.UID)
				}
			}
			found = append(found, unknownMetrics(known, p.Title, target.Expr)...)
			for _, word := range strings.FieldsFunc(target.Expr, func(r rune) bool { return strings.ContainsRune(` "[](){}~=,`, r) }) {
				if strings.HasPrefix(word, "$") && !slices.Contains(variables, word) {
					report("%s: %s is no variable", p.Title, word)
				}
			}
		}
	}
	if !exemplars {
		report("no panel shows exemplars, the way from a figure to a trace")
	}
	if d.UID == "" || d.Title == "" || d.SchemaVersion < 36 {
		report("want a uid, a title and the schema of a Grafana of today: %q, %q, %d", d.UID, d.Title, d.SchemaVersion)
	}
	return found
}
