package sdkcheck

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sort"
	"strconv"
	"testing"
)

// equal compares two values that are neither objects nor lists. If floats is set, two numbers
// are equal if their float64 values are, because some SDKs hold numbers as float64. The digits
// in our JSON are exact all the same.
func equal(want, got any, floats bool) bool {
	w, wok := want.(json.Number)
	g, gok := got.(json.Number)
	if !floats || !wok || !gok {
		return want == got
	}
	a, aerr := w.Float64()
	b, berr := g.Float64()
	return aerr == nil && berr == nil && a == b
}

// difference is one place where two JSON values differ.
type difference struct {
	path, what string
}

func (d difference) String() string { return d.path + ": " + d.what }

// diff lists where got, which an SDK wrote, differs from want, which the codec wrote. Numbers
// are compared by [equal].
func diff(t testing.TB, want, got []byte, floats bool) []difference {
	t.Helper()
	var out []difference
	walk("", decode(t, want), decode(t, got), floats, &out)
	return out
}

func walk(path string, want, got any, floats bool, out *[]difference) {
	report := func(path, format string, args ...any) {
		*out = append(*out, difference{path, fmt.Sprintf(format, args...)})
	}
	switch want := want.(type) {
	case map[string]any:
		got, ok := got.(map[string]any)
		if !ok {
			report(path, "an object became %T", got)
			return
		}
		for _, key := range keys(want, got) {
			w, ours := want[key]
			g, theirs := got[key]
			switch at := path + "." + key; {
			case !theirs:
				report(at, "lost: the SDK does not know %v", w)
			case !ours:
				report(at, "added: the SDK wants it, as %v", g)
			default:
				walk(at, w, g, floats, out)
			}
		}
	case []any:
		got, ok := got.([]any)
		if !ok || len(got) != len(want) {
			report(path, "a list of %d became %v", len(want), got)
			return
		}
		for i := range want {
			walk(path+"["+strconv.Itoa(i)+"]", want[i], got[i], floats, out)
		}
	default:
		if !equal(want, got, floats) {
			report(path, "%#v became %#v", want, got)
		}
	}
}

func keys(maps ...map[string]any) []string {
	seen := map[string]bool{}
	var out []string
	for _, m := range maps {
		for key := range m {
			if !seen[key] {
				seen[key] = true
				out = append(out, key)
			}
		}
	}
	sort.Strings(out)
	return out
}

func decode(t testing.TB, raw []byte) any {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("decode %.200s: %v", raw, err)
	}
	return v
}

// same fails the test for every difference between want and got.
func same(t testing.TB, want, got []byte, floats bool) {
	t.Helper()
	for _, d := range diff(t, want, got, floats) {
		t.Errorf("%s", d)
	}
}

// elements returns the elements of a JSON list.
func elements(t testing.TB, raw []byte) []json.RawMessage {
	t.Helper()
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		t.Fatalf("%.200s is no list: %v", raw, err)
	}
	return list
}

// member returns the value under a path of keys, or nil if there is none.
func member(raw json.RawMessage, path ...string) json.RawMessage {
	for _, key := range path {
		var m map[string]json.RawMessage
		if json.Unmarshal(raw, &m) != nil {
			return nil
		}
		raw = m[key]
	}
	return raw
}

func text(raw json.RawMessage) string {
	var s string
	_ = json.Unmarshal(raw, &s)
	return s
}

func marshal(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatalf("the SDK cannot write its own %T: %v", v, err)
	}
	return b
}
