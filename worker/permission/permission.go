// Package permission decides about calls by rules: allow, deny or ask. It is pure: a
// [Rules] is a value, and [Rules.Decide] and [Decision.Weigh] only read a call.
//
// A rule matches a call if its tool pattern matches. If the rule also has an argument
// pattern or a condition (CEL), these must match too. The short form, which
// schemas.ParseRule reads, has a tool pattern and an argument pattern:
//
//	lookup_order               every call of the tool
//	mcp__*                     every call of every tool with such a name
//	Bash(git status:*)         shell tools: commands that begin with these words
//	Read(/etc/**)              file tools: paths
//	refund(currency=EU*)       any other: one property of the input, or its whole canonical JSON
//
// Rules come in layers. No layer can lift what another layer denies, asks about, or calls a
// risk. All layers and hooks share one order of precedence: deny, then a person whom the tier
// requires, then ask, then allow, then the default.
//
// In doubt, the stricter decision counts. An allow rule holds only if it certainly matches. A
// deny, ask or risk rule holds even if it only may match, or if it cannot be evaluated. A deny
// rule protects against honest mistakes and is not a sandbox: it does not see what a script
// does when it runs, or where a symbolic link leads.
//
// Package worker/pipeline asks the person. It also decides what follows if a hook could not
// run.
package permission

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// Effect is what a rule decides for the calls that it matches.
type Effect string

// The effects, strictest first.
const (
	Deny  Effect = "deny"
	Ask   Effect = "ask"
	Allow Effect = "allow"
)

func (e Effect) rank() int { return slices.Index([]Effect{Deny, Ask, Allow}, e) }

// Stricter reports whether e takes precedence over other.
func (e Effect) Stricter(other Effect) bool { return e.rank() < other.rank() }

// Rules is a policy. The zero value has no rules and allows everything; only the tools' own
// tiers count. It is safe for concurrent use.
type Rules struct {
	fallback Effect
	version  string
	roots    []string
	rules    []Rule // deny before ask before allow; otherwise in the order given
	risks    []Rule // highest tier first; otherwise in the order given
}

// Layer holds the rules of one place: the policy file, or a tools file.
type Layer struct {
	Source string
	Rules  schemas.Rules
	// Below says that this layer ranks below the one that sets the default. Its allow rules
	// can override a default that asks, but not a default that denies.
	Below bool
}

// Config holds the parts of a policy.
type Config struct {
	// Default decides calls that no rule matches; "" is allow.
	Default Effect
	// Roots are the absolute paths of the folder from which relative paths count, the
	// canonical path first. Links may give this folder several paths. Empty if no tool has
	// such a folder.
	Roots []string
	// Version names the policy in every decision.
	Version string
	// Layers holds the rules, the most general layer first. If several rules with the same
	// effect match, the first one is named in the decision.
	Layers []Layer
}

// New compiles and sorts the rules. The error joins all mistakes in them.
func New(cfg Config) (Rules, error) {
	var errs []error
	out := Rules{fallback: cfg.Default, version: cfg.Version}
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
			effect  Effect
			entries []schemas.RuleEntry
		}{{Deny, layer.Rules.Deny}, {Ask, layer.Rules.Ask}, {Allow, layer.Rules.Allow}} {
			for _, e := range list.entries {
				rule, err := compile(Rule{
					Effect: list.effect, Tool: e.Tool, Argument: e.Argument, Name: e.Name, Source: layer.Source, Reason: e.Reason,
				}, e.When)
				errs = append(errs, err)
				if list.effect == Allow && layer.Below && cfg.Default == Deny {
					continue
				}
				out.rules = append(out.rules, rule)
			}
		}
		for _, e := range layer.Rules.Risk {
			rule, err := compile(Rule{Tier: e.Tier, Tool: e.Tool, Name: e.Name, Source: layer.Source, Reason: e.Reason}, e.When)
			errs = append(errs, err)
			out.risks = append(out.risks, rule)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return Rules{}, err
	}
	slices.SortStableFunc(out.rules, func(a, b Rule) int { return a.Effect.rank() - b.Effect.rank() })
	slices.SortStableFunc(out.risks, func(a, b Rule) int { return rank(b.Tier) - rank(a.Tier) })
	return out, nil
}

// Version returns the version of the policy, or "" for the zero value.
func (r Rules) Version() string { return r.version }

// Call is what the rules decide about. Input is a JSON object that satisfies the tool's schema.
type Call struct {
	Tool    schemas.Tool
	Input   json.RawMessage
	Session messages.SessionID
	Tenant  messages.TenantID // the agent's tenant
	User    string            // the user for whom the call runs; "": not known
	Labels  map[string]string // the labels of the batch
}

// Decide returns the full decision about a call, by rules and tiers.
func (r Rules) Decide(c Call) Decision {
	s := subject{call: c, roots: r.roots}
	d := r.effect(&s)
	d.Policy = r.version
	d.Tier = messages.TierLow
	if own := c.Tool.Risk; rank(own) > 0 {
		d.Tier, d.Risk = own, Rule{Tier: own, Tool: c.Tool.Name, Name: "tool risk", Source: "tools file"}
	}
	for _, rule := range r.risks {
		if rank(rule.Tier) <= rank(d.Tier) {
			break
		}
		if ok, err := s.matches(rule); ok {
			d.Tier, d.Risk, d.riskErr = rule.Tier, rule, err
		}
	}
	return d
}

// effect returns what the rules say, without the tiers.
func (r Rules) effect(s *subject) Decision {
	d := Decision{Effect: r.fallback}
	if d.Effect == "" {
		d.Effect = Allow
	}
	for _, rule := range r.rules {
		ok, err := s.matches(rule)
		if ok {
			return Decision{Effect: rule.Effect, Rule: rule, Matched: true, err: err}
		}
		if err != nil && d.err == nil {
			d.skipped, d.err = rule, err
		}
	}
	return d
}

// Denied checks only the deny rules. This is cheap, and is done before any hook runs.
func (r Rules) Denied(c Call) (Decision, bool) {
	s := subject{call: c, roots: r.roots}
	for _, rule := range r.rules {
		if rule.Effect != Deny {
			break
		}
		if ok, err := s.matches(rule); ok {
			return Decision{Effect: Deny, Rule: rule, Matched: true, Policy: r.version, err: err}, true
		}
	}
	return Decision{}, false
}

// DeniesTool reports whether a rule denies every call of the tool. Such a tool need not be
// offered to a model.
func (r Rules) DeniesTool(name string) bool {
	return slices.ContainsFunc(r.rules, func(rule Rule) bool {
		return rule.Effect == Deny && rule.Argument == "" && rule.when == nil && rule.matchesTool(name)
	})
}
