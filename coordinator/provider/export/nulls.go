package export

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/toolfleet/toolfleet/internal/rawjson"
)

// DropNulls removes from an input the nulls that exist only because of [StrictNullable]: each
// null of an optional property whose own schema does not accept null. schema is the tool's own
// schema. An input without such a null is returned unchanged. In other inputs, numbers keep
// their digits.
//
// Use it only for an agent that exports with StrictNullable. From any other model such a null
// is a mistake, and the model should get the error.
func DropNulls(schema, input json.RawMessage) (json.RawMessage, error) {
	root, err := parse(schema)
	if err != nil {
		return nil, fmt.Errorf("input_schema: %w", err)
	}
	var v any
	dec := json.NewDecoder(bytes.NewReader(input))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		return nil, fmt.Errorf("input: %w", err)
	}
	if _, _, ok := openaiSubset.apply(root, StrictNullable); !ok || !dropNulls(root, v) {
		return input, nil // the model got the plain schema, or sent no null to remove
	}
	return rawjson.Marshal(v)
}

func dropNulls(schema, v any) (dropped bool) {
	n, _ := schema.(node)
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			dropped = dropNulls(n["items"], item) || dropped
		}
	case node:
		properties, _ := n["properties"].(node)
		required := stringsOf(n["required"])
		for name, value := range v {
			property, known := properties[name].(node)
			switch {
			case !known:
			case value == nil && !slices.Contains(required, name) && !takesNull(property):
				delete(v, name)
				dropped = true
			default:
				dropped = dropNulls(property, value) || dropped
			}
		}
	}
	return dropped
}

// orNull changes a schema of a strict subset so that it accepts null too.
func orNull(n node) node {
	if takesNull(n) {
		return n
	}
	if branches, ok := onlyAnyOf(n); ok {
		n["anyOf"] = append(branches, node{"type": "null"})
		return n
	}
	if hasAny(n, "const") {
		return node{"anyOf": []any{n, node{"type": "null"}}}
	}
	types, several := n["type"].([]any)
	if !several {
		types = []any{n["type"]}
	}
	if !hasType(n, "null") {
		n["type"] = append(types, "null")
	}
	if values, ok := n["enum"].([]any); ok {
		n["enum"] = append(values, nil)
	}
	return n
}

// takesNull reports whether a schema of a strict subset accepts null.
func takesNull(n node) bool {
	if branches, ok := n["anyOf"].([]any); ok {
		return slices.ContainsFunc(branches, func(b any) bool { n, ok := b.(node); return ok && takesNull(n) })
	}
	values, limited := n["enum"].([]any)
	return hasType(n, "null") && n["const"] == nil && (!limited || slices.Contains(values, nil))
}
