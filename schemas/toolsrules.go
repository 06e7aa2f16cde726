package schemas

import (
	"regexp"

	"github.com/toolfleet/toolfleet/messages"
)

const (
	wantRequire = `semantic: want a list of {require: input.amount > 0, message: "the amount has to be positive", code: bad_amount}`
	wantRules   = "want {deny: [...], ask: [...], allow: [...], risk: [...]}"
)

var codeName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

// concurrencySafe reads true or false for all calls, or a condition for each call.
func (r *entryReader) concurrencySafe(n yamlNode) {
	switch v := n.value.(type) {
	case bool:
		r.entry.ConcurrencySafe = &v
	case string:
		source, program := r.condition(n, "concurrency_safe")
		r.entry.SafeWhen = source
		if program != nil && asksWho(program) {
			r.add(n.position, "concurrency_safe: %v", errAsksWho)
		}
	default:
		r.add(n.position, "concurrency_safe: want true, false or an expression such as input.dry_run, got %s", n.typeName())
	}
}

func (r *entryReader) risk(n yamlNode) {
	r.entry.Risk = oneOf(r.mistakes, n, "risk", messages.Tiers...)
}

func (r *entryReader) semantic(n yamlNode) {
	items, ok := n.value.([]yamlNode)
	if !ok {
		r.add(n.position, wantRequire+", got %s", n.typeName())
	}
	for _, item := range items {
		var rule SemanticRule
		has := r.fields(item, wantRequire, map[string]func(yamlNode){
			"require": func(n yamlNode) { rule.Require, _ = r.condition(n, "require") },
			"message": func(n yamlNode) { rule.Message = r.words(n, "message") },
			"code":    func(n yamlNode) { rule.Code = r.matching(n, "code", codeName, "a code such as bad_amount") },
		})
		for _, key := range []string{"require", "message"} {
			if has != nil && !has[key] {
				r.add(item.position, "%s is missing; "+wantRequire, key)
			}
		}
		r.entry.Semantic = append(r.entry.Semantic, rule)
	}
}

// permissions reads the rules in a tools file.
func (m *mistakes) permissions(n yamlNode) (rules Rules) {
	m.fields(n, "permissions: "+wantRules, m.ruleReaders(&rules))
	return rules
}
