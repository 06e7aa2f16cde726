package schemas

import (
	"regexp"
	"slices"
	"strings"
	"time"
)

// The readers of values that several keys share.

// fields reads the members of a mapping, each with the reader of its key, and says which keys are there;
// nil for anything but a mapping.
func (r *entryReader) fields(n yamlNode, want string, readers map[string]func(yamlNode)) map[string]bool {
	members, ok := n.value.([]yamlMember)
	if !ok {
		r.add(n.position, want+", got %s", n.typeName())
		return nil
	}
	has := map[string]bool{}
	for _, member := range members {
		has[member.key] = true
		if read, known := readers[member.key]; known {
			read(member.node)
		} else {
			r.add(member.position, "unknown key %q; "+want, clip(member.key))
		}
	}
	return has
}

func (r *entryReader) command(n yamlNode) (command []string) {
	for _, item := range r.texts(n, "command", `a list such as [./program, argument] or [sh, -c, "a | b"]`) {
		command = append(command, item.value.(string))
	}
	if items, isList := n.value.([]yamlNode); isList && (len(items) == 0 || items[0].value == "") {
		r.add(n.position, "command: the program is missing")
	}
	return command
}

func (r *entryReader) duration(n yamlNode, key string) time.Duration {
	const want = `a duration such as "5s", "500ms" or "2m"`
	text, ok := r.text(n, key, want)
	if !ok {
		return 0
	}
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		r.add(n.position, `%s: %q is no duration; want one such as "5s", "500ms" or "2m"`, key, clip(text))
	case d < time.Millisecond:
		r.add(n.position, "%s: want at least 1ms", key)
	}
	return d
}

// text is a text value; anything else is a mistake.
func (r *entryReader) text(n yamlNode, key, want string) (string, bool) {
	s, ok := n.value.(string)
	if !ok {
		r.add(n.position, "%s: want %s, got %s", key, want, n.typeName())
	}
	return s, ok
}

func (r *entryReader) matching(n yamlNode, key string, pattern *regexp.Regexp, want string) string {
	s, ok := r.text(n, key, want)
	if ok && !pattern.MatchString(s) {
		r.add(n.position, "%s: %q is not %s", key, clip(s), want)
	}
	return s
}

// texts is the items of a list of text that are text.
func (r *entryReader) texts(n yamlNode, key, want string) []yamlNode {
	items, ok := n.value.([]yamlNode)
	if !ok {
		r.add(n.position, "%s: want %s, got %s", key, want, n.typeName())
	}
	return slices.DeleteFunc(slices.Clone(items), func(item yamlNode) bool {
		_, isText := r.text(item, key, "text (put it into quotes)")
		return !isText
	})
}

func oneOf[T ~string](r *entryReader, n yamlNode, key string, allowed ...T) T {
	words := make([]string, 0, len(allowed))
	for _, a := range allowed {
		words = append(words, string(a))
	}
	want := "one of " + strings.Join(words, ", ")
	s, ok := r.text(n, key, want)
	if ok && !slices.Contains(words, s) {
		r.add(n.position, "%s: %q is not %s", key, clip(s), want)
	}
	return T(s)
}
