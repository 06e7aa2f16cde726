package schemas

import (
	"encoding/json"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nkeys"

	"github.com/toolfleet/toolfleet/messages"
)

const (
	wantPolicy   = "want a mapping with the keys default, deny, ask, allow, risk, approvers, hooks and tests"
	wantApprover = "approvers: want {name: ana, key: U..., acts_as: [support]}"
	wantHook     = "hooks: want {name: fraud, match: refund, class: gate, budget: 5s, priority: 0, before: {command: [./fraud]}}"
	wantProgram  = "want {command: [./program, argument]}"
	wantTest     = "tests: want {tool: refund, input: {...}, expect: {effect: ask, tier: high, rule: ...}}"
	wantExpect   = "expect: want {effect: ask, tier: high, rule: ...}"
)

var approverName = regexp.MustCompile(`^[A-Za-z0-9_.@-]{1,64}$`)

var effects = []string{"allow", "ask", "deny"}

func (m *mistakes) policy(root yamlNode) (p Policy) {
	readers := m.ruleReaders(&p.Rules)
	maps.Copy(readers, map[string]func(yamlNode){
		"default":   func(n yamlNode) { p.Default = oneOf(m, n, "default", effects...) },
		"approvers": func(n yamlNode) { p.Approvers = m.approvers(n) },
		"hooks":     func(n yamlNode) { p.Hooks = m.hooks(n) },
		"tests":     func(n yamlNode) { p.Tests = m.tests(n) },
	})
	m.fields(root, wantPolicy, readers)
	return p
}

// approvers reads the approvers. Each has a name and a key of its own.
func (m *mistakes) approvers(n yamlNode) (all []messages.Approver) {
	names, keys := map[string]int{}, map[string]int{}
	for _, item := range m.items(n, "approvers") {
		var a messages.Approver
		has := m.fields(item, wantApprover, map[string]func(yamlNode){
			"name": func(n yamlNode) {
				a.Name = m.matching(n, "name", approverName, "1 to 64 of [A-Za-z0-9_.@-]")
				m.unique(n.position, names, a.Name, "an approver")
			},
			"key": func(n yamlNode) {
				a.Key = m.publicKey(n)
				if line, twice := keys[a.Key]; twice {
					m.add(n.position, "the key is there already, in line %d; two names of one key would be two people that are one", line)
				}
				keys[a.Key] = n.line
			},
			"acts_as": func(n yamlNode) {
				for _, principal := range m.texts(n, "acts_as", "a list of principals such as [support]") {
					if text := principal.value.(string); messages.IsToken(text) {
						a.ActsAs = append(a.ActsAs, text)
					} else {
						m.add(principal.position, "acts_as: %q is no principal: 1 to 64 of [A-Za-z0-9_-]", clip(text))
					}
				}
			},
		})
		m.needs(item, has, wantApprover, "name", "key")
		all = append(all, a)
	}
	return all
}

// publicKey reads a key. It never quotes a wrong one: it may be a seed that was pasted by mistake.
func (m *mistakes) publicKey(n yamlNode) string {
	key, ok := m.text(n, "key", "the public key of a user: U and 55 characters")
	switch {
	case ok && strings.HasPrefix(key, "S"):
		m.add(n.position, "key: this looks like a seed, which is secret; want the public key, U and 55 characters")
	case ok && !nkeys.IsValidPublicUserKey(key):
		m.add(n.position, "key: want the public key of a user: U and 55 characters")
	}
	return key
}

// needs reports the missing keys of a mapping.
func (m *mistakes) needs(n yamlNode, has map[string]bool, want string, keys ...string) {
	for _, key := range keys {
		if has != nil && !has[key] {
			m.add(n.position, "%s is missing; "+want, key)
		}
	}
}

func (m *mistakes) hooks(n yamlNode) (all []HookEntry) {
	names := map[string]int{}
	for _, item := range m.items(n, "hooks") {
		h := HookEntry{Class: "gate", Line: item.line}
		has := m.fields(item, wantHook, map[string]func(yamlNode){
			"name": func(n yamlNode) {
				h.Name = m.label(n, "name")
				m.unique(n.position, names, h.Name, "a hook")
			},
			"match":    func(n yamlNode) { h.Match = m.match(n) },
			"class":    func(n yamlNode) { h.Class = oneOf(m, n, "class", "gate", "observe") },
			"budget":   func(n yamlNode) { h.Budget = m.duration(n, "budget") },
			"priority": func(n yamlNode) { h.Priority = m.wholeNumber(n, "priority") },
			"before":   func(n yamlNode) { h.Before = m.program(n, "before") },
			"after":    func(n yamlNode) { h.After = m.program(n, "after") },
			"env":      func(n yamlNode) { h.Env = m.env(n) },
		})
		m.needs(item, has, wantHook, "name")
		if has != nil && !has["before"] && !has["after"] {
			m.add(item.position, "before or after is missing; "+wantHook)
		}
		all = append(all, h)
	}
	return all
}

func (m *mistakes) program(n yamlNode, key string) *Exec {
	var e Exec
	has := m.fields(n, key+": "+wantProgram, map[string]func(yamlNode){
		"command": func(n yamlNode) { e.Command = m.command(n) },
	})
	m.needs(n, has, key+": "+wantProgram, "command")
	return &e
}

// match reads patterns separated by |. A pattern that can match nothing is a mistake: its hook
// would let everything pass.
func (m *mistakes) match(n yamlNode) string {
	text, ok := m.text(n, "match", "tools such as Edit|Write|mcp__*")
	if !ok || text == "" {
		return text
	}
	for pattern := range strings.SplitSeq(text, "|") {
		if err := checkToolPattern(pattern); err != nil {
			m.add(n.position, "match: %v", err)
		}
	}
	return text
}

func (m *mistakes) wholeNumber(n yamlNode, key string) int {
	digits, isNumber := n.value.(json.Number)
	i, err := strconv.ParseInt(string(digits), 10, 32)
	if !isNumber || err != nil {
		m.add(n.position, "%s: want a whole number from %d to %d", key, math.MinInt32, math.MaxInt32)
	}
	return int(i)
}

func (m *mistakes) tests(n yamlNode) (all []PolicyTest) {
	for _, item := range m.items(n, "tests") {
		t := PolicyTest{Input: json.RawMessage(`{}`), Hook: "none", Line: item.line}
		has := m.fields(item, wantTest, map[string]func(yamlNode){
			"name": func(n yamlNode) { t.Name = m.label(n, "name") },
			"tool": func(n yamlNode) { t.Tool = m.matching(n, "tool", toolName, "1 to 64 of [a-zA-Z0-9_-]") },
			"kind": func(n yamlNode) {
				t.Kind = oneOf(m, n, "kind", messages.KindRead, messages.KindWrite, messages.KindCompute)
			},
			"session":   func(n yamlNode) { t.Session = m.words(n, "session") },
			"principal": func(n yamlNode) { t.Principal = m.words(n, "principal") },
			"hook":      func(n yamlNode) { t.Hook = oneOf(m, n, "hook", slices.Insert(slices.Clone(effects), 0, "none")...) },
			"input": func(n yamlNode) {
				if _, isMapping := n.value.([]yamlMember); !isMapping {
					m.add(n.position, "input: want a mapping, got %s", n.typeName())
				}
				t.Input = n.json()
			},
			"expect": func(n yamlNode) {
				has := m.fields(n, wantExpect, map[string]func(yamlNode){
					"effect": func(n yamlNode) { t.Effect = oneOf(m, n, "effect", effects...) },
					"tier":   func(n yamlNode) { t.Tier = oneOf(m, n, "tier", messages.Tiers...) },
					"rule":   func(n yamlNode) { t.Rule = m.words(n, "rule") },
				})
				m.needs(n, has, wantExpect, "effect")
			},
		})
		m.needs(item, has, wantTest, "tool", "expect")
		if t.Name == "" {
			t.Name = t.Tool
		}
		all = append(all, t)
	}
	return all
}
