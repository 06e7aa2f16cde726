package export

import (
	"fmt"
	"slices"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// subset is the part of JSON Schema that a provider's strict mode accepts, and its limits.
type subset struct {
	keywords    []string // keywords that every model with a strict mode accepts
	more        []string // further keywords of current models; for agents that ask for strict copies
	allRequired bool     // every property must be in "required"
	schema      counts   // limits for one schema; 0: no known limit
	request     counts   // limits for all strict tools of one request; 0: no known limit
}

// counts are the quantities that a strict mode limits.
type counts struct {
	tools      int
	depth      int // objects in objects, the root included
	properties int
	enums      int // values of all enums
	optional   int // properties that are not required
	unions     int // schemas of several types
}

var structure = []string{
	"type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf", "description", "title",
}

var (
	// The limits are those of the first strict models. Later models accept more.
	openaiSubset = subset{
		keywords: structure,
		more: []string{"pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
			"multipleOf", "minItems", "maxItems"},
		allRequired: true,
		schema:      counts{depth: 5, properties: 100, enums: 500},
	}
	claudeSubset = subset{keywords: structure, request: counts{tools: 20, optional: 24, unions: 16}}
)

// apply returns a strict copy of schema. ok is false if there is none.
func (s subset) apply(schema node, wish Strict) (node, counts, bool) {
	c := strictCopy{subset: s, keywords: s.keywords, seen: counts{tools: 1}}
	if wish != StrictDefault {
		c.keywords = slices.Concat(s.keywords, s.more)
	}
	root := clone(schema).(node)
	delete(root, "$schema")
	ok := !hasAny(root, "anyOf", "enum", "const") && c.make(root, 1, wish == StrictNullable)
	return root, c.seen, ok && !c.over()
}

// strictCopy is the work on one strict copy.
type strictCopy struct {
	subset
	keywords []string
	seen     counts
}

// make makes one schema strict in place, or returns false. depth is the depth of an object at
// this place, from 1. If nullable is true, optional properties may become required and
// nullable.
func (c *strictCopy) make(v any, depth int, nullable bool) bool {
	n, ok := v.(node)
	if !ok {
		return false
	}
	for key := range n {
		if !slices.Contains(c.keywords, key) {
			return false
		}
	}
	if hasAny(n, "anyOf") {
		return c.makeChoice(n, depth)
	}
	if !hasAny(n, "type") || !c.scalars(n) {
		return false
	}
	if _, several := n["type"].([]any); several {
		c.seen.unions++
	}
	if hasType(n, "array") && !c.make(n["items"], depth, nullable) {
		return false
	}
	return !hasType(n, "object") || c.makeObject(n, depth, nullable)
}

// makeChoice makes the branches of an anyOf strict. It makes no property in a branch nullable:
// a null for a missing property could not be told from a null that the tool wants.
func (c *strictCopy) makeChoice(n node, depth int) bool {
	branches, ok := onlyAnyOf(n)
	c.seen.unions++
	for _, branch := range branches {
		ok = ok && c.make(branch, depth, false)
	}
	return ok && len(branches) > 0
}

func (c *strictCopy) makeObject(n node, depth int, nullable bool) bool {
	properties, ok := n["properties"].(node)
	if !ok || n["additionalProperties"] != nil && n["additionalProperties"] != false {
		return false
	}
	n["additionalProperties"] = false
	c.seen.depth = max(c.seen.depth, depth)
	c.seen.properties += len(properties)
	required := stringsOf(n["required"])
	for name, property := range properties {
		if !c.make(property, depth+1, nullable) {
			return false
		}
		if slices.Contains(required, name) {
			continue
		}
		c.seen.optional++
		if c.allRequired {
			if !nullable {
				return false
			}
			properties[name] = orNull(property.(node))
		}
	}
	if !listed(required, properties) {
		return false
	}
	if c.allRequired {
		n["required"] = rawjson.SortedKeys(properties)
	}
	return true
}

// scalars counts the values of an enum. It returns false if the enum is empty, or if one of
// its values or a const is an object or an array.
func (c *strictCopy) scalars(n node) bool {
	values, ok := n["enum"].([]any)
	if hasAny(n, "enum") && (!ok || len(values) == 0) {
		return false
	}
	c.seen.enums += len(values)
	return !slices.ContainsFunc(append(slices.Clone(values), n["const"]), func(v any) bool {
		switch v.(type) {
		case node, []any:
			return true
		}
		return false
	})
}

// over reports whether the schema exceeds a limit of the provider.
func (c *strictCopy) over() bool {
	over := func(n, limit int) bool { return limit > 0 && n > limit }
	return over(c.seen.depth, c.schema.depth) || over(c.seen.properties, c.schema.properties) ||
		over(c.seen.enums, c.schema.enums)
}

// checkRequest returns an error if the strict tools together exceed a limit of the provider
// for one request.
func (s subset) checkRequest(p messages.Provider, sum counts) error {
	for _, limit := range []struct {
		what   string
		n, max int
	}{
		{"strict tools", sum.tools, s.request.tools},
		{"optional properties in strict tools", sum.optional, s.request.optional},
		{"schemas of several types in strict tools", sum.unions, s.request.unions},
	} {
		if limit.max > 0 && limit.n > limit.max {
			return fmt.Errorf("%d %s: %s takes at most %d in one request; export fewer tools, or without strict",
				limit.n, limit.what, p, limit.max)
		}
	}
	return nil
}
