package schemas

import (
	"strings"
	"testing"
)

func FuzzParseTemplate(f *testing.F) {
	for _, text := range []string{"", "/a/{b}/{c.d}", "{", "}", "{}", "{a}{b}", "{a..b}", "a{b"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		parsed, err := ParseTemplate(text)
		if err != nil {
			return
		}
		again, err := parsed.Expand(func(path []string) (string, error) { return "{" + strings.Join(path, ".") + "}", nil })
		if err != nil || again != text {
			t.Errorf("%q became %q, %v", text, again, err)
		}
		if strings.Count(text, "{") != len(parsed.Paths()) {
			t.Errorf("%q has the places %q", text, parsed.Paths())
		}
	})
}
