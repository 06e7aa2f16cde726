package httptool

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"unicode"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/schemas"
)

// input holds the arguments of a call, and records which members the request has used.
type input struct {
	members map[string]json.RawMessage
	used    map[string]bool
}

func readInput(raw json.RawMessage) (*input, error) {
	members, err := rawjson.Object(raw)
	if err != nil {
		return nil, err
	}
	return &input{members, map[string]bool{}}, nil
}

// errMissing says that the input has no such member, or that the member is null.
var errMissing = errors.New("is missing")

// at returns the member at a path as text: a string without its quotes, or a number with
// its digits unchanged.
func (in *input) at(path []string) (string, error) {
	in.used[path[0]] = true
	name := strings.Join(path, ".")
	raw, ok := in.members[path[0]]
	for _, step := range path[1:] {
		if !ok {
			break
		}
		inner, err := rawjson.Object(raw)
		if err != nil {
			return "", fmt.Errorf("%s: %s is no object", name, step)
		}
		raw, ok = inner[step]
	}
	if !ok || string(raw) == "null" {
		return "", fmt.Errorf("%s %w", name, errMissing)
	}
	text, err := scalar(raw)
	if err != nil {
		return "", fmt.Errorf("%s %w", name, err)
	}
	return text, nil
}

// scalar returns a string, a number or a boolean as text.
func scalar(raw json.RawMessage) (string, error) {
	switch raw[0] {
	case '{', '[':
		return "", fmt.Errorf("is %s, and text, a number, true or false is needed", rawjson.TypeOf(raw))
	case '"':
		var text string
		err := json.Unmarshal(raw, &text)
		return text, err
	}
	return string(raw), nil
}

// inPath returns the path of the request. Each value stays within its segment of the path.
func (in *input) inPath(segments []schemas.Template) (string, error) {
	var path strings.Builder
	for _, segment := range segments {
		path.WriteByte('/')
		var plain strings.Builder
		_, hasValue := segment.Whole()
		escaped, err := segment.Expand(func(member []string) (string, error) {
			hasValue = true
			text, err := in.at(member)
			if err == nil {
				err = check(strings.Join(member, "."), text)
			}
			plain.WriteString(text)
			return url.PathEscape(text), err
		})
		if err != nil {
			return "", err
		}
		// Many servers decode %2F and follow dots, so escaping alone does not keep a value
		// in its segment.
		if hasValue && (climbs(plain.String()) || climbs(escaped)) {
			return "", fmt.Errorf("a value of the address would lead to another folder: %.80q", plain.String())
		}
		path.WriteString(escaped)
	}
	return path.String(), nil
}

// check refuses values that could break out of a header, or forge lines in logs of the
// address.
func check(name, text string) error {
	switch {
	case text == "":
		return fmt.Errorf("%s is empty, and the address needs it", name)
	case strings.ContainsFunc(text, unicode.IsControl):
		return fmt.Errorf("%s has a control character", name)
	}
	return nil
}

// climbs reports whether a server could read a part of the segment as "." or "..".
func climbs(segment string) bool {
	for part := range strings.FieldsFuncSeq(segment, func(c rune) bool { return c == '/' || c == '\\' || c == ';' }) {
		if part == "." || part == ".." {
			return true
		}
	}
	return false
}

// inQuery returns the query of the URL: the template with its placeholders filled from the
// input.
func (in *input) inQuery(t schemas.Template) (string, error) {
	return t.Expand(func(path []string) (string, error) {
		text, err := in.at(path)
		return url.QueryEscape(text), err
	})
}

// expand returns the text of a header or parameter: the template with its placeholders filled
// from the input. ok is false if the template is a single placeholder and the input lacks its
// member or has null there.
func (in *input) expand(t schemas.Template) (text string, ok bool, err error) {
	text, err = t.Expand(in.at)
	if _, whole := t.Whole(); whole && errors.Is(err, errMissing) {
		return "", false, nil
	}
	return text, err == nil, err
}

// rest returns the members that nothing has used.
func (in *input) rest() map[string]json.RawMessage {
	rest := map[string]json.RawMessage{}
	for name, value := range in.members {
		if !in.used[name] {
			rest[name] = value
		}
	}
	return rest
}

// restAsParams adds the unused members of the input as parameters. A list becomes one
// parameter per item.
func (in *input) restAsParams(params url.Values) error {
	rest := in.rest()
	for _, name := range rawjson.SortedKeys(rest) {
		raw, values := rest[name], []json.RawMessage{rest[name]}
		if raw[0] == '[' {
			values = rawjson.Elements(raw)
		}
		for _, value := range values {
			if string(value) == "null" {
				continue
			}
			text, err := scalar(value)
			if err != nil {
				return fmt.Errorf("%s %w", name, err)
			}
			params.Add(name, text)
		}
	}
	return nil
}
