package messages

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
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
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := checkValue(dec, 0); err != nil {
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return fmt.Errorf("ends in the middle of a value, after %d bytes", len(raw))
		}
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return fmt.Errorf("more than one JSON value (the second starts before byte %d)", dec.InputOffset())
	}
	return nil
}

func checkValue(dec *json.Decoder, depth int) error {
	tok, err := dec.Token()
	if err != nil {
		return err
	}
	switch tok := tok.(type) {
	case json.Number:
		return checkNumber(string(tok), dec.InputOffset())
	case json.Delim:
		if depth == MaxDepth {
			return fmt.Errorf("nested more than %d deep at byte %d", MaxDepth, dec.InputOffset())
		}
		if tok == '[' {
			for dec.More() {
				if err := checkValue(dec, depth+1); err != nil {
					return err
				}
			}
		} else if err := checkMembers(dec, depth); err != nil {
			return err
		}
		_, err := dec.Token() // the closing bracket
		return err
	}
	return nil
}

func checkMembers(dec *json.Decoder, depth int) error {
	var seen map[string]bool
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return err
		}
		name, _ := key.(string)
		if seen[name] {
			return fmt.Errorf("key %.64q appears twice in one object (byte %d)", name, dec.InputOffset())
		}
		if seen == nil {
			seen = make(map[string]bool, 8)
		}
		seen[name] = true
		if err := checkValue(dec, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func checkNumber(n string, at int64) error {
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
