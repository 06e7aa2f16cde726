package glob

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"
)

func TestCompile(t *testing.T) {
	for _, c := range []struct {
		pattern string
		yes, no []string
	}{
		{"*.go", []string{"a.go", ".go"}, []string{"a/b.go", "a.gox"}},
		{"**/*.go", []string{"a.go", "a/b/c.go"}, []string{"a.goo"}},
		{"src/**", []string{"src/a", "src/a/b"}, []string{"src2/a", "a/src/b"}},
		{"src/**/x", []string{"src/x", "src/a/b/x"}, []string{"src/ax"}},
		{"**", []string{"a", "a/b"}, nil},
		{"a**b", []string{"ab", "axb"}, []string{"a/b"}},
		{"?", []string{"a", "é"}, []string{"/", "ab"}},
		{"*.{ts,tsx}", []string{"a.ts", "a.tsx"}, []string{"a.t", "a.{ts,tsx}"}},
		{"{a,b{c,d}}/*", []string{"a/x", "bc/x", "bd/x"}, []string{"b/x"}},
		{"{a,}b", []string{"ab", "b"}, nil},
		{"{src,**/lib}/a", []string{"src/a", "lib/a", "x/lib/a"}, []string{"x/src/a"}},
		{"{src/,}**/*.go", []string{"a.go", "src/a/b.go"}, nil},
		{"{a,**}b", []string{"ab", "xb"}, []string{"x/b"}},
		{"[{a,b}]", []string{"{", ",", "b"}, []string{"ab"}},
		{"[a-c]", []string{"b"}, []string{"d"}},
		{"[!a-c]", []string{"d"}, []string{"b", "/"}},
		{"[^a]", []string{"b"}, []string{"a"}},
		{"[]a]", []string{"]", "a"}, nil},
		{"[+-9]", []string{"+", "."}, []string{"/"}},
		{"[a-]", []string{"a", "-"}, nil},
		{`[\]]`, []string{"]"}, nil},
		{"[[:digit:]x]", []string{"7", "x"}, []string{"d"}},
		{"[z-a]", nil, []string{"a", "m", "z"}},
		{`\*`, []string{"*"}, []string{"a"}},
		{`\{a,b\}`, []string{"{a,b}"}, []string{"a"}},
		{"a,b", []string{"a,b"}, nil},
		{"a+(b).c", []string{"a+(b).c"}, []string{"aab.c"}},
		{"*", []string{"a\nb"}, nil},
	} {
		re, err := Compile(c.pattern)
		if err != nil {
			t.Errorf("%s: %v", c.pattern, err)
			continue
		}
		for _, name := range c.yes {
			if !re.MatchString(name) {
				t.Errorf("%s does not match %q", c.pattern, name)
			}
		}
		for _, name := range c.no {
			if re.MatchString(name) {
				t.Errorf("%s matches %q", c.pattern, name)
			}
		}
	}
	for _, bad := range []string{"[", "[a", "[!", `a\`, "{a", "{a,{b}", `[\`, "[a-"} {
		if _, err := Compile(bad); err == nil {
			t.Errorf("%q: want an error", bad)
		}
	}
}

// Compile matches as the library doublestar does. In doublestar [!a] also matches a slash, so
// the patterns here have [!/a].
func TestGlobAgreesWithDoublestar(t *testing.T) {
	pieces := []string{"a", "b", "/", "/", "*", "?", "{a,b}", "{b,a/b}", "[ab]", "[!/a]", "**/", "/**/"}
	names := []string{"a", "b", "/", "ab", "c"}
	random := rand.New(rand.NewPCG(1, 2))
	pick := func(from []string) string {
		var s strings.Builder
		for range 1 + random.IntN(6) {
			s.WriteString(from[random.IntN(len(from))])
		}
		return s.String()
	}
	compared, matched := 0, 0
	for range 200_000 {
		pattern, name := pick(pieces), strings.Trim(pick(names), "/")
		// Two differences are intended and left out: *** means ** here and * in doublestar,
		// and in doublestar a/** also matches the folder a. Empty path components are left
		// out, because no path has them.
		if strings.HasSuffix(pattern, "/**") {
			continue
		}
		if name == "" || strings.Contains(pattern, "***") || strings.Contains(pattern, "//") || strings.Contains(name, "//") || strings.HasSuffix(pattern, "/") {
			continue
		}
		want, err := doublestar.Match(pattern, name)
		if err != nil {
			t.Fatalf("%s: %v", pattern, err)
		}
		re, err := Compile(pattern)
		if err != nil {
			t.Fatalf("%s: %v", pattern, err)
		}
		compared++
		if want {
			matched++
		}
		if got := re.MatchString(name); got != want {
			t.Fatalf("%s on %s: got %v, doublestar says %v", pattern, name, got, want)
		}
	}
	t.Logf("%d pairs compared, %d of them match", compared, matched)
}

// Braces multiply: 40 pairs of braces stand for 2^40 patterns. Compile refuses such patterns.
func TestManyBracesAreRefused(t *testing.T) {
	for _, bad := range []string{strings.Repeat("{a,b}", 40), strings.Repeat("{a,b}", 9) + strings.Repeat("[", 900), strings.Repeat("{", 500) + strings.Repeat("}", 400), "{" + strings.Repeat(",", 999) + "}{a,b}"} {
		if _, err := Compile(bad); err == nil {
			t.Errorf("%.30s: want an error", bad)
		}
	}
	if _, err := Compile(strings.Repeat("{", 400) + strings.Repeat("}", 400)); err != nil {
		t.Error(err)
	}
	if _, err := Compile(strings.Repeat("{a,b}", 9)); err != nil {
		t.Error(err)
	}
}

func FuzzGlob(f *testing.F) {
	for _, seed := range []string{"**/*.go", "{a,b{c,d}}/[!x-z]*", `\*[]a]`, "[[:alpha:]]", "{,}", "***", "[/-0]"} {
		f.Add(seed, "a/b.go")
	}
	f.Fuzz(func(t *testing.T, pattern, name string) {
		if len(pattern) > 1000 {
			return
		}
		if re, err := Compile(pattern); err == nil {
			re.MatchString(name)
		}
		if utf8.ValidString(name) {
			re, err := Compile(Escape(name))
			if err != nil || !re.MatchString(name) {
				t.Errorf("%q escaped is %q, which does not match it: %v", name, Escape(name), err)
			}
		}
		_, _ = CompileIgnore(pattern)
	})
}
