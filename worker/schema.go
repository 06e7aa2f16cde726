package worker

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
)

// anything accepts every JSON value. It lists all types so that null can be added to them for
// the schema of a pointer.
var anything = &jsonschema.Schema{Types: []string{"null", "boolean", "number", "string", "array", "object"}}

// known holds the schemas of types whose JSON form differs from what their Go type suggests.
var known = map[reflect.Type]*jsonschema.Schema{
	reflect.TypeFor[json.Number]():     {Type: "number"},
	reflect.TypeFor[json.RawMessage](): anything,
	reflect.TypeFor[[]byte]():          {Type: "string", ContentEncoding: "base64"},
	reflect.TypeFor[time.Time]():       {Type: "string", Format: "date-time"},
	reflect.TypeFor[time.Duration]():   {Type: "integer", Description: "nanoseconds"},
}

const useInputSchema = "; change the type, or write the schema with worker.InputSchema"

// inputSchema returns the JSON Schema of the arguments that encoding/json reads into a type.
func inputSchema(in reflect.Type) (json.RawMessage, error) {
	for in.Kind() == reflect.Pointer {
		in = in.Elem()
	}
	if _, special := known[in]; special || in.Kind() != reflect.Struct && in.Kind() != reflect.Map {
		return nil, fmt.Errorf("its input is a %s, and the arguments of a call are an object: want a struct%s", in, useInputSchema)
	}
	if readsItself(in) {
		return nil, fmt.Errorf("its input %s reads its JSON itself, so its type does not show what fits%s", in, useInputSchema)
	}
	w := walk{types: map[reflect.Type]*jsonschema.Schema{}, above: map[reflect.Type]bool{}}
	for t, s := range known {
		w.types[t] = s
	}
	if err := w.visit(in, in.String()); err != nil {
		return nil, err
	}
	schema, err := jsonschema.ForType(in, &jsonschema.ForOptions{TypeSchemas: w.types})
	if err != nil {
		return nil, fmt.Errorf("its input has no JSON Schema: %w%s", err, useInputSchema)
	}
	withoutNulls(schema)
	return json.Marshal(schema)
}

// walk visits every type inside the input. It corrects the schema that is made from the Go
// type alone, so that the schema accepts what encoding/json accepts.
type walk struct {
	types map[reflect.Type]*jsonschema.Schema // types that need another schema than their Go type suggests
	above map[reflect.Type]bool               // the types that contain the visited one
}

// visit adds the schemas of types that decode themselves, and returns an error for types
// without a schema. path names the place in errors.
func (w *walk) visit(t reflect.Type, path string) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if w.types[t] != nil || w.special(t) {
		return nil
	}
	if t.Name() != "" {
		if w.above[t] {
			return fmt.Errorf("%s: %s contains itself, which the schema made from a type cannot say%s", path, t, useInputSchema)
		}
		w.above[t] = true
		defer delete(w.above, t)
	}
	switch t.Kind() {
	case reflect.Map:
		return w.visit(t.Elem(), path+"[]")
	case reflect.Slice, reflect.Array:
		return w.visit(t.Elem(), path+"[]")
	case reflect.Struct:
		return w.fields(t, path)
	case reflect.Interface:
		if t.NumMethod() > 0 {
			return fmt.Errorf("%s: nothing can be read into the interface %s%s", path, t, useInputSchema)
		}
	}
	return nil
}

// special records the schema of a type that decodes its own JSON, and of a slice of bytes. It
// reports whether t is such a type.
func (w *walk) special(t reflect.Type) bool {
	switch {
	case readsItself(t):
		w.types[t] = anything // only the code of the type knows which values fit
	case reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		w.types[t] = &jsonschema.Schema{Type: "string"}
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		w.types[t] = known[reflect.TypeFor[[]byte]()]
	default:
		return false
	}
	return true
}

func readsItself(t reflect.Type) bool {
	return reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]())
}

// fields visits the fields of a struct, including the fields of embedded structs.
func (w *walk) fields(t reflect.Type, path string) error {
	var errs []error
	names := map[string]bool{}
	for _, field := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		at := path + "." + field.Name
		switch {
		case field.Anonymous:
			inside := field.Type
			if inside.Kind() == reflect.Pointer {
				inside = inside.Elem()
			}
			if inside != field.Type && !field.IsExported() {
				errs = append(errs, fmt.Errorf("%s: encoding/json cannot make an embedded pointer to an unexported struct; embed the struct", at))
			}
			if name != "" || inside.Kind() != reflect.Struct {
				errs = append(errs, fmt.Errorf("%s: an embedded field is a struct without a name in its json tag; give the field a name of its own", at))
			}
			continue
		case !field.IsExported() || field.Tag.Get("json") == "-":
			continue
		case strings.Contains(options, "string"):
			errs = append(errs, fmt.Errorf("%s: the option string of the json tag is not supported; use a string", at))
		}
		if name == "" {
			name = field.Name
		}
		if names[name] {
			errs = append(errs, fmt.Errorf("%s: another field is %q in JSON already", at, name))
		}
		names[name] = true
		errs = append(errs, w.visit(field.Type, at))
	}
	return errors.Join(errs...)
}

// withoutNulls turns the schemas of nullable lists into plain lists, so that models write []
// instead of null. The schema of every Go slice is a nullable list. Pointers stay nullable.
func withoutNulls(s *jsonschema.Schema) {
	if s == nil {
		return
	}
	if len(s.Types) == 2 && s.Types[0] == "null" && s.Types[1] == "array" {
		s.Type, s.Types = "array", nil
	}
	for _, property := range s.Properties {
		withoutNulls(property)
	}
	withoutNulls(s.Items)
	withoutNulls(s.AdditionalProperties)
}
