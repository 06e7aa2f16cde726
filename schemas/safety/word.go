package safety

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// arg is what is known about a word before the shell expands it.
type arg struct {
	text string
	// exact: the word becomes exactly one argument, with this text.
	exact bool
	// wild: nothing is known, not even how many arguments the word becomes. If neither exact nor
	// wild is set, every argument that the word becomes begins with text.
	wild bool
	// one: the word becomes exactly one argument, whatever its text.
	one bool
}

// flag reports whether a program could take the word as an option.
func (a arg) flag() bool {
	if a.exact && a.text == "-" { // standard input or output
		return false
	}
	return a.wild || strings.HasPrefix(a.text, "-") || a.text == "" && !a.exact
}

// words checks words whose texts do not matter.
func (w walker) words(list []*syntax.Word) error {
	for _, word := range list {
		if _, err := w.word(word); err != nil {
			return err
		}
	}
	return nil
}

// word checks everything that runs when the word is expanded, and returns what is known about it.
func (w walker) word(word *syntax.Word) (arg, error) {
	a := arg{exact: true, one: true}
	if word == nil {
		return a, nil
	}
	patterns := "*?[{"
	switch lit := word.Lit(); {
	case lit == "[":
		patterns = "" // the word [ is a command: a pattern has its ] in the same word
	case lit != "" && !strings.Contains(lit, ",") && !strings.Contains(lit, ".."):
		patterns = "*?[" // braces that do not expand, as in {} and HEAD@{1}
	}
	for i, part := range word.Parts {
		if lit, ok := part.(*syntax.Lit); ok {
			if err := a.literal(lit.Value, i == 0, patterns); err != nil {
				return a, err
			}
			continue
		}
		if err := w.part(&a, part); err != nil {
			return a, err
		}
	}
	return a, nil
}

// part adds a part of a word that is not plain text.
func (w walker) part(a *arg, part syntax.WordPart) error {
	switch part := part.(type) {
	case *syntax.SglQuoted:
		if part.Dollar {
			a.unknown() // $'...' contains escapes
			return nil
		}
		a.add(part.Value)
		return nil
	case *syntax.DblQuoted:
		return w.quoted(a, part)
	case *syntax.ProcSubst:
		if part.Op != syntax.CmdIn {
			return errors.New("writes into a process substitution")
		}
		a.add("/dev/fd/")
		a.unknown()
		return w.stmts(part.Stmts)
	}
	// An expansion outside quotes is split into any number of arguments.
	a.exact, a.wild, a.one = false, true, false
	_, err := w.expansion(part)
	return err
}

// quoted adds a part in double quotes. It stays one argument, unless it contains a list such as
// "$@".
func (w walker) quoted(a *arg, q *syntax.DblQuoted) error {
	if q.Dollar {
		a.unknown() // $"..." is translated
	}
	for _, part := range q.Parts {
		if lit, ok := part.(*syntax.Lit); ok {
			a.add(unescape(lit.Value, "$`\"\\"))
			continue
		}
		list, err := w.expansion(part)
		if err != nil {
			return err
		}
		a.unknown()
		if list {
			a.wild, a.one = true, false
		}
	}
	return nil
}

// add appends known text. After an unknown part it does nothing: the position of the text in
// the word is then unknown.
func (a *arg) add(s string) {
	if a.exact {
		a.text += s
	}
}

// unknown records that the rest of the word can be anything. The word stays one argument.
func (a *arg) unknown() { a.exact = false }

// literal appends unquoted text up to where the shell would expand it: at one of the pattern
// characters, or at a ~ at the start of the word.
func (a *arg) literal(s string, leads bool, patterns string) error {
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c >= 0x80:
			// Such a character may be a blank in some locale.
			return errors.New("holds unquoted text that is not ASCII")
		case c == '\\':
			if i++; i < len(s) && s[i] >= 0x80 {
				return errors.New("holds unquoted text that is not ASCII")
			}
			if i < len(s) && s[i] != '\n' {
				a.add(s[i : i+1])
			}
		// A pattern or a brace expansion becomes any number of arguments.
		case strings.IndexByte(patterns, c) >= 0:
			a.exact, a.one = false, false
		case c == '~' && leads && i == 0: // a home folder: some absolute path
			a.add("~")
			a.unknown()
		default:
			a.add(s[i : i+1])
		}
	}
	return nil
}

// unescape removes the backslashes before the given characters, and escaped line ends.
func unescape(s, special string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			if s[i+1] == '\n' {
				i++
				continue
			}
			if strings.IndexByte(special, s[i+1]) >= 0 {
				i++
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// expansion checks what runs when a part is expanded. list is true if the part may become
// several arguments even inside quotes.
func (w walker) expansion(part syntax.WordPart) (list bool, err error) {
	switch part := part.(type) {
	case *syntax.ParamExp:
		return w.param(part)
	case *syntax.CmdSubst:
		if part.Backquotes || part.TempFile || part.ReplyVar {
			return false, errors.New("has a command substitution of a form that is not looked into")
		}
		return false, w.stmts(part.Stmts)
	case *syntax.ArithmExp:
		if part.Unsigned {
			return false, errArithmetic
		}
		return false, arithmetic(part.X)
	}
	// Extended globs are off in bash by default.
	return false, errors.New("has a pattern that is not looked into")
}

// param checks ${...}. It refuses the forms that evaluate a value again (${!x}, ${x@P}) or set
// variables that other commands depend on.
func (w walker) param(p *syntax.ParamExp) (list bool, err error) {
	if p.Param == nil || p.Excl || p.Width || p.IsSet || p.Flags != nil || p.NestedParam != nil || p.Names != 0 ||
		len(p.Modifiers) > 0 || p.Split != 0 || p.GlobSubst != 0 || p.RcExpand != 0 {
		return false, errors.New("has an expansion that is not looked into")
	}
	list = p.Param.Value == "@" || p.Param.Value == "*"
	if p.Index != nil {
		word, ok := p.Index.(*syntax.Word)
		if !ok || !index.MatchString(word.Lit()) {
			return false, errArithmetic
		}
		list = list || word.Lit() == "@" || word.Lit() == "*"
	}
	if p.Slice != nil {
		for _, x := range []syntax.ArithmExpr{p.Slice.Offset, p.Slice.Length} {
			if x != nil {
				if err := arithmetic(x); err != nil {
					return false, err
				}
			}
		}
	}
	if p.Repl != nil {
		return true, w.words([]*syntax.Word{p.Repl.Orig, p.Repl.With})
	}
	if p.Exp != nil {
		switch p.Exp.Op {
		case syntax.OtherParamOps, syntax.MatchEmpty, syntax.ArrayExclude, syntax.ArrayIntersect:
			return false, errors.New("has an expansion that is not looked into")
		case syntax.AssignUnset, syntax.AssignUnsetOrNull:
			if err := settable(p.Param.Value); err != nil {
				return false, err
			}
		}
		_, err := w.word(p.Exp.Word)
		return true, err // in "${x:-"$@"}" the default is a list
	}
	return list, nil
}

var (
	errArithmetic = errors.New("arithmetic can run commands hidden in a value")
	index         = regexp.MustCompile(`^([0-9]{1,9}|[@*])$`)
	number        = regexp.MustCompile(`^(0x[0-9a-fA-F]{1,15}|[0-9]{1,18})$`)
)

// arithmetic allows only numbers and operators. Bash evaluates a variable's value again as an
// expression, in which an array index may contain a command substitution: x='a[$(rm f)]'; echo
// $((x)).
func arithmetic(x syntax.ArithmExpr) error {
	switch x := x.(type) {
	case nil:
		return nil
	case *syntax.Word:
		if number.MatchString(x.Lit()) {
			return nil
		}
	case *syntax.ParenArithm:
		return arithmetic(x.X)
	case *syntax.UnaryArithm:
		if x.Op != syntax.Inc && x.Op != syntax.Dec {
			return arithmetic(x.X)
		}
	case *syntax.BinaryArithm:
		if err := arithmetic(x.X); err != nil { // also refuses every assignment, by its left side
			return err
		}
		return arithmetic(x.Y)
	}
	return errArithmetic
}

// settableName matches variables that only the command itself depends on. Variables that shells,
// loaders and programs read have names in capitals.
var settableName = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

func settable(name string) error {
	if !settableName.MatchString(name) {
		return fmt.Errorf("sets %.40q, which may change how commands behave", name)
	}
	return nil
}

// assign checks an assignment without a command: x=1, y=$(ls), files=(*.go).
func (w walker) assign(a *syntax.Assign) error {
	if a.Naked || a.Name == nil || a.Index != nil {
		return errors.New("has an assignment that is not looked into")
	}
	if err := settable(a.Name.Value); err != nil {
		return err
	}
	if a.Array != nil {
		for _, elem := range a.Array.Elems {
			if elem.Index != nil {
				return errArithmetic
			}
			if _, err := w.word(elem.Value); err != nil {
				return err
			}
		}
	}
	_, err := w.word(a.Value)
	return err
}

// prefixes lists the variables that may be set for one command, with the allowed values.
var prefixes = map[string]*regexp.Regexp{
	"LC_ALL":              locale,
	"LC_COLLATE":          locale,
	"LC_CTYPE":            locale,
	"LC_NUMERIC":          locale,
	"LC_TIME":             locale,
	"LC_MESSAGES":         locale,
	"LANG":                locale,
	"TZ":                  regexp.MustCompile(`^[A-Z][A-Za-z]{0,20}([/+-][A-Za-z0-9_+-]{1,30})?$`),
	"NO_COLOR":            regexp.MustCompile(`^1?$`),
	"GIT_PAGER":           regexp.MustCompile(`^(cat)?$`),
	"PAGER":               regexp.MustCompile(`^(cat)?$`),
	"GIT_OPTIONAL_LOCKS":  regexp.MustCompile(`^0$`),
	"GIT_TERMINAL_PROMPT": regexp.MustCompile(`^0$`),
}

// locale matches locales in which every byte sequence has one meaning.
var locale = regexp.MustCompile(`^(C|POSIX|C\.UTF-8|C\.utf8|[a-z]{2}_[A-Z]{2}\.(UTF-8|utf8))$`)

// prefix checks an assignment in front of a command.
func (w walker) prefix(a *syntax.Assign, command string) error {
	if a.Naked || a.Append || a.Name == nil || a.Index != nil || a.Array != nil {
		return errors.New("has an assignment that is not looked into")
	}
	value, err := w.word(a.Value)
	if err != nil {
		return err
	}
	if a.Name.Value == "IFS" && command == "read" {
		return nil // IFS says how read splits its line
	}
	allowed := prefixes[a.Name.Value]
	if allowed == nil || !value.exact || !allowed.MatchString(value.text) {
		return fmt.Errorf("sets %.40q, which may change how commands behave", a.Name.Value)
	}
	return nil
}
