package schemas

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/schemas/expression"
)

// Readers of values that several keys share.

// fields reads the members of a mapping, each with the reader of its key, and returns the keys that
// are there. It returns nil for a value that is not a mapping.
func (m *mistakes) fields(n yamlNode, want string, readers map[string]func(yamlNode)) map[string]bool {
	members, ok := n.value.([]yamlMember)
	if !ok {
		m.add(n.position, want+", got %s", n.typeName())
		return nil
	}
	has := map[string]bool{}
	for _, member := range members {
		has[member.key] = true
		if read, known := readers[member.key]; known {
			read(member.node)
		} else {
			m.add(member.position, "unknown key %q; "+want, clip(member.key))
		}
	}
	return has
}

func (m *mistakes) command(n yamlNode) (command []string) {
	for _, item := range m.texts(n, "command", `a list such as [./program, argument] or [sh, -c, "a | b"]`) {
		command = append(command, item.value.(string))
	}
	if items, isList := n.value.([]yamlNode); isList && (len(items) == 0 || items[0].value == "") {
		m.add(n.position, "command: the program is missing")
	}
	return command
}

// env reads names of environment variables.
func (m *mistakes) env(n yamlNode) (names []string) {
	for _, item := range m.texts(n, "env", "a list of names such as [DB_URL]") {
		name := item.value.(string)
		switch {
		case !environmentName.MatchString(name):
			m.add(item.position, "env: %q is no name of an environment variable; values are not written here", clip(name))
		case strings.HasPrefix(name, "TOOLFLEET_"):
			m.add(item.position, "env: %s is set by toolfleet itself", clip(name))
		default:
			names = append(names, name)
		}
	}
	return names
}

func (m *mistakes) duration(n yamlNode, key string) time.Duration {
	const want = `a duration such as "5s", "500ms" or "2m"`
	text, ok := m.text(n, key, want)
	if !ok {
		return 0
	}
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		m.add(n.position, `%s: %q is no duration; want one such as "5s", "500ms" or "2m"`, key, clip(text))
	case d < time.Millisecond:
		m.add(n.position, "%s: want at least 1ms", key)
	}
	return d
}

// text reads a text value; any other value is a mistake.
func (m *mistakes) text(n yamlNode, key, want string) (string, bool) {
	s, ok := n.value.(string)
	if !ok {
		m.add(n.position, "%s: want %s, got %s", key, want, n.typeName())
	}
	return s, ok
}

func (m *mistakes) matching(n yamlNode, key string, pattern *regexp.Regexp, want string) string {
	s, ok := m.text(n, key, want)
	if ok && !pattern.MatchString(s) {
		m.add(n.position, "%s: %q is not %s", key, clip(s), want)
	}
	return s
}

// texts returns those items of a list that are text; other items are mistakes.
func (m *mistakes) texts(n yamlNode, key, want string) []yamlNode {
	items, ok := n.value.([]yamlNode)
	if !ok {
		m.add(n.position, "%s: want %s, got %s", key, want, n.typeName())
	}
	return slices.DeleteFunc(slices.Clone(items), func(item yamlNode) bool {
		_, isText := m.text(item, key, "text (put it into quotes)")
		return !isText
	})
}

func oneOf[T ~string](m *mistakes, n yamlNode, key string, allowed ...T) T {
	words := make([]string, 0, len(allowed))
	for _, a := range allowed {
		words = append(words, string(a))
	}
	want := "one of " + strings.Join(words, ", ")
	s, ok := m.text(n, key, want)
	if ok && !slices.Contains(words, s) {
		m.add(n.position, "%s: %q is not %s", key, clip(s), want)
	}
	return T(s)
}

// condition reads an expression. A mistake in it is reported at its place in the file.
func (m *mistakes) condition(n yamlNode, key string) (source string, p *expression.Program) {
	source, ok := m.text(n, key, "an expression such as input.amount > 50")
	if !ok {
		return "", nil
	}
	p, err := expression.Compile(source, expression.Bool)
	var wrong *expression.Error
	if errors.As(err, &wrong) {
		m.add(m.inside(n.position, source, wrong.Line, wrong.Column), "%s: %s", key, wrong.Message)
	}
	return source, p
}
