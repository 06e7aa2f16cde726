package schemas

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v5"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
)

// Limits on the validator's input. Within them, compiling a schema and checking a value
// take well under a second, even if they were written to be slow.
const (
	MaxSchemaBytes   = 256 << 10 // of one schema
	MaxSchemaObjects = 4000      // objects and booleans in one schema; subschemas are among them
	MaxExpansions    = 10_000    // subschemas that allOf, $ref and the like apply to one value
	MaxValueBytes    = 8 << 20   // of one value
	MaxValueNodes    = 100_000   // values inside one value, itself included
	MaxChecks        = 500_000   // applications of a subschema to a value, in one validation
)

// baseURL is the address of schemas without an $id. The top-level domain invalid is reserved,
// so no resolver knows the name.
const baseURL = "https://schema.invalid/"

// Schema is a compiled JSON Schema. It is safe for concurrent use.
type Schema struct {
	raw  []byte
	more map[string]string // by URL: the only other documents to which references may lead
	doc  any               // raw, decoded; for error texts
	url  string            // the URL of doc in the validator's errors

	mu   sync.Mutex
	idle []*engine // engines that are not in use; guarded by mu
}

// engine is one compiled copy of a schema. Its step budget serves one validation at a time, so
// each validation takes an engine that is idle. So a schema has as many engines as there were
// validations at the same time.
type engine struct {
	root   *jsonschema.Schema
	budget *stepBudget
}

// compiled caches schemas by the digest of their text. When the cache is full, it drops an
// arbitrary schema, which is compiled again when it is needed. A fleet has far fewer tools
// than the cache has room for.
var compiled = struct {
	mu      sync.Mutex
	schemas map[string]*Schema // guarded by mu
}{schemas: map[string]*Schema{}}

const maxCompiled = 1024

// Compile reads a JSON Schema. The draft is 2020-12 unless $schema names another draft that the
// validator has built in: draft-04, draft-06, draft-07 or 2019-09. Compile never loads a document:
// a $ref must lead into the schema itself or to a built-in metaschema. Patterns are RE2, so
// look-ahead and back references are errors. A schema over the limits above is an error too.
//
// Formats are checked in every draft, although 2020-12 makes the check optional. A tool author who
// writes "date-time" wants the check, draft-07 requires it, and a model can correct only what an
// error names. Unknown formats are ignored.
func Compile(raw json.RawMessage) (*Schema, error) {
	digest := messages.Digest(raw)
	compiled.mu.Lock()
	s := compiled.schemas[digest]
	compiled.mu.Unlock()
	if s != nil {
		return s, nil
	}
	s, err := compile(raw, nil)
	if err != nil {
		return nil, err
	}
	compiled.mu.Lock()
	defer compiled.mu.Unlock()
	if len(compiled.schemas) >= maxCompiled {
		for other := range compiled.schemas {
			delete(compiled.schemas, other)
			break
		}
	}
	compiled.schemas[digest] = s
	return s, nil
}

// compile checks the limits and compiles the first engine.
func compile(raw []byte, more map[string]string) (*Schema, error) {
	if len(raw) > MaxSchemaBytes {
		return nil, fmt.Errorf("schema of %d bytes (limit %d)", len(raw), MaxSchemaBytes)
	}
	if err := rawjson.Check(raw); err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	s := &Schema{raw: bytes.Clone(raw), more: more, doc: rawjson.Tree(raw)}
	if n := countNodes(s.doc, isSubschema); n > MaxSchemaObjects {
		return nil, fmt.Errorf("schema with %d objects (limit %d)", n, MaxSchemaObjects)
	}
	e, err := s.newEngine()
	if err != nil {
		return nil, fmt.Errorf("schema: %s", compileError(err))
	}
	if err := checkExpansions(e.root); err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	s.url, _, _ = strings.Cut(e.root.Location, "#")
	s.idle = []*engine{e}
	return s, nil
}

func (s *Schema) newEngine() (e *engine, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the validator cannot read it (%.200v)", p)
		}
	}()
	c := jsonschema.NewCompiler()
	c.Draft = jsonschema.Draft2020
	c.AssertFormat = true
	c.LoadURL = func(url string) (io.ReadCloser, error) {
		if text, ok := s.more[url]; ok {
			return io.NopCloser(strings.NewReader(text)), nil
		}
		return nil, fmt.Errorf("%.200q is outside of this schema, and nothing is loaded", url)
	}
	budget := &stepBudget{}
	c.RegisterExtension("stepBudget", nil, budget)
	if err := c.AddResource(baseURL, bytes.NewReader(s.raw)); err != nil {
		return nil, err
	}
	root, err := c.Compile(baseURL)
	return &engine{root, budget}, err
}

// compileError says what is wrong with a schema, without the validator's prefixes and made-up
// addresses.
func compileError(err error) string {
	var invalid *jsonschema.ValidationError
	if errors.As(err, &invalid) {
		for len(invalid.Causes) > 0 {
			invalid = invalid.Causes[0]
		}
		return fmt.Sprintf("%s: %s", pointerText(pointerOf(invalid.InstanceLocation)), cut(invalid.Message))
	}
	var outer *jsonschema.SchemaError
	if errors.As(err, &outer) && outer.Err != nil {
		err = outer.Err
	}
	text := strings.TrimPrefix(err.Error(), "jsonschema: ")
	return cut(strings.ReplaceAll(text, baseURL, ""))
}

// Validate returns nil if the value fits the schema, else a *ValidationError for the author of
// the value. A value fits no schema if rawjson.Check refuses it, or if it is over the bounds.
func (s *Schema) Validate(value json.RawMessage) error {
	if len(value) > MaxValueBytes {
		return refuseValue("is %d bytes long (limit %d)", len(value), MaxValueBytes)
	}
	if err := rawjson.Check(value); err != nil {
		return refuseValue("is no acceptable JSON: %v", err)
	}
	v := rawjson.Tree(value)
	if n := countNodes(v, func(any) bool { return true }); n > MaxValueNodes {
		return refuseValue("holds %d values (limit %d)", n, MaxValueNodes)
	}
	err := s.check(v, MaxChecks)
	var invalid *jsonschema.ValidationError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &invalid):
		return s.explain(invalid, v)
	}
	return refuseValue("cannot be checked: %v", err)
}

// check applies the schema to a decoded value, in at most the given number of steps.
func (s *Schema) check(v any, steps int) error {
	e, err := s.take()
	if err != nil {
		return err
	}
	defer s.put(e)
	return e.validate(v, steps)
}

func refuseValue(format string, args ...any) error {
	return &ValidationError{Violations: []Violation{{Message: fmt.Sprintf(format, args...)}}}
}

// take returns an idle engine, or a new one if all are busy. It holds mu while it compiles the
// new engine, so other validations of the schema wait.
func (s *Schema) take() (*engine, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.idle); n > 0 {
		e := s.idle[n-1]
		s.idle = s.idle[:n-1]
		return e, nil
	}
	return s.newEngine()
}

func (s *Schema) put(e *engine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = append(s.idle, e)
}

// validate catches panics of the validator: a value that causes one is refused like any other. The
// panic's text is dropped, because it may quote the value.
func (e *engine) validate(v any, steps int) (err error) {
	defer func() {
		if p := recover(); p != nil {
			if tooMany, ok := p.(spentError); ok {
				err = tooMany
			} else {
				err = errors.New("the validator failed on it")
			}
		}
	}()
	e.budget.left = steps
	return e.root.Validate(v)
}

func isSubschema(v any) bool {
	switch v.(type) {
	case map[string]any, bool:
		return true
	}
	return false
}

// countNodes returns how many values in v, v included, satisfy counts.
func countNodes(v any, counts func(any) bool) int {
	n := 0
	if counts(v) {
		n++
	}
	switch v := v.(type) {
	case map[string]any:
		for _, member := range v {
			n += countNodes(member, counts)
		}
	case []any:
		for _, item := range v {
			n += countNodes(item, counts)
		}
	}
	return n
}
