package schemas

import (
	"regexp"
	"strings"
	"unicode"

	"github.com/toolfleet/toolfleet/messages"
)

const (
	wantRule = `want a short form such as "Bash(git push:*)", or {tool: refund, when: input.amount > 50, name: ..., reason: ...}`
	wantRisk = `want {tier: high, tool: refund, when: input.amount > 50, name: ..., reason: ...}`
)

var toolPattern = regexp.MustCompile(`^[a-zA-Z0-9_*?\[\]-]+$`)

// ruleReaders returns readers for the four keys that hold rules. All rules of a file have different
// names.
func (m *mistakes) ruleReaders(rules *Rules) map[string]func(yamlNode) {
	names := map[string]int{} // line of each
	list := func(key string, into *[]RuleEntry) func(yamlNode) {
		return func(n yamlNode) {
			for _, item := range m.items(n, key) {
				rule, ok := m.rule(item, key)
				if ok && m.unique(item.position, names, rule.Name, "a rule") {
					*into = append(*into, rule)
				}
			}
		}
	}
	return map[string]func(yamlNode){
		"deny": list("deny", &rules.Deny), "ask": list("ask", &rules.Ask), "allow": list("allow", &rules.Allow),
		"risk": func(n yamlNode) {
			for _, item := range m.items(n, "risk") {
				risk, ok := m.riskEntry(item)
				if ok && m.unique(item.position, names, risk.Name, "a rule") {
					rules.Risk = append(rules.Risk, risk)
				}
			}
		},
	}
}

func (m *mistakes) items(n yamlNode, key string) []yamlNode {
	items, ok := n.value.([]yamlNode)
	if !ok {
		m.add(n.position, "%s: want a list, got %s", key, n.typeName())
	}
	return items
}

// unique reports whether a name is new, and remembers it. A name that is taken is a mistake.
func (m *mistakes) unique(at position, names map[string]int, name, what string) bool {
	line, twice := names[name]
	if twice {
		m.add(at, "%s named %q is there already, in line %d; give this one another name", what, clip(name), line)
		return false
	}
	names[name] = at.line
	return true
}

// rule reads one rule. It returns false when the rule has a mistake.
func (m *mistakes) rule(n yamlNode, key string) (RuleEntry, bool) {
	before := len(m.all)
	if short, isText := n.value.(string); isText {
		rule, err := ParseRule(short)
		if err != nil {
			m.add(n.position, "%s: %v", key, err)
		}
		rule.Line = n.line
		return rule, len(m.all) == before
	}
	rule := RuleEntry{Tool: "*", Line: n.line}
	has := m.fields(n, key+": "+wantRule, map[string]func(yamlNode){
		"tool": func(n yamlNode) {
			text, ok := m.text(n, "tool", "a tool's name or a short form")
			if !ok {
				return
			}
			short, err := ParseRule(text)
			if err != nil {
				m.add(n.position, "tool: %v", err)
			}
			rule.Tool, rule.Argument = short.Tool, short.Argument
		},
		"when":   func(n yamlNode) { rule.When, _ = m.condition(n, "when") },
		"name":   func(n yamlNode) { rule.Name = m.label(n, "name") },
		"reason": func(n yamlNode) { rule.Reason = m.words(n, "reason") },
	})
	switch {
	case has != nil && !has["tool"] && !has["when"]:
		m.add(n.position, "%s: the rule matches nothing; %s", key, wantRule)
	case rule.Argument != "" && has["when"]:
		m.add(n.position, "%s: a pattern in parentheses or when, not both; write the pattern into when", key)
	}
	if rule.Name == "" {
		rule.Name = nameOf(rule.Tool, rule.Argument, rule.When)
	}
	return rule, len(m.all) == before
}

func (m *mistakes) riskEntry(n yamlNode) (RiskEntry, bool) {
	before := len(m.all)
	risk := RiskEntry{Tool: "*", Line: n.line}
	has := m.fields(n, "risk: "+wantRisk, map[string]func(yamlNode){
		"tier":   func(n yamlNode) { risk.Tier = oneOf(m, n, "tier", messages.Tiers...) },
		"tool":   func(n yamlNode) { risk.Tool = m.toolPattern(n, "tool") },
		"when":   func(n yamlNode) { risk.When, _ = m.condition(n, "when") },
		"name":   func(n yamlNode) { risk.Name = m.label(n, "name") },
		"reason": func(n yamlNode) { risk.Reason = m.words(n, "reason") },
	})
	if has != nil && (!has["tier"] || !has["tool"] && !has["when"]) {
		m.add(n.position, "risk: tier and what it is about are needed; %s", wantRisk)
	}
	if risk.Name == "" {
		risk.Name = string(risk.Tier) + ": " + nameOf(risk.Tool, "", risk.When)
	}
	return risk, len(m.all) == before
}

// nameOf is the default name of a rule: its content on one line.
func nameOf(tool, argument, when string) string {
	name := tool
	switch {
	case argument != "":
		name += "(" + argument + ")"
	case when != "":
		name += " when " + when
	}
	return clip(strings.Join(strings.Fields(name), " "))
}

func (m *mistakes) toolPattern(n yamlNode, key string) string {
	text, ok := m.text(n, key, "a tool's name or a pattern such as mcp__*")
	if ok {
		if err := checkToolPattern(text); err != nil {
			m.add(n.position, "%s: %v", key, err)
		}
	}
	return text
}

// words reads a text for people or the model. An empty text is a mistake.
func (m *mistakes) words(n yamlNode, key string) string {
	text, ok := m.text(n, key, "text")
	if ok && strings.TrimSpace(text) == "" {
		m.add(n.position, "%s: is empty", key)
	}
	return text
}

// label reads a name for people: one line of at most 100 bytes.
func (m *mistakes) label(n yamlNode, key string) string {
	text := m.words(n, key)
	if len(text) > 100 || strings.ContainsFunc(text, func(c rune) bool { return !unicode.IsPrint(c) }) {
		m.add(n.position, "%s: want one line of at most 100 bytes that can be printed", key)
	}
	return text
}
