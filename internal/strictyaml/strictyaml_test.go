package strictyaml

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFind(t *testing.T) {
	f := Parse("f", []byte("tools:\n- name: a\n  \"a/b c\": [1, {x: y}]\n"), 0)
	if err := f.Err(); err != nil {
		t.Fatal(err)
	}
	for pointer, want := range map[string]struct {
		value, key Position
		path       string
		found      bool
	}{
		"":                     {Position{1, 1}, Position{1, 1}, "", true},
		"/tools":               {Position{2, 1}, Position{1, 1}, "tools", true},
		"/tools/0/name":        {Position{2, 9}, Position{2, 3}, "tools[0].name", true},
		"/tools/0/a~1b c/1/x":  {Position{3, 20}, Position{3, 17}, `tools[0]."a/b c"[1].x`, true},
		"/tools/1":             {Position{2, 1}, Position{1, 1}, "tools", false},
		"/tools/0/name/deeper": {Position{2, 9}, Position{2, 3}, "tools[0].name", false},
		"/tool":                {Position{1, 1}, Position{1, 1}, "", false},
	} {
		at, path, found := f.Root.Find(pointer)
		if at.Position != want.value || at.KeyAt != want.key || path != want.path || found != want.found {
			t.Errorf("%q: at %v, key at %v, path %s, found %v; want %+v", pointer, at.Position, at.KeyAt, path, found, want)
		}
	}
}

// Numbers keep their digits. YAML reads some JSON numbers as text: such a node counts as
// number and as text.
func TestScalars(t *testing.T) {
	f := Parse("f", []byte("[010, 0x1F, 1.50, 1e3, '1e3', 99999999999999999999, true, ~, a]"), 0)
	if err := f.Err(); err != nil {
		t.Fatal(err)
	}
	want := []Node{
		{Position{1, 2}, json.Number("8"), "010", false}, {Position{1, 7}, json.Number("31"), "0x1F", false},
		{Position{1, 13}, json.Number("1.50"), "1.50", false}, {Position{1, 19}, json.Number("1e3"), "1e3", true},
		{Position{1, 24}, "1e3", "1e3", true}, {Position{1, 31}, json.Number("99999999999999999999"), "99999999999999999999", true},
		{Position{1, 53}, true, "true", false}, {Position{1, 59}, nil, "", false}, {Position{1, 62}, "a", "a", true},
	}
	if diff := cmp.Diff(want, f.Root.Value); diff != "" {
		t.Error(diff)
	}
}

func TestMistakesInTheOrderOfTheFile(t *testing.T) {
	f := Parse("f", []byte("a: &x 1\nb: !!str 2\na: *x\n"), 0)
	f.Add(Position{1, 1}, "is %s", "first")
	want := "f:1:1: is first\nf:1:4: anchors and aliases are not read; write the value out\n" +
		"f:2:4: tags are not read; write the value without it\nf:3:1: key \"a\" is there twice, first in line 1"
	if got := f.Err().Error(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestBracketsAreCounted(t *testing.T) {
	if err := Parse("f", []byte("["+strings.Repeat("[],", 9)+"]"), 10).Err(); err != nil {
		t.Error(err)
	}
	if err := Parse("f", []byte("["+strings.Repeat("[],", 10)+"]"), 10).Err(); err == nil || err.Error() != "f:1:29: more than 10 brackets" {
		t.Error(err)
	}
}

func TestNearest(t *testing.T) {
	names := []string{"timeout", "tier", "tool"}
	for misspelt, want := range map[string]string{"timeuot": "timeout", "tol": "tool", "colour": "", "": ""} {
		if got := Nearest(misspelt, names); got != want {
			t.Errorf("%q: got %q, want %q", misspelt, got, want)
		}
	}
}

// FuzzParse: no file makes the reader panic. A file without mistakes is converted to JSON,
// with a position for every value.
func FuzzParse(f *testing.F) {
	f.Add("a: &b [*b]\n? {x: y} : z\n--- 1")
	f.Add("a: [1, 0x10, {b: \"c\\n\"}]\nd: |\n  e\n")
	f.Fuzz(func(t *testing.T, data string) {
		file := Parse("f", []byte(data), 0)
		if file.Err() != nil {
			return
		}
		if _, err := json.Marshal(file.Root.JSON()); err != nil {
			t.Error(err)
		}
		if file.Root.Value != nil && file.Root.Line < 1 {
			t.Errorf("starts in line %d", file.Root.Line)
		}
	})
}
