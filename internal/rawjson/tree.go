package rawjson

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

// Canonical returns raw with sorted keys, no white space and unchanged numbers. Equal
// arguments thus have equal bytes.
func Canonical(raw []byte) ([]byte, error) {
	if !valid(raw) {
		return canonicalFirst(raw)
	}
	out, _ := checker(raw).canonical(make([]byte, 0, len(raw)), 0)
	return out, nil
}

// canonicalFirst is like [Canonical], for a text that is not one valid JSON value. It uses the
// first value in the text. Its error is that of encoding/json.
func canonicalFirst(raw []byte) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	return Marshal(v) // maps are written with sorted keys
}

// canonical appends the canonical form of the value at a byte offset. It returns the offset after
// the value.
func (c checker) canonical(out []byte, at int) ([]byte, int) {
	at = c.space(at)
	switch c[at] {
	case '{':
		return c.canonicalObject(out, at)
	case '[':
		out = append(out, '[')
		for at = c.space(at + 1); c[at] != ']'; {
			if c[at] == ',' {
				out, at = append(out, ','), at+1
			}
			out, at = c.canonical(out, at)
			at = c.space(at)
		}
		return append(out, ']'), at + 1
	case '"':
		end := c.text(at)
		return appendText(out, c[at:end]), end
	}
	end := c.skip(at)
	return append(out, c[at:end]...), end
}

// canonicalObject appends an object with its members sorted by name. If several members have
// the same name, the last one counts.
func (c checker) canonicalObject(out []byte, at int) ([]byte, int) {
	type member struct {
		key   []byte // the key as it is written
		name  string
		value int // the offset of its value
	}
	members := make([]member, 0, 8)
	for at = c.space(at + 1); c[at] != '}'; {
		end := c.text(at)
		value := c.space(end) + 1 // after the colon
		members = append(members, member{c[at:end], textOf(c[at:end]), value})
		if at = c.space(c.skip(c.space(value))); c[at] == ',' {
			at = c.space(at + 1)
		}
	}
	slices.SortStableFunc(members, func(a, b member) int { return strings.Compare(a.name, b.name) })
	out = append(out, '{')
	first := true
	for i, m := range members {
		if i+1 < len(members) && members[i+1].name == m.name {
			continue
		}
		if !first {
			out = append(out, ',')
		}
		out, first = append(appendText(out, m.key), ':'), false
		out, _ = c.canonical(out, m.value)
	}
	return append(out, '}'), at + 1
}

// appendText appends a JSON string in the form that [Quote] gives to its text.
func appendText(out, quoted []byte) []byte {
	if isPlain(quoted) {
		return append(out, quoted...)
	}
	return append(out, Quote(textOf(quoted))...)
}

// isPlain reports whether a JSON string has only characters that need no escape.
func isPlain(quoted []byte) bool {
	for _, b := range quoted {
		if b == '\\' || b > '~' {
			return false
		}
	}
	return true
}

// textOf returns the text of a JSON string that is part of valid JSON.
func textOf(quoted []byte) (text string) {
	if isPlain(quoted) {
		return string(quoted[1 : len(quoted)-1])
	}
	_ = json.Unmarshal(quoted, &text)
	return text
}

// Tree returns the value that encoding/json would read into an any: map[string]any, []any,
// string, json.Number, bool or nil. The digits of numbers stay as they are written. raw must
// have passed [Check].
func Tree(raw []byte) any {
	v, _ := checker(raw).tree(0)
	return v
}

func (c checker) tree(at int) (v any, end int) {
	at = c.space(at)
	switch c[at] {
	case '{':
		object := map[string]any{}
		for at = c.space(at + 1); c[at] != '}'; {
			name := c.text(at)
			key := textOf(c[at:name])
			object[key], at = c.tree(c.space(name) + 1) // after the colon
			if at = c.space(at); c[at] == ',' {
				at = c.space(at + 1)
			}
		}
		return object, at + 1
	case '[':
		list := []any{}
		for at = c.space(at + 1); c[at] != ']'; {
			v, at = c.tree(at)
			list = append(list, v)
			if at = c.space(at); c[at] == ',' {
				at = c.space(at + 1)
			}
		}
		return list, at + 1
	case '"':
		end = c.text(at)
		return textOf(c[at:end]), end
	}
	end = c.skip(at)
	switch c[at] {
	case 't', 'f':
		return c[at] == 't', end
	case 'n':
		return nil, end
	}
	return json.Number(c[at:end]), end
}
