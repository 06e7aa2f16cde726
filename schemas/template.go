package schemas

import (
	"fmt"
	"regexp"
	"strings"
)

// Template is a text with placeholders for members of a call's input, as in
// /orders/{order_id}. A placeholder names a member, or the path to an inner member:
// {customer.id}.
type Template struct {
	parts []templatePart
}

// templatePart is literal text, or a placeholder with the path of its member.
type templatePart struct {
	text string
	path []string
}

var templatePath = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z_][A-Za-z0-9_-]*)*$`)

// ParseTemplate reads a template. Every brace belongs to a placeholder: braces cannot be
// escaped.
func ParseTemplate(text string) (Template, error) {
	var t Template
	for rest := text; rest != ""; {
		literal, after, found := strings.Cut(rest, "{")
		if strings.Contains(literal, "}") {
			return Template{}, fmt.Errorf("a } has no { before it")
		}
		if literal != "" {
			t.parts = append(t.parts, templatePart{text: literal})
		}
		if !found {
			break
		}
		name, further, closed := strings.Cut(after, "}")
		if !closed || !templatePath.MatchString(name) {
			return Template{}, fmt.Errorf("want the name of a member of the input in braces, such as {order_id} or {customer.id}")
		}
		t.parts = append(t.parts, templatePart{path: strings.Split(name, ".")})
		rest = further
	}
	return t, nil
}

// Paths returns the path of each placeholder's member.
func (t Template) Paths() (paths [][]string) {
	for _, part := range t.parts {
		if part.path != nil {
			paths = append(paths, part.path)
		}
	}
	return paths
}

// Whole returns the path of the placeholder's member, if the template is a single placeholder
// without literal text. Otherwise it returns false.
func (t Template) Whole() ([]string, bool) {
	if len(t.parts) != 1 || t.parts[0].path == nil {
		return nil, false
	}
	return t.parts[0].path, true
}

// Expand returns the text of the template with its placeholders filled. It calls value with
// the path of each placeholder's member, and puts the result in place of the placeholder.
func (t Template) Expand(value func(path []string) (string, error)) (string, error) {
	var b strings.Builder
	for _, part := range t.parts {
		text := part.text
		if part.path != nil {
			var err error
			if text, err = value(part.path); err != nil {
				return "", err
			}
		}
		b.WriteString(text)
	}
	return b.String(), nil
}
