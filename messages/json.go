package messages

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds on any JSON that comes from outside. They are far above honest use and far below what makes a
// parser or a schema validator slow: an exponent over a million crashes one.
const (
	MaxDepth    = 128  // nested arrays and objects
	MaxExponent = 400  // magnitude of a number's exponent
	MaxDigits   = 1000 // characters of a number
)

// Check reports whether raw is one JSON value within the bounds: valid UTF-8, no duplicate keys, no
// number or nesting bombs. The error says what and where, and never quotes a value.
func Check(raw []byte) error {
	if !utf8.Valid(raw) {
		return fmt.Errorf("not valid UTF-8")
	}
	if !json.Valid(raw) {
		return syntaxError(raw)
	}
	_, err := checker(raw).value(0, 0)
	return err
}

func syntaxError(raw []byte) error {
	var syntax *json.SyntaxError
	var ignored json.RawMessage
	err := json.Unmarshal(raw, &ignored)
	switch {
	case !errors.As(err, &syntax):
		return err
	case int(syntax.Offset) >= len(raw) && strings.Contains(err.Error(), "unexpected end"):
		return fmt.Errorf("ends in the middle of a value, after %d bytes", len(raw))
	case strings.Contains(err.Error(), "after top-level value"):
		return fmt.Errorf("more than one JSON value (the second starts before byte %d)", syntax.Offset)
	}
	return fmt.Errorf("%w (byte %d)", err, syntax.Offset)
}

// checker walks a text that is known to be valid JSON. Each method starts at a byte and returns the one
// behind what it has read.
type checker []byte

func (c checker) value(at, depth int) (int, error) {
	at = c.space(at)
	switch c[at] {
	case '{', '[':
		if depth == MaxDepth {
			return at, fmt.Errorf("nested more than %d deep at byte %d", MaxDepth, at+1)
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

// inside reads the members of an object or the elements of an array, from its bracket on.
func (c checker) inside(at, depth int) (int, error) {
	object := c[at] == '{'
	var seen keys
	for at = c.space(at + 1); c[at] != '}' && c[at] != ']'; {
		if object {
			end := c.text(at)
			if key, again := seen.add(c[at:end]); again {
				return at, fmt.Errorf("key %.66s appears twice in one object (byte %d)", key, end)
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

// keys is the keys of one object: a list while it is short, a set from then on.
type keys struct {
	list [][]byte
	set  map[string]bool
}

const shortList = 16

// add reports the key, a JSON string, as it is written without needless escapes, and whether it was there
// before. Keys are equal when their text is, however it is escaped.
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

// Marshal is json.Marshal without HTML escaping: the model should read "<", not "\u003c".
func Marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

// MustMarshal is [Marshal] for our own types, whose encoding cannot fail.
func MustMarshal(v any) []byte {
	b, err := Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("messages: marshal %T: %v", v, err))
	}
	return b
}

// Quote is s as a JSON string without HTML escaping. Bytes that are no UTF-8 become U+FFFD.
func Quote(s string) json.RawMessage { return MustMarshal(s) }

// Object is the members of a JSON object by their exact names; encoding/json would also take "ID" for
// "id". A value that is no object is an error, null included.
func Object(raw []byte) (map[string]json.RawMessage, error) {
	if trimmed := bytes.TrimLeft(raw, " \t\r\n"); len(trimmed) == 0 || trimmed[0] != '{' {
		return nil, fmt.Errorf("want an object, got %s", TypeOf(raw))
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, err
	}
	return m, nil
}

// TypeOf names the JSON type of raw, with its article, for error texts: "a string", "null", "nothing".
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

// CanonicalJSON is raw with sorted keys and no white space, digits as they came: equal arguments have equal bytes.
func CanonicalJSON(raw []byte) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	return Marshal(v) // maps are written with sorted keys
}

// SortedKeys is the keys of m in order, for anything that must not depend on map order.
func SortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
