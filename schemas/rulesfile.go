package schemas

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"github.com/toolfleet/toolfleet/internal/strictyaml"
)

var toolPattern = regexp.MustCompile(`^[a-zA-Z0-9_*?\[\]-]+$`)

// rulesInFile holds the four keys with rules, as a file has them.
type rulesInFile struct {
	Deny, Ask, Allow []ruleInFile
	Risk             []RiskEntry
}

// ruleInFile is a short form, or a mapping whose key tool may have a short form.
type ruleInFile struct {
	RuleEntry
	isShort bool
}

func (r *ruleInFile) UnmarshalJSON(data []byte) error {
	if r.isShort = data[0] == '"'; r.isShort {
		return json.Unmarshal(data, &r.Tool)
	}
	return json.Unmarshal(data, &r.RuleEntry)
}

// rules checks the rules of the mapping at p. All rules of a file have different names.
func (f *yamlFile) rules(p string, in rulesInFile) (rules Rules) {
	names := map[string]int{} // line of each
	for _, list := range []struct {
		key  string
		in   []ruleInFile
		into *[]RuleEntry
	}{{"deny", in.Deny, &rules.Deny}, {"ask", in.Ask, &rules.Ask}, {"allow", in.Allow, &rules.Allow}} {
		for i := range list.in {
			at := fmt.Sprintf("%s/%s/%d", p, list.key, i)
			rule := f.rule(at, list.in[i])
			if !f.faulty[at] && f.unique(at, names, rule.Name, "a rule") {
				*list.into = append(*list.into, rule)
			}
		}
	}
	for i, risk := range in.Risk {
		at := fmt.Sprintf("%s/risk/%d", p, i)
		risk = f.risk(at, risk)
		if !f.faulty[at] && f.unique(at, names, risk.Name, "a rule") {
			rules.Risk = append(rules.Risk, risk)
		}
	}
	return rules
}

func (f *yamlFile) rule(p string, in ruleInFile) RuleEntry {
	rule, short, tool := in.RuleEntry, RuleEntry{Tool: "*"}, p
	if !in.isShort {
		tool += "/tool"
	}
	if rule.Tool != "" {
		var err error
		if short, err = ParseRule(rule.Tool); err != nil {
			f.add(tool, "%v", err)
		}
	}
	rule.Tool, rule.Argument, rule.Line = short.Tool, short.Argument, f.line(p)
	f.condition(p+"/when", rule.When)
	f.label(p+"/name", rule.Name)
	f.words(p+"/reason", rule.Reason)
	if rule.Argument != "" && rule.When != "" {
		f.add(p, "a pattern in parentheses or when, not both; write the pattern into when")
	}
	switch {
	case in.isShort:
		rule.Name = short.Name
	case rule.Name == "":
		rule.Name = nameOf(rule.Tool, rule.Argument, rule.When)
	}
	return rule
}

func (f *yamlFile) risk(p string, risk RiskEntry) RiskEntry {
	risk.Line = f.line(p)
	f.patterns(p+"/tool", risk.Tool)
	f.condition(p+"/when", risk.When)
	f.label(p+"/name", risk.Name)
	f.words(p+"/reason", risk.Reason)
	if risk.Tool == "" {
		risk.Tool = "*"
	}
	if risk.Name == "" {
		risk.Name = string(risk.Tier) + ": " + nameOf(risk.Tool, "", risk.When)
	}
	return risk
}

// nameOf returns the default name of a rule, made from its tool, argument and condition.
func nameOf(tool, argument, when string) string {
	name := tool
	switch {
	case argument != "":
		name += "(" + argument + ")"
	case when != "":
		name += " when " + when
	}
	return strictyaml.Clip(strings.Join(strings.Fields(name), " "))
}
