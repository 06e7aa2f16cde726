package rawjson

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestCheckSyntax(t *testing.T) {
	deep := func(inner string) string {
		return strings.Repeat(`{"a":[`, 50_000) + inner + strings.Repeat("]}", 50_000)
	}
	for _, tt := range []struct{ name, in, want string }{
		{"plain", ` {"a":[1,2.50,"x",null,true]} `, ""},
		{"no UTF-8", "\"\xff\"", ""},
		{"a key twice", `{"a":1,"a":2}`, ""},
		{"a large number", `1e1000000`, ""},
		{"over the bound", strings.Repeat("[", 129) + strings.Repeat("]", 129), ""},
		{"deep", deep(`{"text":"]}\\\"{["},7`), ""},
		{"deep and after it", deep("1") + " 1", "not valid JSON"},
		{"deep and cut off", deep("1")[:100_000], "ends in the middle of a value, after 100000 bytes"},
		{"brackets only", strings.Repeat("[", 1<<20), "ends in the middle"},
		{"closed by others", strings.Repeat("[", 20_000) + strings.Repeat("}", 20_000), "not valid JSON"},
		{"wrong deep inside", deep("1 2"), "not valid JSON"},
		{"a number before a deep value", deep(strings.Repeat("1[", 10_000) + strings.Repeat("]", 10_000)), "not valid JSON"},
		{"cut off", `{"a":`, "ends in the middle"},
		{"two values", `{} {}`, "more than one JSON value"},
		{"nothing", ``, "ends in the middle"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := CheckSyntax([]byte(tt.in)); (got == nil) != (tt.want == "") || got != nil && !strings.Contains(got.Error(), tt.want) {
				t.Errorf("CheckSyntax(%.60s) = %v, want %q", tt.in, got, tt.want)
			}
		})
	}
}

// FuzzCheckDeep: checkDeep checks a text in pieces of a few levels. It has to accept exactly
// the texts that json.Valid accepts.
func FuzzCheckDeep(f *testing.F) {
	for _, seed := range []string{`[[[[[1]]]]]`, `{"a":{"b":[{"c":"]}"}]}}`, `[[[1[[1]]]]]`, `[[[}}}`, `]]]][[[[`, `[["\\"]]`, `[[["\"]]]]`, `[[1] [2]]`, `{[[]]:1}`} {
		f.Add([]byte(seed), byte(2))
		f.Add([]byte(seed), byte(3))
	}
	f.Fuzz(func(t *testing.T, in []byte, levels byte) {
		if levels == 0 {
			return
		}
		if err := checkDeep(in, int(levels)); (err == nil) != json.Valid(in) {
			t.Errorf("checkDeep(%q, %d) = %v, json.Valid is %v", in, levels, err, json.Valid(in))
		}
	})
}

func TestMembers(t *testing.T) {
	members, err := Members([]byte(` { "a" : 1 , "\u0062":[ {"x":1} , 2 ] , "c":"}" , "e":{} } `))
	want := map[string]string{"a": "1", "b": `[ {"x":1} , 2 ]`, "c": `"}"`, "e": "{}"}
	if err != nil || len(members) != len(want) {
		t.Fatalf("got %s, %v", members, err)
	}
	for name, value := range want {
		if string(members[name]) != value {
			t.Errorf("%s is %s, want %s", name, members[name], value)
		}
	}
	for in, twice := range map[string]string{
		`{"a":1,"a":2,"b":3}`:                `"a"`,
		`{"b":3,"a":1,"\u0061":2,"a":[4]}`:   `"a"`,
		`{"a":1,"c":1,"c":2,"a":2,"b":3}`:    `"c"`,
		`{"a":{"c":1},"b":3,"a":{},"d":{}} `: `"a"`,
	} {
		members, err := Members([]byte(in))
		if err == nil || !strings.Contains(err.Error(), "key "+twice+" appears twice") || members["a"] != nil || string(members["b"]) != "3" {
			t.Errorf("Members(%s) = %s, %v; want b alone and that %s appears twice", in, members, err, twice)
		}
	}
	for _, in := range []string{``, `[]`, `null`, `"{}"`} {
		if _, err := Members([]byte(in)); err == nil || !strings.Contains(err.Error(), "want an object") {
			t.Errorf("Members(%s): %v", in, err)
		}
	}
}

// Members and Elements return the same values as encoding/json.
func FuzzMembers(f *testing.F) {
	for _, seed := range []string{`{"a":1,"b":[1,{"c":"\ud800"}]}`, `[1,"]",{},[],null]`, `{}`, `[]`, ` [ 1 ] `, `{"":{"a":-1.5e3}}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if Check(in) != nil { // Check refuses a key that appears twice
			return
		}
		switch TypeOf(in) {
		case "an object":
			got, err := Members(in)
			var want map[string]json.RawMessage
			if unmarshal := json.Unmarshal(in, &want); unmarshal != nil || err != nil || len(got) != len(want) {
				t.Fatalf("Members(%q) = %q, %v; want %q", in, got, err, want)
			}
			for name, value := range want {
				if string(got[name]) != string(value) {
					t.Errorf("%q is %q, want %q", name, got[name], value)
				}
			}
		case "an array":
			got := Elements(in)
			var want []json.RawMessage
			if err := json.Unmarshal(in, &want); err != nil || len(got) != len(want) {
				t.Fatalf("Elements(%q) = %q, want %q", in, got, want)
			}
			for i, value := range want {
				if string(got[i]) != string(value) {
					t.Errorf("element %d is %q, want %q", i, got[i], value)
				}
			}
		}
	})
}
