package permission

import (
	"fmt"
	"path"
	"slices"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas/expression"
)

// Rule is one line of the policy.
type Rule struct {
	// Effect is what the rule decides, or "" for a risk rule.
	Effect Effect
	// Tier is the tier that a risk rule gives to the calls that it matches.
	Tier messages.Tier
	// Tool is a tool's name, or a pattern of path.Match.
	Tool string
	// Argument is a pattern for the input: see [subject.argument]. "" matches every call.
	Argument string
	// Name is the rule's name in decisions and logs. Default: Tool.
	Name string
	// Source names the layer that has the rule.
	Source string
	// Reason is the rule's own text for the model and for people. May be empty.
	Reason string

	when *expression.Program // nil: always
}

func (r Rule) String() string { return string(r.Effect) + string(r.Tier) + " " + r.place() }

// place returns the rule's name and the layer that holds it.
func (r Rule) place() string {
	if r.Source == "" {
		return r.Name
	}
	return r.Name + " (" + r.Source + ")"
}

// compile checks a rule and compiles its condition.
func compile(r Rule, when string) (Rule, error) {
	if r.Name == "" {
		r.Name = r.Tool
	}
	fail := func(format string, args ...any) (Rule, error) {
		return r, fmt.Errorf("rule %.200q: %w", r.String(), fmt.Errorf(format, args...))
	}
	if _, err := path.Match(r.Tool, ""); err != nil || r.Tool == "" {
		return fail("tool pattern %.80q is malformed", r.Tool)
	}
	if r.Effect == "" && rank(r.Tier) < 0 {
		return fail("tier %.20q: want low, medium, high or critical", r.Tier)
	}
	if when == "" {
		return r, nil
	}
	program, err := expression.Compile(when, expression.Bool)
	if err != nil {
		return fail("when: %w", err)
	}
	r.when = program
	return r, nil
}

func (r Rule) matchesTool(name string) bool {
	ok, _ := path.Match(r.Tool, name) // compile has checked the pattern
	return ok
}

// rank orders the tiers. An unknown tier is below the lowest.
func rank(t messages.Tier) int { return slices.Index(messages.Tiers, t) }
