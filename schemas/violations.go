package schemas

import (
	"cmp"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v5"
	"github.com/toolfleet/toolfleet/internal/rawjson"
)

// MaxViolations is how many violations one error names. A model corrects only a few at a time.
const MaxViolations = 5

// ValidationError says how a value breaks a schema, for the model that wrote the value. It names
// places and what was expected there. It never quotes the value, because an argument may be a
// secret and the text goes into logs.
type ValidationError struct {
	// Violations lists at most MaxViolations, the deepest places first. Violations further up
	// often follow from deeper ones.
	Violations []Violation `json:"violations"`
	Omitted    int         `json:"omitted,omitempty"` // how many more there are
}

// Violation is one place in the value and what was expected there.
type Violation struct {
	Pointer string `json:"pointer"` // JSON pointer (RFC 6901); "" is the whole value
	Message string `json:"message"`
}

func (v Violation) String() string { return pointerText(v.Pointer) + ": " + v.Message }

func (e *ValidationError) Error() string {
	parts := make([]string, 0, len(e.Violations)+1)
	for _, v := range e.Violations {
		parts = append(parts, v.String())
	}
	if e.Omitted > 0 {
		parts = append(parts, fmt.Sprintf("and %d more", e.Omitted))
	}
	return strings.Join(parts, "; ")
}

// explain turns the validator's tree of errors into violations.
func (s *Schema) explain(err *jsonschema.ValidationError, value any) error {
	found := explainer{s, value, map[string]any{}}.leaves(err)
	slices.SortStableFunc(found, func(a, b leaf) int {
		return cmp.Or(
			-cmp.Compare(strings.Count(a.Pointer, "/"), strings.Count(b.Pointer, "/")),
			comparePointers(a.Pointer, b.Pointer), strings.Compare(a.Message, b.Message))
	})
	found = slices.CompactFunc(found, func(a, b leaf) bool { return a.Violation == b.Violation })
	e := &ValidationError{Omitted: max(0, len(found)-MaxViolations)}
	for _, l := range found[:len(found)-e.Omitted] {
		e.Violations = append(e.Violations, Violation{cut(l.Pointer), l.Message})
	}
	return e
}

// leaf is a violation, with details that union needs.
type leaf struct {
	Violation
	keyword string
	types   []string // of the keyword "type"
}

type explainer struct {
	schema *Schema
	value  any
	more   map[string]any // documents that were decoded so far, by URL
}

// leaves returns the violations at the ends of the tree. Violations below anyOf and oneOf are
// alternatives, so union merges them.
func (x explainer) leaves(err *jsonschema.ValidationError) []leaf {
	if len(err.Causes) > 0 {
		switch err.Message {
		case "anyOf failed", "oneOf failed":
			return x.union(err)
		}
		// minContains counts as one violation, although each item has a cause of its own.
		if !strings.HasPrefix(err.Message, "valid must be >= ") {
			var all []leaf
			for _, cause := range err.Causes {
				all = append(all, x.leaves(cause)...)
			}
			return all
		}
	}
	return x.leaf(err)
}

// union explains a value that fits none of several alternatives. It leaves out alternatives
// that the author plainly did not mean: those of another type, and those with another constant
// in the member that names the alternative. If only one alternative remains, union explains it
// as if the schema had no other.
func (x explainer) union(err *jsonschema.ValidationError) []leaf {
	at := pointerOf(err.InstanceLocation)
	var alternatives [][]leaf
	for _, cause := range err.Causes {
		alternatives = append(alternatives, x.leaves(cause))
	}
	meant := slices.DeleteFunc(slices.Clone(alternatives), func(a []leaf) bool {
		return len(a) == 1 && a[0].keyword == "type" && a[0].Pointer == at
	})
	if len(meant) == 0 {
		return []leaf{x.anyType(at, alternatives)}
	}
	named := slices.DeleteFunc(slices.Clone(meant), func(a []leaf) bool {
		return slices.ContainsFunc(a, func(l leaf) bool { return l.keyword == "const" || l.keyword == "enum" })
	})
	if len(named) > 0 {
		meant = named
	}
	if len(meant) == 1 {
		return meant[0]
	}
	var words []string
	for _, a := range meant {
		word := a[0].Message
		if a[0].Pointer != at {
			word = a[0].String()
		}
		if !slices.Contains(words, word) && len(words) < MaxViolations {
			words = append(words, word)
		}
	}
	return []leaf{{Violation: Violation{at, "fits none of the alternatives: " + strings.Join(words, ", or ")}}}
}

// anyType joins several violations of "type" into one that names all allowed types.
func (x explainer) anyType(at string, alternatives [][]leaf) leaf {
	l := leaf{Violation: Violation{Pointer: at}, keyword: "type"}
	for _, a := range alternatives {
		for _, t := range a[0].types {
			if !slices.Contains(l.types, t) {
				l.types = append(l.types, t)
			}
		}
	}
	l.Message = "has a wrong type"
	if len(l.types) > 0 { // empty: the schema is a metaschema
		l.Message = typeMessage(l.types, x.at(at))
	}
	return l
}

// leaf rewords one error of the validator, because the validator's text quotes the value.
func (x explainer) leaf(err *jsonschema.ValidationError) []leaf {
	at := pointerOf(err.InstanceLocation)
	one := func(keyword, message string) []leaf {
		if strings.Contains(strings.ReplaceAll(err.KeywordLocation, "/properties/propertyNames", ""), "/propertyNames") {
			message = "this property name " + message
		}
		return []leaf{{Violation: Violation{at, message}, keyword: keyword}}
	}
	if err.Message == "not allowed" { // the schema false
		if _, inObject := x.at(parentOf(at)).(map[string]any); inObject && at != "" {
			return one("false", "unexpected property")
		}
		return one("false", "nothing is allowed here")
	}
	owner, keyword, detail := x.keyword(err)
	if owner == nil {
		return one(keyword, "breaks the keyword "+keyword+" of the metaschema")
	}
	arg := owner[keyword]
	switch keyword {
	case "type":
		types := stringsOf(arg)
		l := one(keyword, typeMessage(types, x.at(at)))
		l[0].types = types
		return l
	case "required":
		return x.missing(at, arg)
	case "additionalProperties":
		return x.unexpected(at, owner)
	case "dependentRequired", "dependencies":
		return one(keyword, "missing a property that "+cut(string(rawjson.Quote(detail)))+" requires")
	case "uniqueItems": // the validator's text has the two indices
		return one(keyword, err.Message+", but must be unique")
	case "enum":
		return one(keyword, "must be one of "+listText(arg))
	case "const":
		return one(keyword, "must be "+cut(string(rawjson.MustMarshal(arg))))
	case "oneOf":
		return one(keyword, "fits more than one alternative of oneOf, but must fit exactly one")
	}
	if words, ok := keywordWords[keyword]; ok {
		return one(keyword, strings.ReplaceAll(words, "$", argText(arg)))
	}
	return one(keyword, "breaks the keyword "+keyword)
}

// keywordWords is the error text of each keyword; $ is the keyword's argument in the schema.
var keywordWords = map[string]string{
	"format": "must be a valid $", "pattern": "does not match the pattern $",
	"minimum": "must be >= $", "maximum": "must be <= $",
	"exclusiveMinimum": "must be > $", "exclusiveMaximum": "must be < $", "multipleOf": "must be a multiple of $",
	"minLength": "must have at least $ characters", "maxLength": "must have at most $ characters",
	"minItems": "must have at least $ items", "maxItems": "must have at most $ items",
	"minProperties": "must have at least $ properties", "maxProperties": "must have at most $ properties",
	"contains": "must have an item that matches contains", "not": "must not match what the schema excludes with not",
	"minContains": "has too few items that match contains", "maxContains": "has too many items that match contains",
	"additionalItems": "has too many items", "contentEncoding": "must be $ text", "contentMediaType": "must be $",
}

// missing returns one violation for each required property that is missing.
func (x explainer) missing(at string, required any) []leaf {
	object, _ := x.at(at).(map[string]any)
	var all []leaf
	for _, name := range stringsOf(required) {
		if _, ok := object[name]; !ok {
			all = append(all, leaf{Violation: Violation{at, "missing property " + cut(string(rawjson.Quote(name)))}, keyword: "required"})
		}
	}
	return all
}

// maxNames is how many property names an error lists if a property is unknown.
const maxNames = 20

// unexpected returns one violation for each property that additionalProperties: false forbids.
func (x explainer) unexpected(at string, owner map[string]any) []leaf {
	object, _ := x.at(at).(map[string]any)
	known, _ := owner["properties"].(map[string]any)
	patterns, _ := owner["patternProperties"].(map[string]any)
	message := "unexpected property"
	if names := rawjson.SortedKeys(known); len(names) > 0 && len(names) <= maxNames {
		message += cut("; it takes " + strings.Join(names, ", "))
	}
	var all []leaf
	for _, name := range rawjson.SortedKeys(object) {
		_, ok := known[name]
		for pattern := range patterns {
			// The validator has compiled the pattern before, so it is valid.
			ok = ok || regexp.MustCompile(pattern).MatchString(name)
		}
		if !ok {
			all = append(all, leaf{Violation: Violation{at + "/" + escapeToken(name), message}, keyword: "additionalProperties"})
		}
	}
	return all
}

// keyword finds the place in the schema that an error comes from: the subschema, its keyword and,
// if the keyword has several parts, the part. owner is nil if the subschema is in a built-in
// metaschema.
func (x explainer) keyword(err *jsonschema.ValidationError) (owner map[string]any, keyword, detail string) {
	doc, fragment, _ := strings.Cut(err.AbsoluteKeywordLocation, "#")
	tokens := strings.Split(pointerOf(fragment), "/")
	last := len(tokens) - 1
	if n := last - 2; n > 0 && (tokens[n] == "dependentRequired" || tokens[n] == "dependencies") {
		last, detail = n, unescapeToken(tokens[n+1])
	}
	if doc == x.schema.url {
		owner, _ = lookup(x.schema.doc, tokens[:last]).(map[string]any)
	} else if text, ok := x.schema.more[doc]; ok {
		if x.more[doc] == nil {
			x.more[doc] = rawjson.Tree([]byte(text))
		}
		owner, _ = lookup(x.more[doc], tokens[:last]).(map[string]any)
	}
	if tokens[last] == "minContains" && owner["minContains"] == nil {
		return owner, "contains", detail
	}
	return owner, tokens[last], detail
}

// at returns the part of the value at a pointer, or nil.
func (x explainer) at(pointer string) any { return lookup(x.value, strings.Split(pointer, "/")) }

// lookup follows the tokens of a pointer. The first token is the text before the pointer's first
// slash.
func lookup(v any, tokens []string) any {
	for _, token := range tokens[1:] {
		switch in := v.(type) {
		case map[string]any:
			v = in[unescapeToken(token)]
		case []any:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(in) {
				return nil
			}
			v = in[i]
		default:
			return nil
		}
	}
	return v
}

// pointerOf removes the URL escaping with which the validator writes pointers.
func pointerOf(location string) string {
	p, err := url.PathUnescape(location)
	if err != nil {
		return location
	}
	return p
}

// pointerText returns the pointer as error texts show it: "/" for the whole value.
func pointerText(pointer string) string { return cut(cmp.Or(pointer, "/")) }

// comparePointers orders pointers token by token, with indices as numbers: /2 comes before /10.
func comparePointers(a, b string) int {
	for a != "" && b != "" {
		var x, y string
		x, a, _ = strings.Cut(a, "/")
		y, b, _ = strings.Cut(b, "/")
		if x == y {
			continue
		}
		i, errX := strconv.Atoi(x)
		j, errY := strconv.Atoi(y)
		if errX == nil && errY == nil {
			return cmp.Compare(i, j)
		}
		return strings.Compare(x, y)
	}
	return cmp.Compare(len(a), len(b))
}

func parentOf(pointer string) string { return pointer[:max(0, strings.LastIndexByte(pointer, '/'))] }

func escapeToken(name string) string {
	return strings.ReplaceAll(strings.ReplaceAll(name, "~", "~0"), "/", "~1")
}

func unescapeToken(token string) string {
	return strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
}

func typeMessage(types []string, found any) string {
	return "must be " + strings.Join(types, " or ") + ", not " + typeOf(found)
}

// typeOf names the JSON type of a decoded value.
func typeOf(v any) string {
	switch v.(type) {
	case map[string]any:
		return "object"
	case []any:
		return "array"
	case string:
		return "string"
	case bool:
		return "boolean"
	case nil:
		return "null"
	}
	return "number"
}

func stringsOf(arg any) []string {
	switch arg := arg.(type) {
	case string:
		return []string{arg}
	case []any:
		var all []string
		for _, item := range arg {
			if s, ok := item.(string); ok {
				all = append(all, s)
			}
		}
		return all
	}
	return nil
}

// argText returns the argument of a keyword: patterns and formats as they are, all else as JSON.
func argText(arg any) string {
	if s, ok := arg.(string); ok {
		return cut(s)
	}
	return cut(string(rawjson.MustMarshal(arg)))
}

func listText(arg any) string {
	items, _ := arg.([]any)
	words := make([]string, 0, len(items))
	for _, item := range items {
		words = append(words, string(rawjson.MustMarshal(item)))
	}
	return cut(strings.Join(words, ", "))
}

// cut shortens a text of a schema or an input for an error message.
func cut(s string) string {
	const limit = 300
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "..."
}
