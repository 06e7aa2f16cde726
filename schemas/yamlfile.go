package schemas

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/santhosh-tekuri/jsonschema/v5"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/strictyaml"
	"github.com/toolfleet/toolfleet/schemas/expression"
)

// MaxFileBytes is the largest YAML file, in bytes.
const MaxFileBytes = strictyaml.MaxBytes

// FileError is one mistake in a file; its message says what to write instead.
type FileError = strictyaml.Error

// yamlFile is a YAML file that was checked against its JSON Schema. The schema finds mistakes
// in single values; its keyword errorMessage has the texts of the errors for people.
type yamlFile struct {
	*strictyaml.File
	// faulty holds the pointers of all faulty values, and of everything that contains one.
	faulty map[string]bool
}

// readYAML checks a file against a schema. It decodes all valid values into v, so that the
// checks after it can find further mistakes.
func readYAML(name, schema string, data []byte, v any) *yamlFile {
	f := &yamlFile{strictyaml.Parse(name, data, 0), map[string]bool{}}
	if len(f.Errors) > 0 {
		f.Root = strictyaml.Node{} // decoding needs a complete value
		return f
	}
	value := f.Root.JSON()
	for _, pointer := range f.validate(schema, value) {
		value = remove(value, pointer)
	}
	if err := json.Unmarshal(rawjson.MustMarshal(value), v); err != nil {
		f.addAll("cannot be read: %v", err)
	}
	return f
}

// validate reports the values that break the schema, and returns their pointers.
func (f *yamlFile) validate(schema string, value any) []string {
	s, err := For(schema)
	if err == nil {
		err = s.check(value, math.MaxInt)
	}
	var invalid *jsonschema.ValidationError
	switch {
	case errors.As(err, &invalid):
		return f.violations(explainer{s, value, map[string]any{}}, invalid)
	case err != nil:
		f.addAll("cannot be checked: %v", err)
	}
	return nil
}

// remove removes the value at a pointer: a member leaves its object, an item of an array becomes
// null.
func remove(value any, pointer string) any {
	if pointer == "" {
		return nil
	}
	tokens := strings.Split(pointer, "/")
	last := tokens[len(tokens)-1]
	switch parent := lookup(value, tokens[:len(tokens)-1]).(type) {
	case map[string]any:
		delete(parent, unescapeToken(last))
	case []any:
		if i, err := strconv.Atoi(last); err == nil && i < len(parent) {
			parent[i] = nil
		}
	}
	return value
}

// checkedInGo lists parts of tools-file.json that the reader of the tools file checks itself.
// The reader's error says what to write. The error of the schema would only say that no
// alternative fits.
var checkedInGo = []string{"/$defs/entry/oneOf", "/$defs/entry/then", "/$defs/entry/else"}

// violations reports the errors at the ends of the validator's tree.
func (f *yamlFile) violations(x explainer, err *jsonschema.ValidationError) (wrong []string) {
	_, place, _ := strings.Cut(err.AbsoluteKeywordLocation, "#")
	if slices.ContainsFunc(checkedInGo, func(part string) bool { return strings.HasPrefix(place, part) }) {
		return nil
	}
	union := err.Message == "anyOf failed" || err.Message == "oneOf failed"
	if len(err.Causes) > 0 && !union {
		for _, cause := range err.Causes {
			wrong = append(wrong, f.violations(x, cause)...)
		}
		return wrong
	}
	owner, keyword, _ := x.keyword(err)
	words, _ := owner["errorMessage"].(string)
	pointer := pointerOf(err.InstanceLocation)
	switch {
	case keyword == "anyOf" || keyword == "oneOf":
		f.add(pointer, "%s", words)
		return nil
	case keyword == "required":
		f.missing(x, pointer, stringsOf(owner[keyword]), words)
		return nil
	case keyword == "additionalProperties":
		return f.unknownKeys(x, pointer, owner)
	case strings.Contains(err.KeywordLocation, "/propertyNames/"):
		f.addKey(pointer, "%s", words)
	default:
		f.add(pointer, "%s", f.wordsFor(x.leaf(err)[0], owner))
	}
	return []string{pointer}
}

func (f *yamlFile) missing(x explainer, pointer string, required []string, words string) {
	object, _ := x.at(pointer).(map[string]any)
	for _, name := range required {
		if _, has := object[name]; !has {
			f.add(pointer, "%s is missing; %s", name, words)
		}
	}
}

func (f *yamlFile) unknownKeys(x explainer, pointer string, owner map[string]any) (wrong []string) {
	properties, _ := owner["properties"].(map[string]any)
	known := slices.DeleteFunc(rawjson.SortedKeys(properties), func(key string) bool {
		about, _ := properties[key].(map[string]any)["description"].(string)
		return strings.Contains(about, "Not in this version")
	})
	object, _ := x.at(pointer).(map[string]any)
	for _, key := range rawjson.SortedKeys(object) {
		if _, ok := properties[key]; ok {
			continue
		}
		hint := "the keys here: " + strings.Join(known, ", ")
		if near := strictyaml.Nearest(key, known); near != "" {
			hint = "did you mean " + near + "?"
		}
		member, _, _ := f.Root.Find(pointer + "/" + escapeToken(key))
		f.report(pointer, member.KeyAt, "unknown key %q; %s", strictyaml.Clip(key), hint)
		wrong = append(wrong, pointer+"/"+escapeToken(key))
	}
	return wrong
}

// yamlTypes names the types of JSON in YAML's terms.
var yamlTypes = strings.NewReplacer("string", "text (put it into quotes)", "object", "a mapping", "array", "a list", "boolean", "true or false", "integer", "a whole number")

// wordsFor returns what is wrong with one value. owner is the part of the schema that it breaks.
func (f *yamlFile) wordsFor(l leaf, owner map[string]any) string {
	found, _, _ := f.Root.Find(l.Pointer)
	words, worded := owner["errorMessage"].(string)
	not, _ := owner[l.keyword].(map[string]any)
	inner, hasInner := not["errorMessage"].(string)
	text, isText := found.Value.(string)
	switch {
	case l.keyword == "enum":
		words = "one of " + strings.Join(stringsOf(owner["enum"]), ", ")
		if isText {
			return fmt.Sprintf("%q is not %s", strictyaml.Clip(text), words)
		}
		return "want " + words + ", got " + found.TypeName()
	case l.keyword == "type" && worded:
		return words + ", got " + found.TypeName()
	case l.keyword == "type":
		return yamlTypes.Replace("want "+strings.Join(l.types, " or ")) + ", got " + found.TypeName()
	case l.keyword == "maxLength":
		return fmt.Sprintf("want at most %v characters", owner["maxLength"])
	case hasInner:
		return inner
	case worded && isText && text != "" && owner["writeOnly"] != true:
		return fmt.Sprintf("%q: %s", strictyaml.Clip(text), words)
	case worded:
		return words
	}
	return l.Message
}

// add reports a mistake in the value at a pointer.
func (f *yamlFile) add(pointer, format string, args ...any) {
	at, _, _ := f.Root.Find(pointer)
	f.report(pointer, at.Position, format, args...)
}

// addKey reports a mistake about the key at a pointer.
func (f *yamlFile) addKey(pointer, format string, args ...any) {
	at, _, _ := f.Root.Find(pointer)
	f.report(pointer, at.KeyAt, format, args...)
}

// addAll reports a mistake about the whole file.
func (f *yamlFile) addAll(format string, args ...any) {
	f.report("", strictyaml.Position{}, format, args...)
}

// report adds a mistake at a position, with the path of the pointer before its text.
func (f *yamlFile) report(pointer string, at strictyaml.Position, format string, args ...any) {
	_, path, _ := f.Root.Find(pointer)
	if path != "" {
		path += ": "
	}
	f.Add(at, "%s%s", path, fmt.Sprintf(format, args...))
	for f.faulty[""] = true; pointer != ""; pointer = parentOf(pointer) {
		f.faulty[pointer] = true
	}
}

// has reports whether the file has a value at a pointer.
func (f *yamlFile) has(pointer string) bool {
	_, _, found := f.Root.Find(pointer)
	return found
}

func (f *yamlFile) line(pointer string) int {
	at, _, _ := f.Root.Find(pointer)
	return at.Line
}

// The checks below accept "": a value that is missing or breaks the schema arrives as "".

// condition compiles an expression. A mistake in it is reported at its place in the file.
func (f *yamlFile) condition(pointer, source string) *expression.Program {
	if source == "" {
		return nil
	}
	p, err := expression.Compile(source, expression.Bool)
	var wrong *expression.Error
	if errors.As(err, &wrong) {
		at, _, _ := f.Root.Find(pointer)
		f.report(pointer, f.Inside(at.Position, source, wrong.Line, wrong.Column), "%s", wrong.Message)
	}
	return p
}

func (f *yamlFile) duration(pointer, text string) time.Duration {
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		f.add(pointer, `want a duration such as "5s", "500ms" or "2m"`)
	case d < time.Millisecond:
		f.add(pointer, "want at least 1ms")
	}
	return d
}

// wholeNumber reads a number that is written without a point or an exponent.
func (f *yamlFile) wholeNumber(pointer string, digits json.Number) int {
	i, err := strconv.ParseInt(string(digits), 10, 32)
	if digits != "" && err != nil {
		f.add(pointer, "want a whole number, without a point")
	}
	return int(i)
}

// words checks a text for people or the model.
func (f *yamlFile) words(pointer, text string) {
	if text != "" && strings.TrimSpace(text) == "" {
		f.add(pointer, "is empty")
	}
}

// label checks a name for people: one line of at most 100 bytes.
func (f *yamlFile) label(pointer, text string) {
	f.words(pointer, text)
	if len(text) > 100 || strings.ContainsFunc(text, func(c rune) bool { return !unicode.IsPrint(c) }) {
		f.add(pointer, "want one line of at most 100 bytes that can be printed")
	}
}

// patterns checks tool patterns that are separated by |.
func (f *yamlFile) patterns(pointer, text string) {
	if text == "" {
		return
	}
	for pattern := range strings.SplitSeq(text, "|") {
		if err := checkToolPattern(pattern); err != nil {
			f.add(pointer, "%v", err)
		}
	}
}

// unique reports whether a name is new, and records it with its line. A name that is taken is
// reported as a mistake.
func (f *yamlFile) unique(pointer string, names map[string]int, name, what string) bool {
	at, _, _ := f.Root.Find(pointer)
	line, twice := names[name]
	switch {
	case name == "":
		return false
	case twice:
		f.add(pointer, "%s named %q is there already, in line %d; give this one another name", what, strictyaml.Clip(name), line)
		return false
	}
	names[name] = at.Line
	return true
}

// nonEmpty returns nil for an empty list, because leaving the list out means the same.
func nonEmpty[T any](list []T) []T { return append([]T(nil), list...) }
