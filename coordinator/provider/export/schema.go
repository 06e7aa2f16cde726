package export

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/rawjson"
)

// node is a JSON Schema that is an object; numbers in it are json.Number.
type node = map[string]any

// combining lists keywords that apply further schemas to the same value. An object that has
// one of these keywords must not be closed: closing it would forbid the properties that those
// schemas allow.
var combining = []string{"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"}

// others lists keywords that can be about properties that the object does not list in
// "properties".
var others = []string{"additionalProperties", "unevaluatedProperties", "patternProperties", "minProperties"}

// parse reads a tool's schema. It sets the root's type to object, because the input of a call
// is always an object.
func parse(raw json.RawMessage) (node, error) {
	if len(bytes.TrimSpace(raw)) == 0 {
		raw = json.RawMessage(`{}`)
	}
	if err := rawjson.Check(raw); err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	if v == true { // every value fits the schema true
		v = node{}
	}
	root, ok := v.(node)
	if !ok {
		return nil, fmt.Errorf("is %s; want a JSON Schema of an object", rawjson.TypeOf(raw))
	}
	if root["type"] != nil && !hasType(root, "object") {
		return nil, fmt.Errorf("its root is of type %v; want object", root["type"])
	}
	root["type"] = "object"
	return root, nil
}

// plain brings a schema into the form for a model. It keeps the meaning, but it closes objects
// that list their properties.
func plain(root node, bareRoot bool) (node, error) {
	delete(root, "$schema")
	complete(root)
	if bareRoot {
		if err := describeRoot(root); err != nil {
			return nil, err
		}
	}
	if root["properties"] == nil {
		root["properties"] = node{}
	}
	return root, nil
}

// complete closes objects and gives arrays their items, wherever a single schema describes the
// value. It does not change the branches of oneOf and not: a narrower branch can make the
// whole schema wider.
func complete(v any) {
	n, ok := v.(node)
	if !ok {
		return
	}
	if properties, ok := n["properties"].(node); ok {
		if !hasAny(n, combining...) && !hasAny(n, others...) && listed(stringsOf(n["required"]), properties) {
			n["additionalProperties"] = false
		}
		for _, property := range properties {
			complete(property)
		}
	}
	if hasType(n, "array") && !hasAny(n, "items", "prefixItems") && !hasAny(n, combining...) {
		n["items"] = node{}
	}
	complete(n["items"])
	complete(n["additionalProperties"])
	if branches, ok := onlyAnyOf(n); ok {
		for _, branch := range branches {
			complete(branch)
		}
	}
}

// onlyAnyOf returns the branches of a schema that consists only of an anyOf.
func onlyAnyOf(n node) ([]any, bool) {
	branches, ok := n["anyOf"].([]any)
	for key := range n {
		if key != "anyOf" && key != "description" && key != "title" && key != "default" {
			return nil, false
		}
	}
	return branches, ok
}

// describeRoot moves keywords that are not allowed at the root into the root's description.
func describeRoot(root node) error {
	moved := node{}
	for _, key := range []string{"allOf", "anyOf", "oneOf", "not", "enum"} {
		if v, ok := root[key]; ok {
			moved[key] = v
			delete(root, key)
		}
	}
	if len(moved) == 0 {
		return nil
	}
	text, err := rawjson.Marshal(moved)
	if err != nil {
		return err
	}
	was, _ := root["description"].(string)
	root["description"] = strings.TrimLeft(was+"\nThe input must also fit this JSON Schema: "+string(text), "\n")
	return nil
}

// listed reports whether the object lists every required property in "properties".
func listed(required []string, properties node) bool {
	return !slices.ContainsFunc(required, func(name string) bool { return properties[name] == nil })
}

func hasType(n node, want string) bool {
	types, _ := n["type"].([]any)
	return n["type"] == want || slices.Contains(types, any(want))
}

func hasAny(n node, keys ...string) bool {
	return slices.ContainsFunc(keys, func(key string) bool { _, ok := n[key]; return ok })
}

func stringsOf(v any) []string {
	list, _ := v.([]any)
	out := make([]string, 0, len(list))
	for _, item := range list {
		if s, ok := item.(string); ok {
			out = append(out, s)
		}
	}
	return out
}

func clone(v any) any {
	switch v := v.(type) {
	case node:
		c := make(node, len(v))
		for key, value := range v {
			c[key] = clone(value)
		}
		return c
	case []any:
		c := make([]any, len(v))
		for i, value := range v {
			c[i] = clone(value)
		}
		return c
	}
	return v
}
