// Package permission is rules in; allow, deny or ask out. It is pure: a [Rules] is a value, [Rules.Decide]
// reads a tool's promise and a call's input and touches nothing else.
//
// One precedence holds for all rules, whatever layer they come from: deny, then ask, then allow, then the
// default. A rule is written in the short form "Tool" or "Tool(argument pattern)" and read by [Parse]:
//
//	lookup_order               every call of the tool
//	mcp__*                     every call of every tool with such a name
//	Bash(git status:*)         shell tools: commands that begin with these words
//	Read(/etc/**)              file tools: paths
//	refund(currency=EU*)       any other: one property of the input, or its whole canonical JSON
//
// What cannot be known from the input counts against the call: an allow holds only where it certainly
// matches, a deny and an ask already where they may. A deny is a fence around honest mistakes, no sandbox:
// what a script does once it runs is out of its sight, and so is where a symbolic link leads.
//
// Who asks the person, and how a hook's opinion weighs in, is left to worker/pipeline.
package permission

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/schemas"
)

// Effect is what a rule wants of the calls that it matches.
type Effect string

// The effects, strictest first.
const (
	Deny  Effect = "deny"
	Ask   Effect = "ask"
	Allow Effect = "allow"
)

func (e Effect) rank() int { return slices.Index([]Effect{Deny, Ask, Allow}, e) }

// Stricter reports whether e wins over other.
func (e Effect) Stricter(other Effect) bool { return e.rank() < other.rank() }

// Rule is one line of the policy.
type Rule struct {
	Effect Effect
	// Tool is a tool's name, or a pattern of path.Match.
	Tool string
	// Argument is a pattern for the input, read by the family of the tool; "" matches every call.
	Argument string
	// Name is what decisions, logs and people call the rule. [Parse] sets it to the short form.
	Name string
	// Source is the layer that holds the rule.
	Source string
}

func (r Rule) String() string {
	s := string(r.Effect) + " " + r.Name
	if r.Source == "" {
		return s
	}
	return s + " (" + r.Source + ")"
}

var shortForm = regexp.MustCompile(`(?s)^([a-zA-Z0-9_*?\[\]-]+)(?:\((.+)\))?$`)

// Parse reads the short form: a tool pattern, and in parentheses an argument pattern.
func Parse(effect Effect, source, short string) (Rule, error) {
	parts := shortForm.FindStringSubmatch(strings.TrimSpace(short))
	if parts == nil {
		return Rule{}, fmt.Errorf("%s rule %.80q: want Tool or Tool(pattern)", effect, short)
	}
	r := Rule{Effect: effect, Tool: parts[1], Argument: strings.TrimSpace(parts[2]), Name: strings.TrimSpace(short), Source: source}
	return r, r.validate()
}

func (r Rule) validate() error {
	if r.Effect.rank() < 0 {
		return fmt.Errorf("rule %.80q: effect %.20q: want deny, ask or allow", r.Name, r.Effect)
	}
	if _, err := path.Match(r.Tool, ""); err != nil || r.Tool == "" {
		return fmt.Errorf("%s rule %.80q: tool pattern %.80q is malformed", r.Effect, r.Name, r.Tool)
	}
	return nil
}

// Layer is the rules of one place, in the short form: the platform's config, a tools file.
type Layer struct {
	Source string   `json:"source,omitempty" yaml:"source,omitempty"`
	Deny   []string `json:"deny,omitempty" yaml:"deny,omitempty"`
	Ask    []string `json:"ask,omitempty" yaml:"ask,omitempty"`
	Allow  []string `json:"allow,omitempty" yaml:"allow,omitempty"`
}

// Rules is a policy. The zero value allows everything. Safe for concurrent use.
type Rules struct {
	fallback Effect
	roots    []string
	rules    []Rule // deny before ask before allow; within each as they came
}

// Config says what a policy is made of.
type Config struct {
	// Default decides calls that no rule matches; "" is allow.
	Default Effect
	// Roots are the absolute spellings of the one folder that relative paths start from, the canonical one
	// first: a folder may also be reached through a link. Empty where no tool has such a folder.
	Roots []string
	// Layers hold the rules in the short form, the most general layer first. The order decides only
	// which of several matching rules is named.
	Layers []Layer
	// Rules come after those of the layers.
	Rules []Rule
}

// New checks and sorts the rules. The error joins everything that is wrong with them.
func New(cfg Config) (Rules, error) {
	var errs []error
	out := Rules{fallback: cfg.Default}
	if cfg.Default != "" && cfg.Default.rank() < 0 {
		errs = append(errs, fmt.Errorf("permissions.default %.20q: want allow, ask or deny", cfg.Default))
	}
	for _, root := range cfg.Roots {
		if !path.IsAbs(root) {
			errs = append(errs, fmt.Errorf("root %.200q: want an absolute path", root))
		}
		out.roots = append(out.roots, path.Clean(root))
	}
	for _, layer := range cfg.Layers {
		for _, list := range []struct {
			effect Effect
			rules  []string
		}{{Deny, layer.Deny}, {Ask, layer.Ask}, {Allow, layer.Allow}} {
			for _, short := range list.rules {
				rule, err := Parse(list.effect, layer.Source, short)
				errs = append(errs, err)
				out.rules = append(out.rules, rule)
			}
		}
	}
	for _, rule := range cfg.Rules {
		if rule.Name == "" {
			rule.Name = rule.Tool
		}
		errs = append(errs, rule.validate())
		out.rules = append(out.rules, rule)
	}
	if err := errors.Join(errs...); err != nil {
		return Rules{}, err
	}
	slices.SortStableFunc(out.rules, func(a, b Rule) int { return a.Effect.rank() - b.Effect.rank() })
	return out, nil
}

// Decision is what the rules say about one call.
type Decision struct {
	Effect Effect
	// Rule is the one that decided. Zero when none matched and the default holds.
	Rule Rule
	// Matched tells a rule's decision from the default.
	Matched bool
}

// Reason says why, in words for the model and for people. It quotes no argument.
func (d Decision) Reason() string {
	if !d.Matched {
		return fmt.Sprintf("no rule matches, and the default is %s", d.Effect)
	}
	return "the rule: " + d.Rule.String()
}

// Decide is the full decision on a call. Input is a JSON object that satisfies the tool's schema.
func (r Rules) Decide(t schemas.Tool, input json.RawMessage) Decision {
	s := subject{tool: t, input: input, roots: r.roots}
	for _, rule := range r.rules {
		if s.matches(rule) {
			return Decision{Effect: rule.Effect, Rule: rule, Matched: true}
		}
	}
	if r.fallback == "" {
		return Decision{Effect: Allow}
	}
	return Decision{Effect: r.fallback}
}

// Denied is the deny rules alone: the cheap look before any hook runs.
func (r Rules) Denied(t schemas.Tool, input json.RawMessage) (Decision, bool) {
	if len(r.rules) == 0 || r.rules[0].Effect != Deny {
		return Decision{}, false
	}
	d := r.Decide(t, input)
	return d, d.Matched && d.Effect == Deny
}

// DeniesTool reports whether a rule denies every call of the tool: such a tool need not be offered to a model.
func (r Rules) DeniesTool(name string) bool {
	return slices.ContainsFunc(r.rules, func(rule Rule) bool {
		return rule.Effect == Deny && rule.Argument == "" && rule.matchesTool(name)
	})
}

func (r Rule) matchesTool(name string) bool {
	ok, _ := path.Match(r.Tool, name) // validate has seen the pattern
	return ok
}
