package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/big"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/schemas"
)

type (
	address struct {
		Street string `json:"street" jsonschema:"and number"`
		City   string `json:"city,omitempty"`
	}
	// Address is exported, so that it can be embedded as a pointer.
	Address address
	base    struct {
		ID int `json:"id"`
	}
	node struct {
		Children []node `json:"children"`
	}
	chain struct {
		Name string `json:"name"`
		Next *chain `json:"next,omitempty"`
	}
	hold struct {
		Chain chain
	}
	mood string
	blob []byte
	// switcher has its own JSON decoding: true and "on" set On.
	switcher struct{ On bool }
)

func (s *switcher) UnmarshalJSON(b []byte) error {
	s.On = string(b) == "true" || string(b) == `"on"`
	return nil
}

// shape is an input type, with values that fit its schema and values that do not.
type shape struct {
	schema   string // of the type
	fit, not []string
	decode   func(json.RawMessage) (any, error)
	in       reflect.Type
}

func of[T any](schema string, fit, not []string) shape {
	return shape{schema, fit, not, func(b json.RawMessage) (any, error) { return decode[T](b) }, reflect.TypeFor[T]()}
}

var shapes = map[string]shape{
	"nothing": of[struct{}](`{"type":"object","additionalProperties":false}`, []string{`{}`}, []string{`{"a":1}`, `[]`, `null`}),
	"scalars": of[struct {
		Text  string  `json:"text" jsonschema:"to shout"`
		Small int8    `json:"small"`
		Size  uint32  `json:"size,omitempty"`
		Ratio float64 `json:"ratio,omitzero"`
		Sure  bool
		mine  int
		Skip  int `json:"-"`
	}](`{"type":"object","properties":{"Sure":{"type":"boolean"},"ratio":{"type":"number"},"size":{"maximum":4294967295,"minimum":0,"type":"integer"},
		"small":{"maximum":127,"minimum":-128,"type":"integer"},"text":{"description":"to shout","type":"string"}},
		"required":["text","small","Sure"],"additionalProperties":false}`,
		[]string{`{"text":"","small":-128,"Sure":false}`, `{"text":"a","small":1,"size":4294967295,"ratio":1e3,"Sure":true}`},
		[]string{`{"text":"a","small":128,"Sure":true}`, `{"text":"a","small":1,"sure":true}`, `{"text":"a","small":1}`, `{"text":1,"small":1,"Sure":true}`,
			`{"text":"a","small":1,"Sure":true,"mine":1}`, `{"text":"a","small":1,"Sure":true,"Skip":1}`, `{"text":null,"small":1,"Sure":true}`}),
	"nested": of[struct {
		From address   `json:"from"`
		To   []address `json:"to"`
	}](`{"type":"object","properties":{
		"from":{"type":"object","properties":{"city":{"type":"string"},"street":{"description":"and number","type":"string"}},"required":["street"],"additionalProperties":false},
		"to":{"type":"array","items":{"type":"object","properties":{"city":{"type":"string"},"street":{"description":"and number","type":"string"}},"required":["street"],"additionalProperties":false}}},
		"required":["from","to"],"additionalProperties":false}`,
		[]string{`{"from":{"street":"a"},"to":[]}`, `{"from":{"street":"a","city":"b"},"to":[{"street":"c"}]}`},
		[]string{`{"from":{},"to":[]}`, `{"from":{"street":"a"},"to":null}`, `{"from":{"street":"a"},"to":[{"street":"b","zip":1}]}`, `{"from":null,"to":[]}`}),
	"maps and slices": of[struct {
		Labels map[string]string  `json:"labels,omitempty"`
		Matrix [][]float64        `json:"matrix,omitempty"`
		By     map[string]address `json:"by,omitempty"`
		Three  [3]int             `json:"three,omitempty"`
		Any    map[string]any     `json:"any,omitempty"`
	}](`{"type":"object","properties":{"any":{"type":"object","additionalProperties":true},
		"by":{"type":"object","additionalProperties":{"type":"object","properties":{"city":{"type":"string"},"street":{"description":"and number","type":"string"}},"required":["street"],"additionalProperties":false}},
		"labels":{"type":"object","additionalProperties":{"type":"string"}},
		"matrix":{"type":"array","items":{"type":"array","items":{"type":"number"}}},
		"three":{"type":"array","items":{"type":"integer"},"maxItems":3,"minItems":3}},"additionalProperties":false}`,
		[]string{`{}`, `{"labels":{"a":"b"},"matrix":[[1,2.5],[]],"by":{"x":{"street":"y"}},"three":[1,2,3],"any":{"a":[null,{}]}}`},
		[]string{`{"labels":{"a":1}}`, `{"matrix":[1]}`, `{"by":{"x":{}}}`, `{"three":[1,2]}`, `{"three":[1,2,3,4]}`, `{"matrix":null}`}),
	"pointers": of[struct {
		Count *int     `json:"count"`
		Where *address `json:"where,omitempty"`
		Flag  **bool   `json:"flag,omitempty"`
	}](`{"type":"object","properties":{"count":{"type":["null","integer"]},"flag":{"type":["null","boolean"]},
		"where":{"type":["null","object"],"properties":{"city":{"type":"string"},"street":{"description":"and number","type":"string"}},"required":["street"],"additionalProperties":false}},
		"required":["count"],"additionalProperties":false}`,
		[]string{`{"count":null}`, `{"count":1,"where":null,"flag":null}`, `{"count":1,"where":{"street":"a"},"flag":true}`},
		[]string{`{}`, `{"count":"1"}`, `{"count":1,"where":{}}`}),
	"embedded": of[struct {
		base
		*Address
		Note string `json:"note"`
	}](`{"type":"object","properties":{"city":{"type":"string"},"id":{"type":"integer"},"note":{"type":"string"},"street":{"description":"and number","type":"string"}},
		"required":["id","street","note"],"additionalProperties":false}`,
		[]string{`{"id":1,"street":"s","note":"n"}`}, []string{`{"id":1,"note":"n"}`, `{"base":{"id":1},"street":"s","note":"n"}`}),
	"types that read themselves": of[struct {
		At    time.Time       `json:"at,omitzero"`
		Until *time.Time      `json:"until,omitempty"`
		Wait  time.Duration   `json:"wait,omitempty"`
		Exact json.Number     `json:"exact,omitempty"`
		Raw   json.RawMessage `json:"raw,omitempty"`
		Maybe *switcher       `json:"maybe,omitempty"`
		Big   *big.Int        `json:"big,omitempty"`
		Addr  netip.Addr      `json:"addr,omitzero"`
		Bytes []byte          `json:"bytes,omitempty"`
		Blob  blob            `json:"blob,omitempty"`
		Mood  mood            `json:"mood,omitempty"`
		Any   any             `json:"any,omitempty"`
	}](`{"type":"object","properties":{"addr":{"type":"string"},"any":true,"at":{"format":"date-time","type":"string"},
		"big":{"type":["null","boolean","number","string","array","object"]},"blob":{"contentEncoding":"base64","type":"string"},"bytes":{"contentEncoding":"base64","type":"string"},
		"exact":{"type":"number"},"maybe":{"type":["null","boolean","number","string","array","object"]},"mood":{"type":"string"},
		"raw":{"type":["null","boolean","number","string","array","object"]},"until":{"format":"date-time","type":["null","string"]},
		"wait":{"description":"nanoseconds","type":"integer"}},"additionalProperties":false}`,
		[]string{`{}`, `{"at":"2026-01-02T03:04:05Z","until":null,"wait":5,"exact":0.10,"raw":[1,{"a":null}],"maybe":true,"big":12345678901234567890123,"addr":"10.0.0.1","bytes":"AAEC","blob":"AA==","mood":"good","any":null}`},
		[]string{`{"at":"today"}`, `{"exact":"1"}`, `{"bytes":[1]}`, `{"addr":7}`, `{"wait":"5s"}`}),
	"a map": of[map[string]int](`{"type":"object","additionalProperties":{"type":"integer"}}`, []string{`{}`, `{"a":1}`}, []string{`{"a":"b"}`, `[]`}),
}

// Values that fit the schema of a type are decoded into the type. The schema refuses all other
// values.
func TestInputSchema(t *testing.T) {
	for name, s := range shapes {
		t.Run(name, func(t *testing.T) {
			got, err := inputSchema(s.in)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(canonical(t, s.schema), canonical(t, string(got))); diff != "" {
				t.Error(diff)
			}
			compiled, err := schemas.Compile(got)
			if err != nil {
				t.Fatal(err)
			}
			for _, value := range s.fit {
				if err := compiled.Validate([]byte(value)); err != nil {
					t.Errorf("%s does not fit: %v", value, err)
				}
				if _, err := s.decode([]byte(value)); err != nil {
					t.Errorf("%s fits and is not read: %v", value, err)
				}
			}
			for _, value := range s.not {
				if compiled.Validate([]byte(value)) == nil {
					t.Errorf("%s fits", value)
				}
			}
		})
	}
}

// A value that encoding/json writes fits the schema of its type, and is read back unchanged.
func TestInputSchemaAgreesWithJSON(t *testing.T) {
	type everything struct {
		Nested  address            `json:"nested"`
		List    []address          `json:"list,omitempty"`
		Map     map[string]address `json:"map,omitempty"`
		Pointer *address           `json:"pointer,omitempty"`
		Null    *address           `json:"null"`
		At      time.Time          `json:"at"`
		Exact   json.Number        `json:"exact"`
		Bytes   []byte             `json:"bytes"`
		Addr    netip.Addr         `json:"addr"`
		base
	}
	value := everything{
		Nested: address{"a", "b"}, List: []address{{"c", ""}}, Map: map[string]address{"k": {"d", "e"}}, Pointer: &address{"f", ""},
		At: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), Exact: "123456789012345678901234567890.10", Bytes: []byte{0, 255}, Addr: netip.MustParseAddr("::1"), base: base{7},
	}
	schema, err := inputSchema(reflect.TypeFor[everything]())
	if err != nil {
		t.Fatal(err)
	}
	compiled, err := schemas.Compile(schema)
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	if err := compiled.Validate(body); err != nil {
		t.Errorf("%s: %v", body, err)
	}
	got, err := decode[everything](body)
	if err != nil || !reflect.DeepEqual(got, value) {
		t.Errorf("got %+v, %v, want %+v", got, err, value)
	}
}

// twice is a struct type with two fields of one JSON name. It is made by reflection because go
// vet refuses such a type in the source.
var twice = reflect.StructOf([]reflect.StructField{
	{Name: "A", Type: reflect.TypeFor[int](), Tag: `json:"a"`},
	{Name: "B", Type: reflect.TypeFor[int](), Tag: `json:"a"`},
})

func TestInputsWithoutASchema(t *testing.T) {
	const instead = "; change the type, or write the schema with worker.InputSchema"
	for _, tt := range []struct {
		in   any
		want string
	}{
		{node{}, "worker.node.Children[]: worker.node contains itself, which the schema made from a type cannot say" + instead},
		{hold{}, "worker.hold.Chain.Next: worker.chain contains itself, which the schema made from a type cannot say" + instead},
		{"", "its input is a string, and the arguments of a call are an object: want a struct" + instead},
		{[]int{}, "its input is a []int, and the arguments of a call are an object: want a struct" + instead},
		{time.Time{}, "its input is a time.Time, and the arguments of a call are an object: want a struct" + instead},
		{switcher{}, "its input worker.switcher reads its JSON itself, so its type does not show what fits" + instead},
		{struct{ time.Time }{}, "its input struct { time.Time } reads its JSON itself, so its type does not show what fits" + instead},
		{struct{ F func() }{}, "its input has no JSON Schema: ForType(struct { F func() }): type func() is unsupported by jsonschema" + instead},
		{struct{ E error }{}, "struct { E error }.E: nothing can be read into the interface error" + instead},
		{map[int]string{}, "its input has no JSON Schema: ForType(map[int]string): unsupported map key type int" + instead},
		{struct {
			N int `json:",string"`
		}{}, "N: the option string of the json tag is not supported; use a string"},
		{reflect.Zero(twice).Interface(), `B: another field is "a" in JSON already`},
		{struct {
			base `json:"base"`
		}{}, "base: an embedded field is a struct without a name in its json tag; give the field a name of its own"},
		{struct {
			base `json:"-"`
		}{}, "base: an embedded field is a struct without a name in its json tag; give the field a name of its own"},
		{struct{ *base }{}, "base: encoding/json cannot make an embedded pointer to an unexported struct; embed the struct"},
		{struct{ mood }{}, "mood: an embedded field is a struct without a name in its json tag; give the field a name of its own"},
		{struct {
			A int `jsonschema:"max=3"`
		}{}, `its input has no JSON Schema: ForType(struct { A int "jsonschema:\"max=3\"" }): tag must not begin with 'WORD=': "max=3"` + instead},
	} {
		_, err := inputSchema(reflect.TypeOf(tt.in))
		if err == nil || !strings.HasSuffix(err.Error(), tt.want) {
			t.Errorf("%T: got %v, want %s", tt.in, err, tt.want)
		}
	}
}

// A schema is larger than a tools file may have: New refuses it.
func TestInputSchemaHasBounds(t *testing.T) {
	type ten struct{ A, B, C, D, E, F, G, H, I, J string }
	type hundred struct{ A, B, C, D, E, F, G, H, I, J ten }
	type thousand struct{ A, B, C, D, E, F, G, H, I, J hundred }
	type more struct{ A, B, C, D thousand }
	_, err := New("x", "", Read, func(context.Context, more) (string, error) { return "", nil }).Definition()
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("objects (limit %d)", schemas.MaxSchemaObjects)) {
		t.Errorf("got %v", err)
	}
}

func canonical(t *testing.T, body string) string {
	t.Helper()
	c, err := rawjson.Canonical([]byte(body))
	if err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	var out bytes.Buffer
	_ = json.Indent(&out, c, "", " ")
	return out.String()
}
