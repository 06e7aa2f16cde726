// Package rawjson reads JSON from outside without changing it: within limits, with exact
// member names, and with the digits of numbers unchanged. encoding/json alone ignores the
// case of names, takes the last of two equal keys, and replaces bytes that are not UTF-8.
package rawjson

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Limits of all JSON from outside. Honest use stays far below them. Far above them, a parser
// or a schema validator becomes slow. A number with an exponent over a million crashes one.
const (
	MaxDepth    = 128  // nested arrays and objects
	MaxExponent = 400  // magnitude of a number's exponent
	MaxDigits   = 1000 // characters of a number
)

// ErrTooDeep is the error of [Check] for a value with more than [MaxDepth] levels.
var ErrTooDeep = fmt.Errorf("nested more than %d deep", MaxDepth)

// Check returns nil if raw is one JSON value within the limits: valid UTF-8, no duplicate
// keys, and no excessive numbers or nesting. The error says what is wrong and where. It
// never quotes a value.
func Check(raw []byte) error {
	if !utf8.Valid(raw) {
		return fmt.Errorf("not valid UTF-8")
	}
	if !valid(raw) {
		return syntaxError(raw)
	}
	_, err := checker(raw).value(0, 0)
	return err
}

// CheckSyntax returns nil if raw is one JSON value, of any depth. It does not check the limits
// of [Check]. A reader checks these for the parts of raw that it uses.
func CheckSyntax(raw []byte) error {
	if valid(raw) {
		return nil
	}
	if err := syntaxError(raw); !errors.Is(err, ErrTooDeep) {
		return err
	}
	return checkDeep(raw, deepPiece)
}

// deepPiece is how many levels of a deep text are checked at once. encoding/json reads at
// most 10,000 levels.
const deepPiece = 5000

// checkDeep is like [CheckSyntax], for a text that is nested too deep for encoding/json. It
// cuts the text into pieces with at most levels levels each, and checks each piece. In a
// piece, {} stands for each piece inside it.
func checkDeep(raw []byte, levels int) error {
	pieces := [][]byte{nil} // pieces that are still open, each inside the previous one
	depth, inString, escaped := 0, false, false
	for _, b := range raw {
		last := len(pieces) - 1
		if !inString && (b == '{' || b == '[') {
			if depth++; depth%levels == 0 {
				pieces[last] = append(pieces[last], "{}"...)
				pieces, last = append(pieces, nil), last+1
			}
		}
		pieces[last] = append(pieces[last], b)
		if !inString && (b == '}' || b == ']') {
			if depth%levels == 0 && last > 0 {
				if !json.Valid(pieces[last]) {
					return errDeepSyntax
				}
				pieces = pieces[:last]
			}
			depth--
		}
		if b == '"' && !escaped {
			inString = !inString
		}
		escaped = inString && b == '\\' && !escaped
	}
	if len(pieces) > 1 {
		return endsInside(raw)
	}
	if !json.Valid(pieces[0]) {
		return errDeepSyntax
	}
	return nil
}

var errDeepSyntax = errors.New("not valid JSON, and nested too deep to say where")

func syntaxError(raw []byte) error {
	var syntax *json.SyntaxError
	var ignored json.RawMessage
	err := json.Unmarshal(raw, &ignored)
	switch {
	case !errors.As(err, &syntax):
		return err
	case strings.Contains(err.Error(), "exceeded max depth"):
		return ErrTooDeep
	case int(syntax.Offset) >= len(raw) && strings.Contains(err.Error(), "unexpected end"):
		return endsInside(raw)
	case strings.Contains(err.Error(), "after top-level value"):
		return fmt.Errorf("more than one JSON value (the second starts before byte %d)", syntax.Offset)
	}
	return fmt.Errorf("%w (byte %d)", err, syntax.Offset)
}

func endsInside(raw []byte) error {
	return fmt.Errorf("ends in the middle of a value, after %d bytes", len(raw))
}

// checker reads a text that is valid JSON. Each method starts at a byte offset and returns the
// offset after the part that it has read.
type checker []byte

func (c checker) value(at, depth int) (int, error) {
	at = c.space(at)
	switch c[at] {
	case '{', '[':
		if depth == MaxDepth {
			return at, fmt.Errorf("%w at byte %d", ErrTooDeep, at+1)
		}
		return c.inside(at, depth+1)
	case '"':
		return c.text(at), nil
	case 't', 'n':
		return at + 4, nil
	case 'f':
		return at + 5, nil
	}
	end := at
	for end < len(c) && strings.IndexByte("+-.0123456789eE", c[end]) >= 0 {
		end++
	}
	return end, checkNumber(string(c[at:end]), end)
}

// inside reads the members of an object or the elements of an array, starting at its bracket.
func (c checker) inside(at, depth int) (int, error) {
	object := c[at] == '{'
	var seen keys
	for at = c.space(at + 1); c[at] != '}' && c[at] != ']'; {
		if object {
			end := c.text(at)
			if key, again := seen.add(c[at:end]); again {
				return at, errTwice(key, end)
			}
			at = c.space(end) + 1 // the colon
		}
		var err error
		if at, err = c.value(at, depth); err != nil {
			return at, err
		}
		if at = c.space(at); c[at] == ',' {
			at = c.space(at + 1)
		}
	}
	return at + 1, nil
}

func errTwice(key []byte, end int) error {
	return fmt.Errorf("key %.66s appears twice in one object (byte %d)", key, end)
}

// skip skips a value of any depth.
func (c checker) skip(at int) int {
	for depth := 0; ; {
		switch c[at] {
		case '{', '[':
			depth++
			at++
		case '}', ']':
			depth--
			at++
		case '"':
			at = c.text(at)
		case ',', ':', ' ', '\t', '\r', '\n':
			at++
		default:
			for at < len(c) && strings.IndexByte(",:]} \t\r\n", c[at]) < 0 {
				at++
			}
		}
		if depth == 0 {
			return at
		}
	}
}

// text reads a string.
func (c checker) text(at int) int {
	for at++; c[at] != '"'; at++ {
		if c[at] == '\\' {
			at++
		}
	}
	return at + 1
}

func (c checker) space(at int) int {
	for at < len(c) && (c[at] == ' ' || c[at] == '\t' || c[at] == '\r' || c[at] == '\n') {
		at++
	}
	return at
}

// keys holds the keys of one object. Few keys are in a list, many are in a set.
type keys struct {
	list [][]byte
	set  map[string]bool
}

const shortList = 16

// add adds a key, which is a JSON string. It returns the key without needless escapes, and
// whether the key was there before. Two keys are equal if their texts are equal, even if they
// are escaped in different ways.
func (k *keys) add(key []byte) (plain []byte, again bool) {
	if bytes.IndexByte(key, '\\') >= 0 {
		var text string
		if json.Unmarshal(key, &text) == nil {
			key = Quote(text)
		}
	}
	if k.set != nil {
		again = k.set[string(key)]
		k.set[string(key)] = true
		return key, again
	}
	for _, other := range k.list {
		if bytes.Equal(other, key) {
			return key, true
		}
	}
	if k.list = append(k.list, key); len(k.list) > shortList {
		k.set = make(map[string]bool, 4*shortList)
		for _, key := range k.list {
			k.set[string(key)] = true
		}
	}
	return key, false
}

func checkNumber(n string, at int) error {
	if len(n) > MaxDigits {
		return fmt.Errorf("a number of %d characters before byte %d (limit %d)", len(n), at, MaxDigits)
	}
	if e := strings.IndexAny(n, "eE"); e >= 0 {
		exp, err := strconv.Atoi(n[e+1:])
		if err != nil || exp > MaxExponent || exp < -MaxExponent {
			return fmt.Errorf("a number with an exponent beyond %d before byte %d", MaxExponent, at)
		}
	}
	return nil
}

// Marshal is like json.Marshal, without HTML escaping: the model should read "<", not "\u003c".
func Marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

// MustMarshal is like [Marshal], for types whose encoding cannot fail. It panics if it
// fails.
func MustMarshal(v any) []byte {
	b, err := Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("messages: marshal %T: %v", v, err))
	}
	return b
}

// Quote returns s as a JSON string without HTML escaping. Bytes that are not UTF-8 become U+FFFD.
func Quote(s string) json.RawMessage { return MustMarshal(s) }

// Object returns the members of a JSON object by their exact names. (encoding/json would
// accept "ID" for "id".) It returns an error if the value is not an object, for example null.
func Object(raw []byte) (map[string]json.RawMessage, error) {
	if trimmed := bytes.TrimLeft(raw, " \t\r\n"); len(trimmed) == 0 || trimmed[0] != '{' {
		return nil, errNoObject(raw)
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, err
	}
	return m, nil
}

// Members returns the members of a JSON object by their exact names, each as it is written in
// raw. raw must have passed [CheckSyntax]. The error says that raw is not an object, or names
// a key that appears twice. Such a key is left out, and the other members are returned.
func Members(raw []byte) (members map[string]json.RawMessage, err error) {
	if TypeOf(raw) != "an object" {
		return nil, errNoObject(raw)
	}
	c := checker(raw)
	var seen keys
	members = map[string]json.RawMessage{}
	for at := c.space(c.space(0) + 1); c[at] != '}'; {
		end := c.text(at)
		key, again := seen.add(c[at:end])
		name := nameOf(key)
		value := c.space(c.space(end) + 1) // after the colon
		at = c.skip(value)
		members[name] = json.RawMessage(c[value:at:at])
		if again {
			delete(members, name)
			err = cmp.Or(err, errTwice(key, end))
		}
		if at = c.space(at); c[at] == ',' {
			at = c.space(at + 1)
		}
	}
	return members, err
}

// Stranger returns the first unknown member of a JSON object, and the byte at which its name
// begins, counted from 1. It returns "" if all members are known.
func Stranger(raw []byte, known ...string) (name string, at int) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	if open, _ := decoder.Token(); open != json.Delim('{') {
		return "", 0
	}
	for decoder.More() {
		before := int(decoder.InputOffset())
		key, _ := decoder.Token()
		name, ok := key.(string)
		if !ok {
			break
		}
		if !slices.Contains(known, name) {
			return name, before + bytes.IndexByte(raw[before:], '"') + 1
		}
		var value json.RawMessage
		if decoder.Decode(&value) != nil {
			break
		}
	}
	return "", 0
}

// JoinMembers writes a JSON object with these members, sorted by name. The values stay
// unchanged.
func JoinMembers(members map[string]json.RawMessage) []byte {
	object := []byte("{")
	for i, name := range SortedKeys(members) {
		if i > 0 {
			object = append(object, ',')
		}
		object = append(append(object, Quote(name)...), ':')
		object = append(object, members[name]...)
	}
	return append(object, '}')
}

// nameOf returns the text of a key, which is a JSON string.
func nameOf(key []byte) (name string) {
	if bytes.IndexByte(key, '\\') < 0 {
		return string(key[1 : len(key)-1])
	}
	_ = json.Unmarshal(key, &name) // cannot fail: it is part of valid JSON
	return name
}

// Elements returns the elements of a JSON array, each as it is written in raw. raw must
// have passed [CheckSyntax] and be an array.
func Elements(raw []byte) (elements []json.RawMessage) {
	c := checker(raw)
	for at := c.space(c.space(0) + 1); c[at] != ']'; {
		value := at
		at = c.skip(value)
		elements = append(elements, json.RawMessage(c[value:at:at]))
		if at = c.space(at); c[at] == ',' {
			at = c.space(at + 1)
		}
	}
	return elements
}

func errNoObject(raw []byte) error { return fmt.Errorf("want an object, got %s", TypeOf(raw)) }

// TypeOf names the JSON type of raw for error texts: "a string", "null", "nothing".
func TypeOf(raw []byte) string {
	trimmed := bytes.TrimLeft(raw, " \t\r\n")
	if len(trimmed) == 0 {
		return "nothing"
	}
	switch trimmed[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}

// SortedKeys returns the keys of m in order, for output that must not depend on the order
// of a map.
func SortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
