package permission_test

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
	"github.com/toolfleet/toolfleet/worker/permission"
)

var update = flag.Bool("update", false, "write the decision table into docs/permissions.md; read the diff")

const page = "../../docs/permissions.md"

// The values of each dimension of the decision table.
var (
	hookSays = []string{"none", "allow", "ask", "deny", "could not run"}
	prompts  = []string{"none", "ask rule", "default asks"}
	humans   = []string{"none", "high", "critical"}
	prompt4  = append(slices.Clone(prompts), "default denies") // "default denies" is not in the table of the docs; a sentence there covers it
)

// situation is one combination of the dimensions.
type situation struct {
	deny, allow         bool // whether a rule with this effect matches
	hook, prompt, human string
}

// verdict is what is decided in a situation.
type verdict struct {
	effect, source string
	people         int
	ticket         bool
}

func (v verdict) String() string {
	switch {
	case v.ticket:
		return fmt.Sprintf("%s (%s): %d people, ticket", v.effect, v.source, v.people)
	case v.people > 0:
		return fmt.Sprintf("%s (%s): %d person", v.effect, v.source, v.people)
	}
	return fmt.Sprintf("%s (%s)", v.effect, v.source)
}

// decide returns the verdict of the package. It asks in the order of a worker: first the deny
// rules, then the hooks, then all rules.
func (s situation) decide(t testing.TB) verdict {
	t.Helper()
	all := []schemas.RuleEntry{{Name: "r", Tool: "*"}}
	var rules schemas.Rules
	cfg := permission.Config{Default: map[string]permission.Effect{"default asks": permission.Ask, "default denies": permission.Deny}[s.prompt]}
	if s.deny {
		rules.Deny = all
	}
	if s.allow {
		rules.Allow = all
	}
	if s.prompt == "ask rule" {
		rules.Ask = all
	}
	if s.human != "none" {
		rules.Risk = []schemas.RiskEntry{{Name: "r", Tool: "*", Tier: messages.Tier(s.human)}}
	}
	cfg.Layers = []permission.Layer{{Source: "p", Rules: rules}}
	r, err := permission.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	call := permission.Call{Tool: schemas.Tool{Name: "t"}, Input: json.RawMessage(`{}`)}
	var ruling permission.Ruling
	if d, denied := r.Denied(call); denied {
		ruling = d.Weigh(permission.Opinion{})
	} else if s.hook == "could not run" {
		return verdict{effect: "deny", source: "hook"} // the hook is a gate: the worker stops here
	} else {
		ruling = r.Decide(call).Weigh(permission.Opinion{Opinion: strings.TrimPrefix(s.hook, "none"), By: "h"})
	}
	return verdict{ruling.Effect, ruling.Source, ruling.Approvers, ruling.Ticket}
}

// twin returns the verdict in a simpler way: every rule and hook votes, and the strongest vote
// counts.
func (s situation) twin() verdict {
	votes := map[int]verdict{0: {effect: "allow", source: "default"}}
	vote := func(holds bool, strength int, v verdict) {
		if holds {
			votes[strength] = v
		}
	}
	vote(s.prompt == "default asks", 1, verdict{"ask", "default", 1, false})
	vote(s.prompt == "default asks" && s.hook == "allow", 2, verdict{effect: "allow", source: "hook"})
	vote(s.allow, 3, verdict{effect: "allow", source: "rule"})
	vote(s.hook == "ask", 4, verdict{"ask", "hook", 1, false})
	vote(s.prompt == "ask rule", 5, verdict{"ask", "rule", 1, false})
	vote(s.human == "high", 6, verdict{"ask", "tier", 1, false})
	vote(s.human == "critical", 6, verdict{"ask", "tier", 2, true})
	vote(s.prompt == "default denies" && !s.allow, 7, verdict{effect: "deny", source: "default"})
	vote(s.hook == "deny" && votes[7].effect == "" || s.hook == "could not run", 8, verdict{effect: "deny", source: "hook"})
	vote(s.deny, 9, verdict{effect: "deny", source: "rule"})
	strongest := 0
	for strength := range votes {
		strongest = max(strongest, strength)
	}
	return votes[strongest]
}

// situations returns every combination of the dimensions.
func situations(prompts []string) (all []situation) {
	for _, deny := range []bool{true, false} {
		for _, human := range humans {
			for _, prompt := range prompts {
				for _, allow := range []bool{false, true} {
					for _, hook := range hookSays {
						all = append(all, situation{deny, allow, hook, prompt, human})
					}
				}
			}
		}
	}
	return all
}

func TestEveryCombination(t *testing.T) {
	all := situations(prompt4)
	if len(all) != 2*2*5*4*3 {
		t.Fatalf("%d combinations", len(all))
	}
	for _, s := range all {
		if got, want := s.decide(t), s.twin(); got != want {
			t.Errorf("%+v: got %s, want %s", s, got, want)
		}
	}
}

// row is one line of the table in the docs: the situations that it covers, and the result for
// each answer of the hook.
type row struct {
	deny, human, prompt, allow string
	cells                      string
}

// rows returns the table. Neighbouring lines with the same results are merged into one.
func rows(t testing.TB) (all []row) {
	yes := map[bool]string{true: "yes", false: "no"}
	for _, s := range situations(prompts) {
		if s.hook != hookSays[0] {
			continue
		}
		r := row{yes[s.deny], s.human, s.prompt, yes[s.allow], ""}
		for _, s.hook = range hookSays {
			r.cells += " " + s.decide(t).String() + " |"
		}
		all = append(all, r)
	}
	all = merge(all, func(r *row) *string { return &r.allow })
	all = merge(all, func(r *row) *string { return &r.prompt })
	return merge(all, func(r *row) *string { return &r.human })
}

// merge joins rows that differ only in the given column, if there is a row for each value of
// this column. The joined row has "any" in the column.
func merge(all []row, column func(*row) *string) (merged []row) {
	groups := map[row][]row{}
	values := map[string]bool{}
	key := func(r row) row { *column(&r) = "any"; return r }
	for _, r := range all {
		groups[key(r)] = append(groups[key(r)], r)
		values[*column(&r)] = true
	}
	for _, r := range all {
		switch group := groups[key(r)]; {
		case len(group) < len(values):
			merged = append(merged, r)
		case group[0] == r:
			merged = append(merged, key(r))
		}
	}
	return merged
}

func table(t testing.TB) string {
	var b strings.Builder
	b.WriteString("| deny rule | human | prompt | allow rule | hook: " + strings.Join(hookSays, " | ") + " |\n|" + strings.Repeat("---|", 4+len(hookSays)) + "\n")
	for _, r := range rows(t) {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |%s\n", r.deny, r.human, r.prompt, r.allow, r.cells)
	}
	return b.String()
}

// The table in the docs has exactly one line for every combination, with the right result.
func TestTheTableCoversEverything(t *testing.T) {
	for _, s := range situations(prompts) {
		var found []string
		for line := range strings.Lines(table(t)) {
			cells := strings.Split(strings.Trim(line, "|\n"), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			is := func(i int, value string) bool { return cells[i] == "any" || cells[i] == value }
			if is(0, map[bool]string{true: "yes", false: "no"}[s.deny]) && is(1, s.human) && is(2, s.prompt) && is(3, map[bool]string{true: "yes", false: "no"}[s.allow]) {
				found = append(found, cells[4+slices.Index(hookSays, s.hook)])
			}
		}
		if want := s.twin().String(); !slices.Equal(found, []string{want}) {
			t.Errorf("%+v: the table says %q, want %q", s, found, want)
		}
	}
}

const (
	tableStart = "<!-- the decision table: made by the tests of worker/permission -->\n"
	tableEnd   = "<!-- end -->\n"
)

func TestDocsHoldTheTable(t *testing.T) {
	doc, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(doc), tableStart)
	written, after, closed := strings.Cut(rest, tableEnd)
	if !ok || !closed {
		t.Fatalf("%s has no place for the table", page)
	}
	if *update {
		if err := os.WriteFile(page, []byte(before+tableStart+table(t)+tableEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := gocmp.Diff(written, table(t)); diff != "" {
		t.Errorf("the table in %s differs from what the code decides (-docs +code); to update it: go test ./worker/permission -update\n%s", page, diff)
	}
}

// The example in the docs is a valid policy file, and the tests in it pass.
func TestDocsExample(t *testing.T) {
	doc, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(doc), "```yaml\n# policy.yaml\n")
	example, _, ok := strings.Cut(rest, "```\n")
	if !ok {
		t.Fatalf("%s holds no policy.yaml", page)
	}
	policy, err := schemas.ParsePolicy("policy.yaml", []byte(example))
	if err != nil {
		t.Fatal(err)
	}
	rules, err := permission.New(permission.Config{
		Default: permission.Effect(policy.Default), Version: policy.Version, Layers: []permission.Layer{{Source: "policy.yaml", Rules: policy.Rules}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(policy.Tests) < 5 || len(policy.Approvers) < 2 || len(policy.Hooks) == 0 {
		t.Errorf("the example is not complete: %d tests, %d approvers, %d hooks", len(policy.Tests), len(policy.Approvers), len(policy.Hooks))
	}
	for _, test := range policy.Tests {
		tool := schemas.Tool{Name: test.Tool, Kind: cmp.Or(test.Kind, messages.KindWrite)}
		if test.Tool == "Bash" {
			tool.ShellCommand = "command"
		}
		call := permission.Call{Tool: tool, Input: test.Input, Session: messages.SessionID(test.Session), Tenant: messages.TenantID(test.Principal), User: test.User, Labels: test.Labels}
		r := rules.Decide(call).Weigh(permission.Opinion{Opinion: strings.TrimPrefix(test.Hook, "none"), By: "hook"})
		if r.Effect != test.Effect || test.Tier != "" && r.Tier != test.Tier || test.Rule != "" && r.Rule != test.Rule {
			t.Errorf("line %d, %s: got %s, tier %s, by %q; want %+v", test.Line, test.Name, r.Effect, r.Tier, r.Rule, test)
		}
	}
}
