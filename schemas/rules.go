package schemas

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas/expression"
)

// Rules are the rules of one layer: the policy file, or the key permissions of a tools file.
type Rules struct {
	Deny, Ask, Allow []RuleEntry
	Risk             []RiskEntry
}

// RuleEntry is one rule, from the short form "Bash(git status:*)" or a mapping.
type RuleEntry struct {
	// Name identifies the rule in decisions, logs and questions. It is unique in its file. Default:
	// the short form, or the tool and the condition.
	Name string
	// Tool is a tool's name, or a pattern of path.Match.
	Tool string
	// Argument is the pattern of the short form for the input; "" matches every call. If it
	// is set, When is empty.
	Argument string
	When     string // CEL; "" is always
	Reason   string // for the model and for people
	Line     int    // where the rule starts, from 1; 0 outside of a file
}

// RiskEntry raises the tier of the calls that it matches.
type RiskEntry struct {
	Name, Tool, When, Reason string
	Tier                     messages.Tier
	Line                     int
}

// SemanticRule is a tool's own check of an input that fits its schema.
type SemanticRule struct {
	Require string `json:"require"`        // CEL; if it is not true, the input is refused
	Message string `json:"message"`        // for the model
	Code    string `json:"code,omitempty"` // default [messages.CodeInvalidArguments]
}

var shortForm = regexp.MustCompile(`(?s)^([a-zA-Z0-9_*?\[\]-]+)(?:\((.+)\))?$`)

// ParseRule reads the short form of a rule: a tool pattern, and in parentheses a pattern for the
// input.
func ParseRule(short string) (RuleEntry, error) {
	short = strings.Trim(short, " \t\r\n")
	parts := shortForm.FindStringSubmatch(short)
	// A pattern of only spaces would match every call.
	if parts == nil || parts[2] != "" && strings.TrimSpace(parts[2]) == "" {
		return RuleEntry{}, fmt.Errorf("%.80q: want Tool or Tool(pattern)", short)
	}
	r := RuleEntry{Name: short, Tool: parts[1], Argument: strings.TrimSpace(parts[2])}
	return r, checkToolPattern(r.Tool)
}

// checkToolPattern returns an error unless the pattern is a tool's name or a pattern of
// path.Match.
func checkToolPattern(pattern string) error {
	if _, err := path.Match(pattern, ""); err != nil || !toolPattern.MatchString(pattern) {
		return fmt.Errorf("%.80q is no tool's name and no pattern such as mcp__*", pattern)
	}
	return nil
}

// checkConditions checks the tool's expressions, and its tier.
func (t Tool) checkConditions() error {
	if t.SafeWhen != "" {
		if t.ConcurrencySafe != nil {
			return errors.New("concurrency_safe and safe_when: want one of them")
		}
		p, err := expression.Compile(t.SafeWhen, expression.Bool)
		if err != nil {
			return fmt.Errorf("safe_when: %v", err)
		}
		if asksWho(p) {
			return fmt.Errorf("safe_when: %w", errAsksWho)
		}
	}
	for i, rule := range t.Semantic {
		if _, err := expression.Compile(rule.Require, expression.Bool); err != nil {
			return fmt.Errorf("semantic[%d]: %v", i, err)
		}
		if rule.Message == "" {
			return fmt.Errorf("semantic[%d]: message is empty", i)
		}
	}
	if t.Risk != "" && !slices.Contains(messages.Tiers, t.Risk) {
		return fmt.Errorf("risk %q: want low, medium, high or critical", t.Risk)
	}
	return nil
}

// errAsksWho is the error for an expression that reads the session, the principal or the
// labels. The coordinator does not know them when it decides whether a call may run beside
// others.
var errAsksWho = errors.New("only tool and input are known here, neither session nor principal nor labels")

func asksWho(p *expression.Program) bool {
	return slices.ContainsFunc([]string{"session.id", "principal.id", "principal.user", "labels"}, p.Reads)
}
