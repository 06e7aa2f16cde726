package permission

import (
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// command holds the words of a simple command.
type command []word

// word is a word of a command after its quotes are removed. If it is unknown, its value is
// in variables, substitutions or file names that only the running shell knows.
type word struct {
	text  string // the whole value; only if the word is known
	known bool
	many  bool   // an unknown word that may become several words, or none
	files bool   // the unknown word may become several words, but only through file names
	lead  string // the literal text at the beginning of an unknown word
	tail  string // the literal text at the end of an unknown word
}

// exact returns a known word.
func exact(text string) word { return word{text: text, known: true} }

// base returns the word as the name of a program, without the folder. ok is false if the
// name is unknown.
func (w word) base() (name string, ok bool) {
	if w.known {
		return path.Base(w.text), true
	}
	if at := strings.LastIndexByte(w.tail, '/'); at >= 0 && !w.many && at+1 < len(w.tail) {
		return w.tail[at+1:], true
	}
	return "", false
}

// option reports whether the word begins with a dash, or may do so.
func (w word) option() bool {
	if w.known {
		return strings.HasPrefix(w.text, "-")
	}
	return w.many || w.lead == "" && w.tail == "" || strings.HasPrefix(w.lead, "-")
}

// may reports whether the value of an unknown word may match one word of a pattern.
func (w word) may(pattern string) bool {
	return strings.Contains(pattern, "*") || strings.HasPrefix(pattern, w.lead) && strings.HasSuffix(pattern, w.tail) &&
		len(pattern) >= len(w.lead)+len(w.tail)
}

// wordReader reads words. It knows to which variables the text itself assigns values.
type wordReader struct{ assigned map[string]bool }

func (r wordReader) words(list []*syntax.Word) command {
	c := make(command, len(list))
	for i, w := range list {
		c[i] = r.word(w)
	}
	return c
}

// word returns a word without its quotes.
func (r wordReader) word(w *syntax.Word) word {
	if w == nil {
		return exact("")
	}
	out := word{known: true}
	var text, unquoted strings.Builder
	unknown := func() {
		if out.known {
			out.known, out.lead = false, text.String()
		}
		text.Reset()
	}
	for i, part := range w.Parts {
		switch p := part.(type) {
		case *syntax.Lit:
			value := p.Value
			if i == 0 && strings.HasPrefix(value, "~") { // someone's home folder
				unknown()
				_, value, _ = strings.Cut(value, "/")
				if value != "" {
					value = "/" + value
				}
			}
			unquoted.WriteString(value)
			text.WriteString(unescape(value, ""))
		case *syntax.SglQuoted:
			if p.Dollar && strings.Contains(p.Value, `\`) {
				unknown()
				continue
			}
			text.WriteString(p.Value)
		case *syntax.DblQuoted:
			if p.Dollar { // translated
				unknown()
				continue
			}
			for _, part := range p.Parts {
				if lit, ok := part.(*syntax.Lit); ok {
					text.WriteString(unescape(lit.Value, "$`\"\\"))
					continue
				}
				unknown()
				if list(part) {
					out.many = true
				}
			}
		default:
			unknown()
			if !r.single(part) {
				out.many = true
			}
		}
	}
	if expands(unquoted.String()) {
		out.files = !out.many && !strings.Contains(unquoted.String(), "{")
		out.many = true
		at := strings.IndexAny(unquoted.String(), "*?[{")
		if out.known && at >= 0 && !strings.ContainsAny(unquoted.String(), `\`) && text.Len() == unquoted.Len() {
			out.lead = text.String()[:at]
		}
		out.known = false
		out.tail = afterPattern(text.String())
		return out
	}
	if out.known {
		return exact(text.String())
	}
	out.tail = text.String()
	return out
}

// afterPattern returns the text after the last character that file names or braces may replace.
func afterPattern(text string) string {
	return text[strings.LastIndexAny(text, "*?]}")+1:]
}

// list reports whether a part in double quotes may become several words, as "$@" does.
func list(part syntax.WordPart) bool {
	p, ok := part.(*syntax.ParamExp)
	if !ok {
		return false
	}
	if p.Param != nil && p.Param.Value == "@" {
		return true
	}
	w, ok := p.Index.(*syntax.Word)
	return p.Excl || ok && w.Lit() == "@"
}

// plainVariables lists variables that are always one word, unless the text assigns to them.
var plainVariables = strings.Fields("HOME PWD OLDPWD USER LOGNAME TMPDIR LANG UID EUID PPID HOSTNAME SHLVL ? # $ ! BASHPID")

// single reports whether an unquoted expansion is certainly one word.
func (r wordReader) single(part syntax.WordPart) bool {
	switch p := part.(type) {
	case *syntax.ParamExp:
		return p.Param != nil && p.Index == nil && p.Exp == nil && p.Repl == nil && !p.Excl &&
			(p.Length || slices.Contains(plainVariables, p.Param.Value) && !r.assigned[p.Param.Value])
	case *syntax.ArithmExp, *syntax.ProcSubst:
		return true
	}
	return false
}

// expands reports whether the unquoted part of a word may become other words, through file
// globs or braces. It also returns true for an escaped glob character, which the shell does
// not expand.
func expands(lit string) bool {
	return strings.ContainsAny(lit, "*?") ||
		strings.Contains(lit, "[") && strings.Contains(lit, "]") ||
		strings.Contains(lit, "{") && (strings.Contains(lit, ",") || strings.Contains(lit, ".."))
}

// unescape removes the backslashes that the shell would remove: those before a character in
// only, or all if only is "". A line break after a backslash is removed too.
func unescape(lit, only string) string {
	if !strings.Contains(lit, `\`) {
		return lit
	}
	var b strings.Builder
	for i := 0; i < len(lit); i++ {
		switch {
		case lit[i] != '\\' || i+1 == len(lit):
			b.WriteByte(lit[i])
		case lit[i+1] == '\n':
			i++
		case only == "" || strings.IndexByte(only, lit[i+1]) >= 0:
			i++
			b.WriteByte(lit[i])
		default:
			b.WriteByte('\\')
		}
	}
	return b.String()
}

// matches reports whether the pattern covers the words. It runs the pattern as an automaton:
// in state p, the first p words of the pattern are used. If certain is false, a word of
// unknown value may be any word or any number of words. Then options before a later word of
// the pattern are skipped too: "git push" covers git -C x push.
func (c command) matches(pattern []string, certain bool) bool {
	at, next := make([]bool, len(pattern)+1), make([]bool, len(pattern)+1)
	skipped, skips := make([]bool, len(pattern)+1), make([]bool, len(pattern)+1) // states after an option, whose value may follow
	at[0] = true
	skip(at, pattern)
	for _, w := range c {
		clear(next)
		clear(skips)
		alive := false
		for p := range at {
			if !at[p] {
				continue
			}
			alive = true
			guess := !w.known && !certain
			if guess && w.many {
				for q := p; q < len(at); q++ {
					next[q] = true
				}
			}
			if p == len(pattern) {
				continue
			}
			switch {
			case pattern[p] == "*":
				next[p] = true
			case w.known && wildcard(pattern[p], w.text), guess && w.may(pattern[p]):
				next[p+1] = true
			}
			if certain || p == 0 || strings.HasPrefix(pattern[p], "-") {
				continue
			}
			if w.known && strings.HasPrefix(w.text, "-") {
				next[p], skips[p] = true, !strings.Contains(w.text, "=")
			} else if skipped[p] {
				next[p] = true
			}
		}
		if !alive {
			return false
		}
		skip(next, pattern)
		at, next = next, at
		skipped, skips = skips, skipped
	}
	return at[len(pattern)]
}

// skip adds the states that are reached when a "*" stands for no word.
func skip(at []bool, pattern []string) {
	for p, w := range pattern {
		if at[p] && w == "*" {
			at[p+1] = true
		}
	}
}
