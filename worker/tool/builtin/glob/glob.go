// Package glob matches slash-separated paths against globs and .gitignore patterns.
//
// Permission rules use the library doublestar instead, which matches differently. In
// doublestar, a/** also matches a, [!a] matches a slash, and *** stops at slashes.
package glob

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/worker/tool/builtin/base"
)

// Globs and .gitignore patterns become regular expressions. These match in time linear in
// the path. A matcher with backtracking takes 2^n steps for n groups of braces (doublestar
// 4.10: 0.3 s for 22 groups).

const (
	maxAlternatives = 1000      // how many patterns the braces of one glob may expand to
	maxExpanded     = 100 << 10 // bytes of all these patterns together
)

// Pattern is a compiled glob.
type Pattern struct {
	*regexp.Regexp
	Levels int // the most components that a matching path can have; 0: any number
}

// Compile compiles a glob for slash-separated paths. ? and * stop at slashes. ** as a whole
// component stands for any number of folders. [a-z] and [!a-z] are classes, {a,b} are
// alternatives, and \ takes the next character literally.
func Compile(pattern string) (Pattern, error) {
	alternatives, err := expandBraces(pattern)
	if err != nil {
		return Pattern{}, err
	}
	levels, bounded := 0, true
	for i, a := range alternatives {
		levels = max(levels, 1+strings.Count(a, "/"))
		bounded = bounded && !strings.Contains(a, "**")
		g := globber{in: a}
		if alternatives[i], err = g.translate(); err != nil {
			return Pattern{}, err
		}
	}
	if !bounded {
		levels = 0
	}
	re, err := compilePaths(strings.Join(alternatives, "|"))
	return Pattern{re, levels}, err
}

// CompileIgnore compiles a .gitignore pattern, in which braces have no special meaning.
func CompileIgnore(pattern string) (*regexp.Regexp, error) {
	g := globber{in: pattern, git: true}
	expression, err := g.translate()
	if err != nil {
		return nil, err
	}
	return compilePaths(expression)
}

func compilePaths(expression string) (*regexp.Regexp, error) {
	re, err := regexp.Compile(`(?s)^(?:` + expression + `)$`)
	if err != nil {
		return nil, errors.New("too complex, or not UTF-8")
	}
	return re, nil
}

// expandBraces returns the patterns without braces to which a pattern expands. It replaces
// the first group of each pattern by each of its alternatives, until no pattern has a
// group.
func expandBraces(pattern string) ([]string, error) {
	var done []string
	size := 0
	for todo := []string{pattern}; len(todo) > 0; {
		next := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		before, group, after, err := firstGroup(next)
		switch {
		case err != nil:
			return nil, err
		case group == nil:
			done = append(done, next)
			size += len(next)
		default:
			for _, choice := range group {
				todo = append(todo, before+choice+after)
			}
		}
		if len(done)+len(todo) > maxAlternatives || size > maxExpanded {
			return nil, fmt.Errorf("its braces stand for more than %s patterns, or for too long ones", base.Thousands(maxAlternatives))
		}
	}
	return done, nil
}

// firstGroup splits a pattern around its first {a,b}. group is nil if there is none.
func firstGroup(pattern string) (before string, group []string, after string, err error) {
	depth, open, start := 0, 0, 0
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; {
		case c == '\\':
			i++
		case c == '[':
			class := globber{in: pattern, at: i}
			if err := class.class(); err != nil {
				return "", nil, "", err
			}
			i = class.at - 1
		case c == '{':
			if depth++; depth == 1 {
				open, start = i, i+1
			}
		case c == ',' && depth == 1:
			group = append(group, pattern[start:i])
			start = i + 1
		case c == '}' && depth > 0:
			if depth--; depth == 0 {
				return pattern[:open], append(group, pattern[start:i]), pattern[i+1:], nil
			}
		}
	}
	if depth > 0 {
		return "", nil, "", errors.New("a { without its }")
	}
	return pattern, nil, "", nil
}

// globber translates a pattern without braces from left to right.
type globber struct {
	in  string
	git bool
	at  int // the next byte of in
	out strings.Builder
}

const globSpecial = `*?[\`

func (g *globber) translate() (string, error) {
	for g.at < len(g.in) {
		var err error
		switch g.in[g.at] {
		case '*':
			g.stars()
		case '?':
			g.at++
			g.out.WriteString(`[^/]`)
		case '[':
			err = g.class()
		case '\\':
			if g.at++; g.at == len(g.in) {
				return "", errors.New(`a \ at the end`)
			}
			g.literal()
		default:
			g.literal()
		}
		if err != nil {
			return "", err
		}
	}
	return g.out.String(), nil
}

// literal copies the next byte, whatever it is, and all bytes up to the next special byte.
func (g *globber) literal() {
	end := len(g.in)
	if i := strings.IndexAny(g.in[g.at+1:], globSpecial); i >= 0 {
		end = g.at + 1 + i
	}
	g.out.WriteString(regexp.QuoteMeta(g.in[g.at:end]))
	g.at = end
}

// stars translates a run of *. If the run has two or more and is a whole component, it
// stands for any number of components, together with the slash after it.
func (g *globber) stars() {
	start := g.at
	for g.at < len(g.in) && g.in[g.at] == '*' {
		g.at++
	}
	starts := start == 0 || g.in[start-1] == '/' ||
		// Git removes the literal prefix of a pattern before it matches.
		g.git && !strings.ContainsAny(g.in[:start], globSpecial)
	ends := g.at == len(g.in) || g.in[g.at] == '/'
	switch {
	case g.at-start < 2 || !starts || !ends:
		g.out.WriteString(`[^/]*`)
	case g.at < len(g.in):
		g.at++
		g.out.WriteString(`(?:.*/)?`)
	default:
		g.out.WriteString(`.*`)
	}
}

var errClass = errors.New("a [ without its ]")

// class translates a [...]. It never matches a slash.
func (g *globber) class() error {
	rest := g.in[g.at+1:]
	all := len(rest)
	negated := strings.HasPrefix(rest, "!") || strings.HasPrefix(rest, "^")
	if negated {
		rest = rest[1:]
	}
	var set strings.Builder
	for first := true; first || !strings.HasPrefix(rest, "]"); first = false {
		if name := posixName.FindString(rest); name != "" { // RE2 spells the class in the same way
			set.WriteString(name)
			rest = rest[len(name):]
			continue
		}
		lo, n := classRune(rest)
		if n == 0 {
			return errClass
		}
		rest = rest[n:]
		hi := lo
		if len(rest) > 1 && rest[0] == '-' && rest[1] != ']' {
			if hi, n = classRune(rest[1:]); n == 0 {
				return errClass
			}
			rest = rest[1+n:]
		}
		classRange(&set, lo, hi)
	}
	g.at += 1 + all - len(rest) + 1
	switch {
	case negated:
		g.out.WriteString(`[^/` + set.String() + `]`)
	case set.Len() == 0: // only a slash, or a range that runs backwards
		g.out.WriteString(`[^\x00-\x{10FFFF}]`)
	default:
		g.out.WriteString(`[` + set.String() + `]`)
	}
	return nil
}

var posixName = regexp.MustCompile(`^\[:(?:alnum|alpha|blank|cntrl|digit|graph|lower|print|punct|space|upper|xdigit):\]`)

// classRune returns the first character of a class and the number of bytes that it takes in
// in. The number is 0 if there is no character.
func classRune(in string) (rune, int) {
	bare := strings.TrimPrefix(in, `\`)
	c, n := utf8.DecodeRuneInString(bare)
	if n == 0 {
		return 0, 0
	}
	return c, len(in) - len(bare) + n
}

// classRange adds the characters from lo to hi, without the slash.
func classRange(set *strings.Builder, lo, hi rune) {
	if lo <= '/' && '/' <= hi {
		classRange(set, lo, '/'-1)
		classRange(set, '/'+1, hi)
		return
	}
	if lo <= hi {
		fmt.Fprintf(set, `\x{%x}-\x{%x}`, lo, hi)
	}
}

// Split splits a pattern after the last slash that comes before its first special
// character.
func Split(pattern string) (literal, rest string) {
	special := strings.IndexAny(pattern, `*?[{\`)
	if special < 0 {
		special = len(pattern)
	}
	slash := strings.LastIndexByte(pattern[:special], '/')
	return pattern[:slash+1], pattern[slash+1:]
}

// Escape returns a pattern that matches exactly this path.
func Escape(name string) string {
	var out strings.Builder
	for _, c := range []byte(name) {
		if strings.IndexByte(`*?[]{},\`, c) >= 0 {
			out.WriteByte('\\')
		}
		out.WriteByte(c)
	}
	return out.String()
}
