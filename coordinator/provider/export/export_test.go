package export_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/coordinator/provider/export"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

func prepare(t *testing.T, p messages.Provider, schema string, o export.Options) export.Definition {
	t.Helper()
	defs, err := export.Prepare(p, []schemas.Tool{{Name: "x", InputSchema: json.RawMessage(schema)}}, o)
	if err != nil {
		t.Fatalf("Prepare(%s, %s): %v", p, schema, err)
	}
	return defs[0]
}

func TestPlainSchemas(t *testing.T) {
	for _, c := range []struct{ about, schema, want string }{
		{"nothing said", ``, `{"properties":{},"type":"object"}`},
		{"anything", `true`, `{"properties":{},"type":"object"}`},
		{"an object or null", `{"type":["object","null"]}`, `{"properties":{},"type":"object"}`},
		{"no arguments", `{"properties":{}}`, `{"additionalProperties":false,"properties":{},"type":"object"}`},
		{"open on purpose", `{"properties":{"a":{}},"additionalProperties":true}`,
			`{"additionalProperties":true,"properties":{"a":{}},"type":"object"}`},
		{"others by pattern", `{"properties":{"a":{}},"patternProperties":{"^x":{}}}`,
			`{"patternProperties":{"^x":{}},"properties":{"a":{}},"type":"object"}`},
		{"requires what it does not list", `{"properties":{"a":{}},"required":["b"]}`,
			`{"properties":{"a":{}},"required":["b"],"type":"object"}`},
		{"a property called properties", `{"properties":{"properties":{"type":"string"}}}`,
			`{"additionalProperties":false,"properties":{"properties":{"type":"string"}},"type":"object"}`},
		{"a choice", `{"properties":{"a":{"anyOf":[{"properties":{"b":{}}},{"type":"array"}]}}}`,
			`{"additionalProperties":false,"properties":{"a":{"anyOf":[{"additionalProperties":false,"properties":{"b":{}}},{"items":{},"type":"array"}]}},"type":"object"}`},
		{"one of: narrower branches would widen it", `{"properties":{"a":{"oneOf":[{"properties":{"b":{}}},{"type":"array"}]}}}`,
			`{"additionalProperties":false,"properties":{"a":{"oneOf":[{"properties":{"b":{}}},{"type":"array"}]}},"type":"object"}`},
		{"digits", `{"properties":{"a":{"maximum":9007199254740993.10,"enum":[1e2]}}}`,
			`{"additionalProperties":false,"properties":{"a":{"enum":[1e2],"maximum":9007199254740993.10}},"type":"object"}`},
	} {
		t.Run(c.about, func(t *testing.T) {
			def := prepare(t, messages.Gemini, c.schema, export.Options{})
			if diff := cmp.Diff(c.want, string(def.Schema)); diff != "" {
				t.Errorf("schema %s (-want +got):\n%s", c.schema, diff)
			}
		})
	}
}

// A provider refuses a keyword at the root of a schema: the keyword is exported as text in the
// description.
func TestChoiceAtTheRoot(t *testing.T) {
	const schema = `{"type":"object","properties":{"a":{}},"oneOf":[{"required":["a"]},{"required":["b"]}]}`
	for _, p := range []messages.Provider{messages.Anthropic, messages.OpenAIChat, messages.OpenAIResponses, messages.Bedrock} {
		want := `{"description":"The input must also fit this JSON Schema: {\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]}","properties":{"a":{}},"type":"object"}`
		if got := string(prepare(t, p, schema, export.Options{Strict: export.StrictExact}).Schema); got != want {
			t.Errorf("%s: got %s\nwant %s", p, got, want)
		}
	}
	if got := string(prepare(t, messages.Gemini, schema, export.Options{}).Schema); !strings.Contains(got, `"oneOf":[`) {
		t.Errorf("gemini: got %s, want oneOf kept", got)
	}
	if got := string(prepare(t, messages.Canonical, `{"required":["a"],"properties":{"a":{}}}`, export.Options{}).Schema); got != `{"properties":{"a":{}},"required":["a"],"type":"object"}` {
		t.Errorf("canonical: got %s, want the tool's own", got)
	}
}

func TestPrepareRefuses(t *testing.T) {
	many := func(n int) (tools []schemas.Tool) {
		for i := range n {
			tools = append(tools, schemas.Tool{Name: fmt.Sprintf("t%d", i), InputSchema: json.RawMessage(`{"properties":{"a":{"type":"string"}}}`)})
		}
		return tools
	}
	one := func(schema string) []schemas.Tool {
		return []schemas.Tool{{Name: "x", InputSchema: json.RawMessage(schema)}}
	}
	for _, c := range []struct {
		about string
		p     messages.Provider
		tools []schemas.Tool
		o     export.Options
		want  string // "": no error
	}{
		{"128", messages.OpenAIChat, many(128), export.Options{}, ""},
		{"129", messages.OpenAIChat, many(129), export.Options{}, "129 tools: openai-chat takes at most 128 in one request"},
		{"512", messages.Gemini, many(512), export.Options{}, ""},
		{"513", messages.Gemini, many(513), export.Options{}, "513 tools: gemini takes at most 512 in one request"},
		{"20 strict", messages.Anthropic, many(20), export.Options{Strict: export.StrictExact}, ""},
		{"21 strict", messages.Anthropic, many(21), export.Options{Strict: export.StrictExact},
			"21 strict tools: anthropic takes at most 20 in one request; export fewer tools, or without strict"},
		{"21 plain", messages.Anthropic, many(21), export.Options{}, ""},
		{"25 optional", messages.Bedrock, one(`{"properties":` + properties(25, `{"type":"string"}`) + `}`), export.Options{Strict: export.StrictExact},
			"25 optional properties in strict tools: bedrock takes at most 24 in one request; export fewer tools, or without strict"},
		{"17 unions", messages.Anthropic, one(`{"properties":` + properties(17, `{"type":["string","null"]}`) + `}`), export.Options{Strict: export.StrictNullable},
			"17 schemas of several types in strict tools: anthropic takes at most 16 in one request; export fewer tools, or without strict"},
		{"a list", messages.Gemini, one(`[]`), export.Options{}, `tool "x": input_schema: is an array; want a JSON Schema of an object`},
		{"nothing fits", messages.Gemini, one(`false`), export.Options{}, `tool "x": input_schema: is a boolean; want a JSON Schema of an object`},
		{"of an array", messages.Canonical, one(`{"type":"array"}`), export.Options{}, `tool "x": input_schema: its root is of type array; want object`},
		{"a key twice", messages.Canonical, one(`{"type":"object","type":"array"}`), export.Options{}, `tool "x": input_schema: key "type" appears twice in one object (byte 23)`},
		{"provider", "mistral", nil, export.Options{}, `provider "mistral": want one of [anthropic openai-chat openai-responses bedrock gemini canonical]`},
		{"strict", messages.Gemini, nil, export.Options{Strict: "very"}, `strict "very": want off, exact or nullable`},
	} {
		t.Run(c.about, func(t *testing.T) {
			_, err := export.Prepare(c.p, c.tools, c.o)
			if got := fmt.Sprint(err); c.want == "" && err != nil || c.want != "" && got != c.want {
				t.Errorf("got %s\nwant %s", got, c.want)
			}
		})
	}
}

// properties returns a JSON object with n properties of this schema.
func properties(n int, schema string) string {
	members := make([]string, n)
	for i := range members {
		members[i] = fmt.Sprintf(`"p%d":%s`, i, schema)
	}
	return "{" + strings.Join(members, ",") + "}"
}
