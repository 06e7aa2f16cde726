package permission

import (
	"encoding/json"
	"math/big"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/schemas/expression"
)

// subject is one call as the rules see it. Expensive parts are parsed when a rule needs
// them first.
type subject struct {
	call  Call
	roots []string

	members    map[string]json.RawMessage
	script     *script
	conditions *expression.Subject
}

// matches reports whether a rule matches the call. If a condition cannot be evaluated, an
// allow rule does not match, and any other rule does. In that case the error says why.
func (s *subject) matches(r Rule) (bool, error) {
	allows := r.Effect == Allow
	if !r.matchesTool(s.call.Tool.Name) || r.Argument != "" && !s.argument(r.Argument, allows) {
		return false, nil
	}
	if r.when == nil {
		return true, nil
	}
	if s.conditions == nil {
		t := s.call.Tool
		s.conditions = expression.NewSubject(expression.Call{
			Tool: t.Name, Kind: t.Kind, Pool: t.Pool, Input: s.call.Input,
			Session: s.call.Session, Tenant: s.call.Tenant, User: s.call.User, Labels: s.call.Labels,
		})
	}
	ok, err := r.when.Bool(s.conditions)
	if err != nil {
		return !allows, err
	}
	return ok, nil
}

var fieldForm = regexp.MustCompile(`(?s)^([A-Za-z_][A-Za-z0-9_]*)=(.*)$`)

// argument reports whether the pattern matches. How it is read depends on the tool:
//
//   - a shell tool (schemas.Tool.ShellCommand): words of simple commands, see [script];
//   - "field=glob": the text of one property of the input (the canonical JSON if it is not a
//     string); "*" stands for any characters. A path with "=" in its name is written "./a=b";
//   - a file tool, whose schema has the property file_path or else path: a doublestar glob, see
//     matchPath;
//   - any other tool: the canonical JSON of the whole input; "*" stands for any characters.
//
// If certain is set (an allow rule), the pattern must match for sure. Otherwise (a deny,
// ask or risk rule) it is enough that the pattern may match.
func (s *subject) argument(pattern string, certain bool) bool {
	if s.call.Tool.ShellCommand != "" {
		return s.shell(pattern, certain)
	}
	if field := fieldForm.FindStringSubmatch(pattern); field != nil {
		value, ok := s.member(field[1])
		return ok && matchValue(field[2], value, certain)
	}
	if property := pathProperty(s.call.Tool.InputSchema); property != "" {
		raw, given := s.member(property)
		var name string
		if given && json.Unmarshal(raw, &name) != nil {
			return !certain // the value is not a string, so the path is unknown
		}
		return matchPath(pattern, name, s.roots, certain)
	}
	text := textOf(s.call.Input)
	plain, _ := plainNumbers(text)
	return wildcard(pattern, text) || wildcard(pattern, plain)
}

// matchValue reports whether a pattern matches the text of a value. Numbers are compared by
// value: 100, 1e2 and 100.0 are equal. If a double cannot hold a number, the number matches
// every deny and ask rule, and no allow rule.
func matchValue(pattern string, raw json.RawMessage, certain bool) bool {
	text := textOf(raw)
	if rawjson.TypeOf(raw) == "a string" {
		return wildcard(pattern, text)
	}
	plain, held := plainNumbers(text)
	if rawjson.TypeOf(raw) == "a number" {
		if !held {
			return !certain
		}
		pattern, _ = plainNumbers(pattern)
	}
	return wildcard(pattern, plain) || wildcard(pattern, text)
}

var stringOrNumber = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3})?`)

// plainNumbers writes every number of a JSON text as a decimal without exponent and without
// trailing zeros. held is false if a number is neither whole nor exactly a double.
func plainNumbers(text string) (plain string, held bool) {
	held = true
	return stringOrNumber.ReplaceAllStringFunc(text, func(token string) string {
		value, ok := new(big.Rat).SetString(token)
		if token[0] == '"' || !ok {
			return token
		}
		if value.IsInt() {
			return value.Num().String()
		}
		f, _ := strconv.ParseFloat(token, 64)
		double, _ := new(big.Rat).SetString(strconv.FormatFloat(f, 'g', -1, 64))
		held = held && double != nil && double.Cmp(value) == 0
		digits, _ := value.FloatPrec()
		return value.FloatString(digits)
	}), held
}

func (s *subject) member(name string) (json.RawMessage, bool) {
	if s.members == nil {
		s.members, _ = rawjson.Object(s.call.Input)
	}
	value, ok := s.members[name]
	return value, ok
}

func (s *subject) shell(pattern string, certain bool) bool {
	if s.script == nil {
		raw, _ := s.member(s.call.Tool.ShellCommand)
		var line string
		s.script = &script{unclear: true}
		if json.Unmarshal(raw, &line) == nil {
			s.script = parseScript(line, 0)
		}
	}
	if certain {
		return s.script.all(strings.Fields(spread(pattern)))
	}
	return s.script.any(strings.Fields(spread(pattern)))
}

// spread replaces ":*" at the end of a shell pattern by the word " *".
func spread(pattern string) string {
	if head, ok := strings.CutSuffix(pattern, ":*"); ok {
		return head + " *"
	}
	return pattern
}

// pathProperty returns the property of a file tool that names the file, or "" for any other tool.
func pathProperty(schema json.RawMessage) string {
	var s struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	_ = json.Unmarshal(schema, &s) // an unreadable schema has no properties
	for _, name := range []string{"file_path", "path"} {
		if _, ok := s.Properties[name]; ok {
			return name
		}
	}
	return ""
}

// matchPath matches a path against a doublestar glob, both cleaned. If the glob begins with
// "/", the absolute path is matched, otherwise the path from the root. An empty name is the
// root itself.
//
// For an allow rule the path must be inside the root, unless the glob is absolute. A deny
// or ask rule also matches a folder above the fixed part of the glob, because a search that
// starts in that folder would find what the glob names ("." for "secrets/**"). If the glob
// has no fixed part ("**/.env"), it does not match such folders.
func matchPath(pattern, name string, roots []string, certain bool) bool {
	target, abs := locate(name, roots)
	if path.IsAbs(pattern) {
		target = abs
	} else if certain && (target == ".." || strings.HasPrefix(target, "../")) {
		return false
	}
	if target == "" {
		return !certain
	}
	pattern = path.Clean(pattern)
	if ok, err := doublestar.Match(pattern, target); err != nil || ok {
		return ok || !certain // a malformed glob allows nothing and denies everything
	}
	base, _ := doublestar.SplitPattern(pattern)
	return !certain && base != "." && base != "/" && above(target, base)
}

// locate returns two cleaned forms of a path: rel from the root, and abs. A form that is not
// known is "". If name is absolute, rel is relative to the root that contains name.
func locate(name string, roots []string) (rel, abs string) {
	if len(roots) == 0 {
		if path.IsAbs(name) {
			return "", path.Clean(name)
		}
		return path.Clean(name), ""
	}
	root := roots[0]
	abs = path.Join(root, name)
	if path.IsAbs(name) {
		abs = path.Clean(name)
		if i := slices.IndexFunc(roots, func(r string) bool { return above(r, abs) }); i >= 0 {
			root = roots[i]
		}
	}
	rel, err := filepath.Rel(root, abs)
	if err != nil {
		return "", abs
	}
	return rel, path.Join(roots[0], rel)
}

// above reports whether dir is name, or a folder above name. Both are cleaned. Whole path
// components are compared.
func above(dir, name string) bool {
	return dir == name || dir == "." || strings.HasPrefix(name, strings.TrimSuffix(dir, "/")+"/")
}

// textOf returns the text of a JSON string, and the canonical JSON of any other value.
func textOf(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil && rawjson.TypeOf(raw) == "a string" {
		return s
	}
	canonical, err := rawjson.Canonical(raw)
	if err != nil {
		return string(raw)
	}
	return string(canonical)
}

// wildcard matches the pattern against all of s. "*" stands for any characters, and every
// other character for itself.
func wildcard(pattern, s string) bool {
	star, mark := -1, 0
	p, i := 0, 0
	for i < len(s) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, i
			p++
		case p < len(pattern) && pattern[p] == s[i]:
			p++
			i++
		case star >= 0:
			mark++
			p, i = star+1, mark
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}
