package rawjson

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
)

var unescapeToken = strings.NewReplacer("~1", "/", "~0", "~")

// At returns the value at a JSON pointer (RFC 6901), byte for byte. The pointer "" means the
// whole value. ok is false if there is no value at the pointer, or if the pointer does not
// begin with a slash. value must be valid JSON.
func At(value json.RawMessage, pointer string) (_ json.RawMessage, ok bool) {
	value = bytes.TrimSpace(value)
	if pointer == "" {
		return value, true
	}
	tokens := strings.Split(pointer, "/")
	if tokens[0] != "" {
		return nil, false
	}
	for _, token := range tokens[1:] {
		if value, ok = step(value, unescapeToken.Replace(token)); !ok {
			return nil, false
		}
	}
	return value, true
}

// step returns a member of an object or an element of a list.
func step(value json.RawMessage, token string) (json.RawMessage, bool) {
	switch value[0] {
	case '{':
		members, err := Object(value)
		next, ok := members[token]
		return next, ok && err == nil
	case '[':
		elements := Elements(value)
		i, err := strconv.ParseUint(token, 10, 31)
		if err != nil || int(i) >= len(elements) || token != strconv.FormatUint(i, 10) {
			return nil, false
		}
		return elements[i], true
	}
	return nil, false
}
