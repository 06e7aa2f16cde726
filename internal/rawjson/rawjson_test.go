package rawjson_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/rawjson"
)

func TestCheck(t *testing.T) {
	for _, tt := range []struct{ name, in, want string }{
		{"plain", `{"a":[1,2.50,"x",null,true]}`, ""},
		{"big integer", `9007199254740993`, ""},
		{"1e400", `1e400`, ""},
		{"lone surrogate", `"\ud800"`, ""},
		{"same key in two objects", `[{"a":1},{"a":2}]`, ""},
		{"duplicate key", `{"a":1,"b":{"c":1,"c":2}}`, `key "c" appears twice`},
		{"duplicate key by escape", `{"a":1,"\u0061":2}`, `key "a" appears twice`},
		{"exponent bomb", `[1e10000000]`, "exponent beyond 400"},
		{"negative exponent bomb", `[1e-401]`, "exponent beyond 400"},
		{"digits bomb", strings.Repeat("9", 1001), "1001 characters"},
		{"depth bomb", strings.Repeat("[", 129) + strings.Repeat("]", 129), "nested more than 128"},
		{"hostile depth", strings.Repeat("[", 1<<20), "nested more than 128 deep"},
		{"as deep as allowed", strings.Repeat("[", 128) + strings.Repeat("]", 128), ""},
		{"two values", `{} {}`, "more than one JSON value"},
		{"cut off", `{"a":[1,`, "ends in the middle"},
		{"nothing", ``, "ends in the middle"},
		{"bad UTF-8", "\"\xff\"", "not valid UTF-8"},
		{"trailing comma", `[1,]`, "invalid character"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := rawjson.Check([]byte(tt.in))
			if got := errText(err); tt.want == "" && err != nil || !strings.Contains(got, tt.want) {
				t.Errorf("Check(%.60s) = %q, want %q", tt.in, got, tt.want)
			}
		})
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestCheckManyKeys(t *testing.T) {
	for _, n := range []int{1, 15, 16, 17, 18, 100} {
		members := make([]string, n)
		for i := range members {
			members[i] = fmt.Sprintf(`"k%d":[]`, i)
		}
		if err := rawjson.Check([]byte("{" + strings.Join(members, ",") + "}")); err != nil {
			t.Errorf("%d different keys: %v", n, err)
		}
		again := append(members, members[n/2])
		if err := rawjson.Check([]byte("{" + strings.Join(again, " , ") + "}")); err == nil {
			t.Errorf("%d keys and one again: accepted", n)
		}
	}
}

// twin does the same as Check in a slow and simple way: it decodes token by token and
// remembers the keys of every open object.
func twin(in []byte) bool {
	dec := json.NewDecoder(bytes.NewReader(in))
	dec.UseNumber()
	var value func(depth int) bool
	value = func(depth int) bool {
		tok, err := dec.Token()
		if err != nil {
			return false
		}
		switch tok := tok.(type) {
		case json.Number:
			_, exp, found := strings.Cut(strings.ToLower(string(tok)), "e")
			n, err := strconv.Atoi(exp)
			return len(tok) <= rawjson.MaxDigits && (!found || err == nil && n >= -rawjson.MaxExponent && n <= rawjson.MaxExponent)
		case json.Delim:
			keys := map[string]bool{}
			for dec.More() {
				if tok == '{' {
					key, err := dec.Token()
					name, ok := key.(string)
					if err != nil || !ok || keys[name] {
						return false
					}
					keys[name] = true
				}
				if depth == rawjson.MaxDepth || !value(depth+1) {
					return false
				}
			}
			_, err := dec.Token()
			return err == nil && depth < rawjson.MaxDepth
		}
		return true
	}
	return utf8.Valid(in) && json.Valid(in) && value(0)
}

// Check and its slow twin agree on everything.
func FuzzCheck(f *testing.F) {
	for _, s := range []string{`{"a":1}`, `[1e5,"\ud800"]`, `{"a":1,"a":2}`, `nul`, `[[[]]]`, `-0`, `1 2`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if err := rawjson.Check(in); (err == nil) != twin(in) {
			t.Errorf("Check(%q) = %v, the twin says %v", in, err, twin(in))
		}
	})
}

func TestNumbersKeepTheirDigits(t *testing.T) {
	in := `{"z":9007199254740993,"a":1e400,"m":0.1000000000000000055511151231257827}`
	want := `{"a":1e400,"m":0.1000000000000000055511151231257827,"z":9007199254740993}`
	got, err := rawjson.Canonical([]byte(in))
	if err != nil || string(got) != want {
		t.Errorf("Canonical(%s) = %s, err %v; want %s", in, got, err, want)
	}
}

func TestMarshalLeavesHTMLAlone(t *testing.T) {
	if got := string(rawjson.MustMarshal(map[string]any{"a": "<b>&", "r": json.RawMessage(`"<>"`)})); got != `{"a":"<b>&","r":"<>"}` {
		t.Errorf("got %s", got)
	}
}

// decodeFirst returns what encoding/json decodes, with numbers as text.
func decodeFirst(in []byte) (v any, err error) {
	dec := json.NewDecoder(bytes.NewReader(in))
	dec.UseNumber()
	return v, dec.Decode(&v)
}

// Canonical and Tree agree with encoding/json.
func FuzzTree(f *testing.F) {
	for _, s := range []string{
		`{"b":[1, 2.50,"x",null,true ,false],"a":{}}`, `{"a":1,"a":2}`, `{"\u0061":1,"a":{"x":[]}}`, `1 2`, `[1,`, ` "\ud800\u2028<&>" `,
		"{\"ÿ\":1,\"þ\":2}", `{"é":1,"z":2,"\n":3}`, "\"\u007f\u2029\"", `-0`, `{"a" : [ ] , "b" : { } }`, `1E+5`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		v, err := decodeFirst(in)
		got, gotErr := rawjson.Canonical(in)
		if (err == nil) != (gotErr == nil) {
			t.Fatalf("Canonical(%q) has the error %v, encoding/json has %v", in, gotErr, err)
		}
		if err != nil {
			return
		}
		if want, _ := rawjson.Marshal(v); !bytes.Equal(got, want) {
			t.Errorf("Canonical(%q) = %q, want %q", in, got, want)
		}
		if rawjson.Check(in) == nil {
			if got := rawjson.Tree(in); !reflect.DeepEqual(got, v) {
				t.Errorf("Tree(%q) = %#v, want %#v", in, got, v)
			}
		}
	})
}
