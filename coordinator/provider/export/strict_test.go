package export_test

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/toolfleet/toolfleet/coordinator/provider/export"
	"github.com/toolfleet/toolfleet/coordinator/provider/export/exporttest"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

func TestWhatCanBeStrict(t *testing.T) {
	nested := func(depth int) string {
		schema := `{"type":"string"}`
		for range depth {
			schema = `{"type":"object","properties":{"a":` + schema + `},"required":["a"]}`
		}
		return schema
	}
	// The letters of want say which exports are strict. D: the default of Responses. E: exact
	// for OpenAI. N: nullable for OpenAI. A: exact for Anthropic.
	for _, c := range []struct{ about, schema, want string }{
		{"no arguments", `{"properties":{}}`, "DENA"},
		{"all required", `{"properties":{"a":{"type":"string"}},"required":["a"]}`, "DENA"},
		{"an optional one", `{"properties":{"a":{"type":"string"}}}`, "--NA"},
		{"an optional one in a choice", `{"properties":{"a":{"anyOf":[{"type":"string"},{"type":"object","properties":{"b":{"type":"string"}}}]}},"required":["a"]}`, "---A"},
		{"a pattern", `{"properties":{"a":{"type":"string","pattern":"x"}},"required":["a"]}`, "-EN-"},
		{"a length", `{"properties":{"a":{"type":"string","maxLength":9}},"required":["a"]}`, "----"},
		{"a default", `{"properties":{"a":{"type":"string","default":"x"}},"required":["a"]}`, "----"},
		{"a reference", `{"properties":{"a":{"$ref":"#/$defs/a"}},"required":["a"],"$defs":{"a":{"type":"string"}}}`, "----"},
		{"no type", `{"properties":{"a":{"enum":["x"]}},"required":["a"]}`, "----"},
		{"a composite in an enum", `{"properties":{"a":{"type":"array","items":{"type":"string"},"enum":[[]]}},"required":["a"]}`, "----"},
		{"open on purpose", `{"properties":{},"additionalProperties":true}`, "----"},
		{"nothing said", ``, "----"},
		{"an open object inside", `{"properties":{"a":{"type":"object"}},"required":["a"]}`, "----"},
		{"requires what it does not list", `{"properties":{},"required":["b"]}`, "----"},
		{"a list of anything", `{"properties":{"a":{"type":"array"}},"required":["a"]}`, "----"},
		{"a choice at the root", `{"anyOf":[{"type":"object","properties":{}}]}`, "----"},
		{"5 deep", nested(5), "DENA"},
		{"6 deep", nested(6), "---A"},
		{"101 properties", `{"properties":` + properties(101, `{"type":"string"}`) + `}`, "----"},
	} {
		t.Run(c.about, func(t *testing.T) {
			got := ""
			for _, ask := range []struct {
				letter string
				p      messages.Provider
				strict export.Strict
			}{
				{"D", messages.OpenAIResponses, export.StrictDefault},
				{"E", messages.OpenAIChat, export.StrictExact},
				{"N", messages.OpenAIChat, export.StrictNullable},
				{"A", messages.Anthropic, export.StrictExact},
			} {
				defs, err := export.Prepare(ask.p, []schemas.Tool{{Name: "x", InputSchema: json.RawMessage(c.schema)}}, export.Options{Strict: ask.strict})
				if err == nil && defs[0].Strict {
					got += ask.letter
				} else {
					got += "-"
				}
			}
			if got != c.want {
				t.Errorf("strict is %s, want %s, for %s", got, c.want, c.schema)
			}
		})
	}
	for _, p := range messages.Providers {
		if prepare(t, p, `{"properties":{}}`, export.Options{Strict: export.StrictOff}).Strict {
			t.Errorf("%s: strict, though switched off", p)
		}
		if p != messages.OpenAIResponses && prepare(t, p, `{"properties":{}}`, export.Options{}).Strict {
			t.Errorf("%s: strict, though nobody asked", p)
		}
	}
}

func TestDropNulls(t *testing.T) {
	const schema = `{
		"properties": {
			"must": {"type": "string"},
			"may": {"type": "string", "enum": ["x"]},
			"null": {"type": ["string", "null"]},
			"list": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}},
			"choice": {"anyOf": [{"type": "string"}, {"type": "integer"}]}
		},
		"required": ["must"]
	}`
	for _, c := range []struct{ schema, input, want string }{
		{schema, `{"must":"a","may":null,"null":null,"list":[{"n":null},{"n":12345678901234567890}],"choice":null}`,
			`{"list":[{},{"n":12345678901234567890}],"must":"a","null":null}`},
		{schema, `{ "must": "a", "null": null }`, `{ "must": "a", "null": null }`},
		{schema, `{"must":null,"other":null}`, `{"must":null,"other":null}`},
		{schema, `[null]`, `[null]`},
		// The schema is never exported as nullable, so no model is asked to send null.
		{`{"properties":{"a":{"type":"string","maxLength":3}}}`, `{"a":null}`, `{"a":null}`},
	} {
		got, err := export.DropNulls(json.RawMessage(c.schema), json.RawMessage(c.input))
		if err != nil || string(got) != c.want {
			t.Errorf("DropNulls(%s) = %s, %v; want %s", c.input, got, err, c.want)
		}
	}
	if got, err := export.DropNulls(json.RawMessage(schema), json.RawMessage(`{`)); err == nil {
		t.Errorf("got %s, want an error for an input that is no JSON", got)
	}
}

// An exported schema accepts no more than the tool's own schema: random inputs that fit the
// export are validated against the tool's schema.
func TestCopiesAreNoWider(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, tool := range exporttest.Tools() {
		if tool.Name == "update_issue" {
			continue // a choice at the root is exported as text
		}
		own, err := schemas.Compile(orObject(tool.InputSchema))
		if err != nil {
			t.Fatalf("%s: %v", tool.Name, err)
		}
		seen := map[string]bool{}
		for _, p := range messages.Providers {
			for _, strict := range []export.Strict{export.StrictOff, export.StrictExact, export.StrictNullable} {
				def := prepare(t, p, string(tool.InputSchema), export.Options{Strict: strict})
				if seen[string(def.Schema)] {
					continue
				}
				seen[string(def.Schema)] = true
				told, err := schemas.Compile(def.Schema)
				if err != nil {
					t.Fatalf("%s on %s: %v", tool.Name, p, err)
				}
				fits := 0
				for range 200 {
					input := rawjson.MustMarshal(sample(t, rng, def.Schema))
					if told.Validate(input) != nil {
						continue
					}
					fits++
					if strict == export.StrictNullable {
						if input, err = export.DropNulls(tool.InputSchema, input); err != nil {
							t.Fatal(err)
						}
					}
					if err := own.Validate(input); err != nil {
						t.Fatalf("%s on %s, strict %q: the model may send %s, and the tool refuses it: %v", tool.Name, p, strict, input, err)
					}
				}
				if fits == 0 {
					t.Errorf("%s on %s: no sample fits %s", tool.Name, p, def.Schema)
				}
			}
		}
	}
}

func orObject(schema json.RawMessage) json.RawMessage {
	if len(schema) == 0 {
		return json.RawMessage(`{"type":"object"}`)
	}
	return schema
}

// sample returns a value that mostly fits a schema. Optional properties come and go, some
// values are null, and some objects have one property too many.
func sample(t *testing.T, rng *rand.Rand, schema json.RawMessage) any {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(schema))
	dec.UseNumber()
	var n any
	if err := dec.Decode(&n); err != nil {
		t.Fatal(err)
	}
	return value(rng, n)
}

func value(rng *rand.Rand, schema any) any {
	n, _ := schema.(map[string]any)
	if rng.IntN(12) == 0 {
		return nil
	}
	if v, ok := n["const"]; ok {
		return v
	}
	if branches, ok := n["anyOf"].([]any); ok {
		return value(rng, branches[rng.IntN(len(branches))])
	}
	if values, ok := n["enum"].([]any); ok {
		return values[rng.IntN(len(values))]
	}
	kind := n["type"]
	if kinds, ok := kind.([]any); ok {
		kind = kinds[rng.IntN(len(kinds))]
	}
	switch kind {
	case "object":
		return members(rng, n)
	case "array":
		list := make([]any, rng.IntN(3))
		for i := range list {
			list[i] = value(rng, n["items"])
		}
		return list
	case "integer", "number":
		return rng.IntN(1000)
	case "boolean":
		return rng.IntN(2) == 0
	case "null":
		return nil
	}
	return []string{"", "text", "ORD-1234", strings.Repeat("x", 250)}[rng.IntN(4)]
}

func members(rng *rand.Rand, n map[string]any) map[string]any {
	object := map[string]any{}
	properties, _ := n["properties"].(map[string]any)
	for _, name := range rawjson.SortedKeys(properties) {
		if rng.IntN(4) > 0 {
			object[name] = value(rng, properties[name])
		}
	}
	if rng.IntN(6) == 0 {
		object["extra"] = "x"
	}
	return object
}
