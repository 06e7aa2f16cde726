package rawjson

import (
	"encoding/json"
	"testing"
)

func TestAt(t *testing.T) {
	value := json.RawMessage(` {"a/b": [1e400, {"~": "x"}], "": {"": 2}} `)
	for pointer, want := range map[string]string{
		"": `{"a/b": [1e400, {"~": "x"}], "": {"": 2}}`, "/a~1b/0": "1e400", "/a~1b/1/~0": `"x"`, "/": `{"": 2}`, "//": "2",
	} {
		if got, ok := At(value, pointer); !ok || string(got) != want {
			t.Errorf("%q: got %s, %v, want %s", pointer, got, ok, want)
		}
	}
	for _, pointer := range []string{"a", "/a", "/a~1b/2", "/a~1b/00", "/a~1b/-1", "/a~1b/0/x", "/a~1b/+1"} {
		if got, ok := At(value, pointer); ok {
			t.Errorf("%q: got %s, want nothing", pointer, got)
		}
	}
}
