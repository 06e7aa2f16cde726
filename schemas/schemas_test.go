package schemas

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// goTypes maps every schema to the Go type that implements it; nil for the YAML files, which have
// readers of their own.
var goTypes = map[string]any{
	"batch": messages.Batch{}, "reply": messages.Reply{}, "result": messages.Result{}, "job": wire.Job{}, "event": messages.Event{},
	"control": messages.Control{}, "control-record": wire.ControlRecord{}, "control-answer": messages.ControlAnswer{}, "stop": wire.Stop{}, "queue-request": wire.QueueRequest{}, "get": messages.Get{}, "state": messages.State{},
	"call-record": wire.CallRecord{}, "plan-record": wire.PlanRecord{}, "hand-back": wire.HandBack{}, "notice": wire.Notice{},
	"approval": messages.Approval{}, "decision": messages.Decision{}, "decision-answer": messages.DecisionAnswer{}, "pending": messages.Pending{},
	"pending-list": messages.PendingList{}, "approval-answer": messages.ApprovalAnswer{}, "audit-record": messages.AuditRecord{}, "audit-lines": wire.AuditLines{}, "timeline": messages.Timeline{}, "batch-list": messages.BatchList{},
	"get-tools": messages.GetTools{}, "tool-list": messages.ToolList{},
	"buried": wire.DeadLetter{}, "tool": Announcement{}, "tools-file": nil, "policy-file": nil,
}

// mayOmit lists members that our own writers always write, and that other writers may omit.
var mayOmit = []string{"batch.v", "control.v"}

func TestSchemasAgreeWithTheGoTypes(t *testing.T) {
	for _, name := range Names() {
		if _, known := goTypes[name]; !known {
			t.Errorf("%s.json has no Go type in this test", name)
		}
	}
	for name, v := range goTypes {
		if v != nil {
			agree(t, name, document(t, name), name, reflect.TypeOf(v))
		}
	}
}

func document(t testing.TB, name string) any {
	t.Helper()
	body, err := fs.ReadFile(Files(), name+".json")
	if err != nil {
		t.Fatal(err)
	}
	return rawjson.Tree(body)
}

// resolve follows the $ref of a subschema of the named file, and adds the keywords beside the $ref.
func resolve(t testing.TB, file string, schema any) (string, map[string]any) {
	t.Helper()
	s, _ := schema.(map[string]any)
	ref, ok := s["$ref"].(string)
	if !ok {
		return file, s
	}
	target, fragment, _ := strings.Cut(ref, "#")
	if target != "" {
		file = strings.TrimSuffix(target, ".json")
	}
	found, _ := lookup(document(t, file), strings.Split(fragment, "/")).(map[string]any)
	if found == nil {
		t.Fatalf("%s: $ref %q leads nowhere", file, ref)
	}
	merged := map[string]any{}
	for _, part := range []map[string]any{found, s} {
		for key, v := range part {
			if inner, isMap := merged[key].(map[string]any); isMap && key == "properties" {
				for name, property := range v.(map[string]any) {
					inner[name] = property
				}
				continue
			}
			merged[key] = v
		}
	}
	delete(merged, "$ref")
	return file, merged
}

var (
	rawType  = reflect.TypeFor[json.RawMessage]()
	timeType = reflect.TypeFor[time.Time]()
)

// agree compares a Go type with its schema, member by member.
func agree(t *testing.T, file string, schema any, path string, typ reflect.Type) {
	t.Helper()
	file, s := resolve(t, file, schema)
	want := func(jsonType string) {
		if got := schemaType(s); got != jsonType {
			t.Errorf("%s: the schema says %q, the Go type %s", path, got, typ)
		}
	}
	switch {
	case typ == rawType || typ.Kind() == reflect.Interface:
		return
	case typ == timeType:
		want("string")
		if s["format"] != "date-time" {
			t.Errorf("%s: a time without the format date-time", path)
		}
		return
	}
	switch typ.Kind() {
	case reflect.Pointer:
		agree(t, file, s, path, typ.Elem())
	case reflect.String:
		want("string")
	case reflect.Bool:
		want("boolean")
	case reflect.Int, reflect.Int64, reflect.Uint64:
		want("integer")
	case reflect.Float64:
		want("number")
	case reflect.Slice:
		if typ.Elem().Kind() == reflect.Uint8 {
			want("string")
			return
		}
		want("array")
		agree(t, file, s["items"], path+"[]", typ.Elem())
	case reflect.Map:
		want("object")
		agree(t, file, s["additionalProperties"], path+"{}", typ.Elem())
	case reflect.Struct:
		want("object")
		agreeStruct(t, file, s, path, typ)
	default:
		t.Errorf("%s: nothing is known about the Go type %s", path, typ)
	}
}

func agreeStruct(t *testing.T, file string, s map[string]any, path string, typ reflect.Type) {
	t.Helper()
	properties, _ := s["properties"].(map[string]any)
	required := stringsOf(s["required"])
	fields := jsonFields(typ)
	for name, f := range fields {
		property, ok := properties[name]
		if !ok {
			t.Errorf("%s.%s is in the Go type %s and not in the schema", path, name, typ)
			continue
		}
		agree(t, file, property, path+"."+name, f.Type)
		always := !strings.Contains(f.Tag.Get("json"), ",omit")
		if always != slices.Contains(required, name) && !slices.Contains(mayOmit, path+"."+name) {
			t.Errorf("%s.%s: always written is %v, required is %v", path, name, always, !always)
		}
	}
	for name := range properties {
		if _, ok := fields[name]; !ok {
			t.Errorf("%s.%s is in the schema and not in the Go type %s", path, name, typ)
		}
	}
}

// jsonFields returns the fields of a struct by their JSON names, including those of embedded
// structs.
func jsonFields(typ reflect.Type) map[string]reflect.StructField {
	fields := map[string]reflect.StructField{}
	for f := range typ.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			for inner, field := range jsonFields(f.Type) {
				fields[inner] = field
			}
		case f.IsExported() && name != "-" && name != "":
			fields[name] = f
		}
	}
	return fields
}

// schemaType returns the one type that a subschema allows, by its type, its enum or its const.
func schemaType(s map[string]any) string {
	if name, ok := s["type"].(string); ok {
		return name
	}
	values, _ := s["enum"].([]any)
	if c, ok := s["const"]; ok {
		values = append(values, c)
	}
	types := map[string]bool{}
	for _, v := range values {
		name := typeOf(v)
		if n, ok := v.(json.Number); ok && !strings.ContainsAny(n.String(), ".eE") {
			name = "integer"
		}
		types[name] = true
	}
	return strings.Join(rawjson.SortedKeys(types), " or ")
}

func TestFullMessagesRoundTrip(t *testing.T) {
	for name, v := range goTypes {
		if v == nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			full := reflect.New(reflect.TypeOf(v))
			fill(t, name, document(t, name), full.Elem())
			body := rawjson.MustMarshal(full.Interface())
			s, err := For(name)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Validate(body); err != nil {
				t.Errorf("%s\nbreaks its schema: %v", body, err)
			}
			back := reflect.New(reflect.TypeOf(v))
			if err := json.Unmarshal(body, back.Interface()); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(full.Interface(), back.Interface()); diff != "" {
				t.Errorf("after a round trip:\n%s", diff)
			}
			open := strings.Replace(string(body), "{", `{"a_field_of_the_future":[],`, 1)
			if err := s.Validate([]byte(open)); err != nil {
				t.Errorf("an unknown field: %v", err)
			}
		})
	}
}

// fill sets every field to some value that its schema allows.
func fill(t *testing.T, file string, schema any, v reflect.Value) {
	t.Helper()
	file, s := resolve(t, file, schema)
	switch {
	case v.Type() == rawType:
		v.Set(reflect.ValueOf(json.RawMessage(`true`)))
		if strings.Contains(fmt.Sprint(s["type"]), "object") {
			v.Set(reflect.ValueOf(json.RawMessage(`{"n":1e400}`)))
		}
		return
	case v.Type() == timeType:
		v.Set(reflect.ValueOf(time.Date(2026, 11, 21, 9, 0, 0, 1000, time.UTC)))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, file, s, v.Elem())
	case reflect.Interface:
		v.Set(reflect.ValueOf("details"))
	case reflect.String:
		v.SetString(textFor(s))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint64:
		v.SetUint(1)
	case reflect.Float64:
		v.SetFloat(0.5)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		if v.Type().Elem().Kind() != reflect.Uint8 {
			fill(t, file, s["items"], v.Index(0))
		}
	case reflect.Map:
		item := reflect.New(v.Type().Elem()).Elem()
		fill(t, file, s["additionalProperties"], item)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("key"), item)
	case reflect.Struct:
		properties, _ := s["properties"].(map[string]any)
		for name, f := range jsonFields(v.Type()) {
			fill(t, file, properties[name], v.FieldByName(f.Name))
		}
	}
}

func textFor(s map[string]any) string {
	if values, ok := s["enum"].([]any); ok {
		return values[0].(string)
	}
	text := "a"
	if pattern, ok := s["pattern"].(string); ok && !regexp.MustCompile(pattern).MatchString(text) {
		text = strings.Repeat("a", 64)
		if examples := stringsOf(s["examples"]); len(examples) > 0 {
			text = examples[0]
		}
	}
	return text
}

func TestSchemasSayWhatTheyMean(t *testing.T) {
	for _, name := range Names() {
		doc := document(t, name).(map[string]any)
		if want := idBase + name + ".json"; doc["$id"] != want || doc["$schema"] != "https://json-schema.org/draft/2020-12/schema" {
			t.Errorf("%s.json has the $id %v and the $schema %v, want %s and 2020-12", name, doc["$id"], doc["$schema"], want)
		}
		if doc["examples"] == nil {
			t.Errorf("%s.json has no examples", name)
		}
		explained(t, name, "", doc)
	}
}

// explained checks that a schema and everything in its properties and $defs has a title and a
// description, that examples are valid, and that messages are open to fields of the future.
func explained(t *testing.T, name, pointer string, s map[string]any) {
	if s["$ref"] == nil && (s["title"] == nil || s["description"] == nil) {
		t.Errorf("%s.json%s has no title or no description", name, pointer)
	}
	if s["additionalProperties"] == false && name != "tools-file" && name != "policy-file" {
		t.Errorf("%s.json%s is closed", name, pointer)
	}
	examples, _ := s["examples"].([]any)
	for i, example := range examples {
		part, err := compile(rawjson.MustMarshal(map[string]string{"$ref": idBase + name + ".json#" + pointer}), documents())
		if err != nil {
			t.Fatal(err)
		}
		if err := part.Validate(rawjson.MustMarshal(example)); err != nil {
			t.Errorf("%s.json%s: example %d: %v", name, pointer, i, err)
		}
	}
	for _, group := range []string{"properties", "$defs"} {
		inner, _ := s[group].(map[string]any)
		for key, sub := range inner {
			if sub, ok := sub.(map[string]any); ok && sub["const"] != "object" {
				explained(t, name, pointer+"/"+group+"/"+escapeToken(key), sub)
			}
		}
	}
}

func TestBatchNamesEveryProvider(t *testing.T) {
	listed := lookup(document(t, "batch"), []string{"", "properties", "provider", "enum"}).([]any)
	for i, p := range messages.Providers {
		if i >= len(listed) || listed[i] != string(p) {
			t.Errorf("provider %d is %s in Go and not in batch.json, which has %v", i, p, listed)
		}
	}
}

func TestForKnowsItsNames(t *testing.T) {
	for _, name := range Names() {
		if _, err := For(name); err != nil {
			t.Errorf("For(%q): %v", name, err)
		}
	}
	if _, err := For("parcel"); err == nil || !strings.Contains(err.Error(), "batch") {
		t.Errorf("For an unknown name: got %v, want an error that lists the known ones", err)
	}
}
