package schemas

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func mustCompile(t testing.TB, schema string) *Schema {
	t.Helper()
	s, err := Compile([]byte(schema))
	if err != nil {
		t.Fatalf("Compile(%.200s): %v", schema, err)
	}
	return s
}

const order = `{"type":"object","required":["order_id","reason"],"additionalProperties":false,
	"properties":{
		"order_id":{"type":"string","pattern":"^ORD-\\d+$"},
		"amount":{"type":"number","maximum":10000,"exclusiveMinimum":0,"multipleOf":0.01},
		"reason":{"enum":["lost","broken",3]},
		"when":{"type":"string","format":"date-time"},
		"note":{"type":["string","null"],"maxLength":3},
		"limit":{"anyOf":[{"type":"integer","minimum":1},{"type":"null"}]},
		"items":{"type":"array","minItems":1,"uniqueItems":true,"items":{"type":"object","required":["sku"],"properties":{"sku":{"const":"A"}}}},
		"target":{"oneOf":[
			{"type":"object","required":["file"],"properties":{"kind":{"const":"file"},"file":{"type":"string"}}},
			{"type":"object","required":["url"],"properties":{"kind":{"const":"url"},"url":{"type":"string","format":"uri"}}}]},
		"a/b~c d%":{"type":"integer"},
		"tags":{"type":"object","propertyNames":{"pattern":"^[a-z]+$"},"additionalProperties":{"type":"string"}},
		"ref":{"$ref":"#/$defs/small"}
	},
	"$defs":{"small":{"type":"integer","maximum":9007199254740993}}}`

func TestValidateSaysWhereAndWhatWasExpected(t *testing.T) {
	s := mustCompile(t, order)
	for _, tt := range []struct{ value, want string }{
		{`{"order_id":"ORD-1","reason":"lost"}`, ""},
		{`{"order_id":"ORD-1"}`, `/: missing property "reason"`},
		{`{}`, `/: missing property "order_id"; /: missing property "reason"`},
		{`{"order_id":"SECRET","reason":"lost"}`, `/order_id: does not match the pattern ^ORD-\d+$`},
		{`{"order_id":"ORD-1","reason":"lost","amount":10000.01}`, `/amount: must be <= 10000`},
		{`{"order_id":"ORD-1","reason":"lost","amount":0}`, `/amount: must be > 0`},
		{`{"order_id":"ORD-1","reason":"lost","amount":0.005}`, `/amount: must be a multiple of 0.01`},
		{`{"order_id":"ORD-1","reason":"SECRET"}`, `/reason: must be one of "lost", "broken", 3`},
		{`{"order_id":"ORD-1","reason":"lost","x":"SECRET"}`, `/x: unexpected property; it takes a/b~c d%, amount, items, limit, note, order_id, reason, ref, tags, target, when`},
		{`{"order_id":7,"reason":"lost"}`, `/order_id: must be string, not number`},
		{`{"order_id":"ORD-1","reason":"lost","when":"SECRET"}`, `/when: must be a valid date-time`},
		{`{"order_id":"ORD-1","reason":"lost","note":"SECRET"}`, `/note: must have at most 3 characters`},
		{`{"order_id":"ORD-1","reason":"lost","note":7}`, `/note: must be string or null, not number`},
		{`{"order_id":"ORD-1","reason":"lost","limit":"7"}`, `/limit: must be integer or null, not string`},
		{`{"order_id":"ORD-1","reason":"lost","limit":0}`, `/limit: must be >= 1`},
		{`{"order_id":"ORD-1","reason":"lost","items":[]}`, `/items: must have at least 1 items`},
		{`{"order_id":"ORD-1","reason":"lost","items":[{"sku":"A"},{"sku":"SECRET"}]}`, `/items/1/sku: must be "A"`},
		{`{"order_id":"ORD-1","reason":"lost","items":[{"sku":"A"},{"sku":"A"}]}`, `/items: items at index 0 and 1 are equal, but must be unique`},
		{`{"order_id":"ORD-1","reason":"lost","target":{"kind":"url","url":"::SECRET"}}`, `/target/url: must be a valid uri`},
		{`{"order_id":"ORD-1","reason":"lost","target":{}}`, `/target: fits none of the alternatives: missing property "file", or missing property "url"`},
		{`{"order_id":"ORD-1","reason":"lost","a/b~c d%":"SECRET"}`, `/a~1b~0c d%: must be integer, not string`},
		{`{"order_id":"ORD-1","reason":"lost","tags":{"B C":"x"}}`, `/tags/B C: this property name does not match the pattern ^[a-z]+$`},
		{`{"order_id":"ORD-1","reason":"lost","tags":{"b":1}}`, `/tags/b: must be string, not number`},
		{`{"order_id":"ORD-1","reason":"lost","ref":9007199254740993}`, ""},
		{`{"order_id":"ORD-1","reason":"lost","ref":9007199254740994}`, `/ref: must be <= 9007199254740993`},
		{`{"order_id":1,"reason":2,"amount":"a","when":1,"note":1,"limit":"","p":1,"q":2}`,
			`/amount: must be number, not string; /limit: must be integer or null, not string; /note: must be string or null, not number; ` +
				`/order_id: must be string, not number; /p: unexpected property; it takes a/b~c d%, amount, items, limit, note, order_id, reason, ref, tags, target, when; and 3 more`},
		{`["SECRET"]`, `/: must be object, not array`},
	} {
		t.Run(tt.value, func(t *testing.T) {
			for range 3 { // the validator ranges over maps: the order must not show
				got := ""
				if err := s.Validate([]byte(tt.value)); err != nil {
					got = err.Error()
				}
				if got != tt.want {
					t.Fatalf("Validate:\n got %s\nwant %s", got, tt.want)
				}
			}
		})
	}
}

func TestKeywordsHaveWords(t *testing.T) {
	for _, tt := range []struct{ schema, value, want string }{
		{`false`, `1`, `/: nothing is allowed here`},
		{`{"properties":{"a":false}}`, `{"a":1}`, `/a: unexpected property`},
		{`{"items":false}`, `[1]`, `/0: nothing is allowed here`},
		{`{"not":{"type":"string"}}`, `"SECRET"`, `/: must not match what the schema excludes with not`},
		{`{"contains":{"const":1}}`, `[2,"SECRET"]`, `/: must have an item that matches contains`},
		{`{"contains":{"const":1},"minContains":2}`, `[1]`, `/: has too few items that match contains`},
		{`{"contains":{"const":1},"maxContains":1}`, `[1,1]`, `/: has too many items that match contains`},
		{`{"oneOf":[{"type":"integer"},{"minimum":1}]}`, `3`, `/: fits more than one alternative of oneOf, but must fit exactly one`},
		{`{"anyOf":[{"const":"a"},{"const":"b"}]}`, `"SECRET"`, `/: fits none of the alternatives: must be "a", or must be "b"`},
		{`{"if":{"required":["a"]},"then":{"required":["b"]},"else":{"required":["c"]}}`, `{"a":1}`, `/: missing property "b"`},
		{`{"if":{"required":["a"]},"then":{"required":["b"]},"else":{"required":["c"]}}`, `{}`, `/: missing property "c"`},
		{`{"dependentRequired":{"a/b":["c"]}}`, `{"a/b":1}`, `/: missing a property that "a/b" requires`},
		{`{"$schema":"http://json-schema.org/draft-07/schema#","dependencies":{"a":["c"]}}`, `{"a":1}`, `/: missing a property that "a" requires`},
		{`{"$schema":"http://json-schema.org/draft-07/schema#","items":[true],"additionalItems":false}`, `[1,2]`, `/: has too many items`},
		{`{"$schema":"http://json-schema.org/draft-07/schema#","contentEncoding":"base64"}`, `"%"`, `/: must be base64 text`},
		{`{"properties":{"a":{}},"patternProperties":{"^x":{}},"additionalProperties":false}`, `{"a":1,"x1":1,"y":1}`, `/y: unexpected property; it takes a`},
		{`{"properties":{"a":true},"unevaluatedProperties":false}`, `{"y":1}`, `/y: unexpected property`},
		{`{"allOf":[{"$ref":"#/$defs/d"}],"$defs":{"d":{"minimum":1e2}}}`, `3`, `/: must be >= 1e2`},
		{`{"$ref":"https://json-schema.org/draft/2020-12/schema"}`, `{"type":"SECRET"}`,
			`/type: breaks the keyword enum of the metaschema`},
		{`{"properties":{"minContains":{"minLength":2,"pattern":"^x"}}}`, `{"minContains":""}`, `/minContains: does not match the pattern ^x; /minContains: must have at least 2 characters`},
		{`{"properties":{"propertyNames":{"minLength":2}}}`, `{"propertyNames":""}`, `/propertyNames: must have at least 2 characters`},
		{`{"$id":"https://example.com/s","properties":{"a":{"$id":"inner","minLength":2}}}`, `{"a":""}`, `/a: must have at least 2 characters`},
	} {
		s := mustCompile(t, tt.schema)
		err := s.Validate([]byte(tt.value))
		if err == nil || err.Error() != tt.want {
			t.Errorf("%s validates %s:\n got %v\nwant %s", tt.schema, tt.value, err, tt.want)
		}
	}
}

func TestValidationErrorCarriesTheList(t *testing.T) {
	err := mustCompile(t, `{"required":["a"]}`).Validate([]byte(`{}`))
	var invalid *ValidationError
	if !errors.As(err, &invalid) {
		t.Fatalf("got %T, want *ValidationError", err)
	}
	want := []Violation{{Pointer: "", Message: `missing property "a"`}}
	if diff := cmp.Diff(want, invalid.Violations); diff != "" {
		t.Error(diff)
	}
}

func TestOwnSchemasSpeakAcrossFiles(t *testing.T) {
	reply, err := For("reply")
	if err != nil {
		t.Fatal(err)
	}
	err = reply.Validate([]byte(`{"v":1,"batch":"b","session":"s","provider":"p","status":"completed","digest":"SECRET","reinjection":null,"results":[{"v":1,"index":-1}]}`))
	want := `/results/0/index: must be >= 0; /results/0: missing property "attempt"; /results/0: missing property "call_id"; ` +
		`/results/0: missing property "duration_ms"; /results/0: missing property "queue_ms"; and 5 more`
	if err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

func TestCompileRefuses(t *testing.T) {
	for _, tt := range []struct{ name, schema, want string }{
		{"no JSON", `{`, "ends in the middle"},
		{"two values", `{} {}`, "more than one JSON value"},
		{"duplicate key", `{"type":"string","type":"number"}`, `"type" appears twice`},
		{"not a schema", `7`, "expected object or boolean"},
		{"unknown type", `{"type":"text"}`, "/type:"},
		{"look-ahead", `{"pattern":"(?=x)"}`, "/pattern:"},
		{"dangling ref", `{"$ref":"#/$defs/nowhere"}`, "#/$defs/nowhere not found"},
		{"http", `{"$ref":"http://127.0.0.1:1/schema.json"}`, "nothing is loaded"},
		{"file", `{"$ref":"file:///etc/hostname"}`, "nothing is loaded"},
		{"relative file", `{"$ref":"other.json"}`, "nothing is loaded"},
		{"own dialect", `{"$schema":"https://example.com/dialect"}`, "nothing is loaded"},
		{"loop", `{"$ref":"#"}`, "infinite loop"},
		{"depth", strings.Repeat(`{"not":`, 200) + `{}` + strings.Repeat(`}`, 200), "nested more than 128 deep"},
		{"size", `{"description":"` + strings.Repeat("x", MaxSchemaBytes) + `"}`, "limit 262144"},
		{"objects", `{"allOf":[` + strings.Repeat(`{},`, MaxSchemaObjects) + `{}]}`, "limit 4000"},
		{"exponent", `{"maximum":1e10000000}`, "exponent"},
		{"fan-out", fanOut(25), "expand to more than 10000"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Compile([]byte(tt.schema))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error with %q", err, tt.want)
			}
		})
	}
}

// fanOut is a schema of n levels, each of which applies the next one twice to the same value.
func fanOut(n int) string {
	var defs []string
	for i := range n {
		defs = append(defs, fmt.Sprintf(`"d%d":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]}`, i, i+1, i+1))
	}
	return fmt.Sprintf(`{"$ref":"#/$defs/d0","$defs":{%s,"d%d":{"type":"object"}}}`, strings.Join(defs, ","), n)
}

func TestValidateStopsBombs(t *testing.T) {
	twice := `{"properties":{"a":{"$ref":"#"}}}`
	doubling := `{"type":"object","allOf":[` + twice + `,` + twice + `]}`
	for _, tt := range []struct{ name, schema, value, want string }{
		{"exponent", `{"maximum":5}`, `{"n":1e10000000}`, "exponent beyond 400"},
		{"exponent, plain", `{"maximum":5}`, `1e1000001`, "exponent beyond 400"},
		{"digits", `{"multipleOf":0.01}`, strings.Repeat("9", 1001), "limit 1000"},
		{"depth", `{}`, strings.Repeat("[", 5_000) + strings.Repeat("]", 5_000), "nested more than 128 deep"},
		{"size", `{}`, `"` + strings.Repeat("x", MaxValueBytes) + `"`, "limit 8388608"},
		{"values", `{"items":{"type":"string"}}`, `[1` + strings.Repeat(",1", MaxValueNodes) + `]`, "limit 100000"},
		{"duplicate", `{}`, `{"a":1,"a":2}`, "appears twice"},
		{"recursion that doubles", doubling, strings.Repeat(`{"a":`, 60) + `{}` + strings.Repeat(`}`, 60), "more than 500000 steps"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := mustCompile(t, tt.schema)
			err := s.Validate([]byte(tt.value))
			var invalid *ValidationError
			if !errors.As(err, &invalid) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want a ValidationError with %q", err, tt.want)
			}
			if err := s.Validate([]byte(`{}`)); err != nil {
				t.Errorf("after the bomb: %v", err)
			}
		})
	}
}

func TestRecursiveSchemasWork(t *testing.T) {
	expr := mustCompile(t, `{"$ref":"#/$defs/expr","$defs":{"expr":{"oneOf":[{"type":"number"},
		{"type":"object","required":["op","left","right"],"additionalProperties":false,
		 "properties":{"op":{"enum":["+","-"]},"left":{"$ref":"#/$defs/expr"},"right":{"$ref":"#/$defs/expr"}}}]}}}`)
	value := `1`
	for range 40 {
		value = `{"op":"+","left":2,"right":` + value + `}`
	}
	if err := expr.Validate([]byte(value)); err != nil {
		t.Error(err)
	}
	if err := expr.Validate([]byte(strings.Replace(value, `:1}`, `:"x"}`, 1))); err == nil {
		t.Error("a string deep inside was accepted")
	}
}

func TestCompileRemembersABoundedNumber(t *testing.T) {
	first := mustCompile(t, `{"title":"remembered"}`)
	if again := mustCompile(t, `{"title":"remembered"}`); again != first {
		t.Error("the same text was compiled twice")
	}
	for i := range maxCompiled + 10 {
		mustCompile(t, fmt.Sprintf(`{"title":"%d"}`, i))
	}
	compiled.mu.Lock()
	defer compiled.mu.Unlock()
	if n := len(compiled.schemas); n > maxCompiled {
		t.Errorf("%d schemas are remembered, want at most %d", n, maxCompiled)
	}
}

func TestValidateConcurrently(t *testing.T) {
	s := mustCompile(t, order)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				if err := s.Validate([]byte(`{"order_id":"ORD-1","reason":"lost","amount":1}`)); err != nil {
					t.Errorf("good: %v", err)
				}
				if err := s.Validate([]byte(`{"order_id":"ORD-1","reason":"lost","amount":"1"}`)); err == nil {
					t.Error("bad was accepted")
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkValidate(b *testing.B) {
	s := mustCompile(b, order)
	for b.Loop() {
		if err := s.Validate([]byte(`{"order_id":"ORD-1","reason":"lost","amount":1}`)); err != nil {
			b.Fatal(err)
		}
	}
}

// FuzzValidate: no schema and no value causes a panic, and every refusal says where and why.
func FuzzValidate(f *testing.F) {
	f.Add(order, `{"order_id":"ORD-1","reason":"lost","target":{}}`)
	f.Add(fanOut(5), `[]`)
	f.Add(`{"anyOf":[false,{"$ref":"#/anyOf/0"}],"$id":"https://a.b/c"}`, `{"a/b":[1e400,"\u0000"]}`)
	f.Add(`{"$schema":"http://json-schema.org/draft-07/schema#","dependencies":{"a":{"enum":[[],{}]}}}`, `{"a":null}`)
	f.Fuzz(func(t *testing.T, schema, value string) {
		s, err := compile([]byte(schema), nil)
		if err != nil {
			if err.Error() == "" {
				t.Error("an error without words")
			}
			return
		}
		if err := s.Validate([]byte(value)); err != nil {
			var invalid *ValidationError
			if !errors.As(err, &invalid) || len(invalid.Violations) == 0 || len(invalid.Violations) > MaxViolations {
				t.Errorf("got %#v, want a ValidationError with 1 to %d violations", err, MaxViolations)
			}
		}
	})
}
