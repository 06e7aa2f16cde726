package safety

import (
	"errors"
	"regexp"
	"strings"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"
)

// Parse returns the syntax tree of a command line for bash. It refuses text that bash and the
// parser may read differently. Otherwise bash could run a command where the tree has a
// comment, a word or nothing. The tree says nothing about what the commands do, nor about
// values that bash evaluates while it runs. The caller has to bound the length of the text,
// because nesting takes stack. The error quotes no part of the command line.
func Parse(command string) (file *syntax.File, err error) {
	defer func() {
		if recover() != nil { // the parser has a bug that this text hits
			file, err = nil, errors.New("cannot be parsed")
		}
	}()
	if err := plainText(command); err != nil {
		return nil, err
	}
	if nested(command) > maxOpen {
		return nil, errors.New("nested too deep")
	}
	parser := syntax.NewParser(syntax.Variant(syntax.LangBash), syntax.KeepComments(true))
	file, err = parser.Parse(strings.NewReader(command), "")
	if err != nil {
		return nil, errors.New("cannot be parsed")
	}
	syntax.Walk(file, func(node syntax.Node) bool {
		if err == nil {
			err = alike(node, command)
		}
		return err == nil
	})
	if err != nil {
		return nil, err
	}
	return file, nil
}

// maxOpen limits how many brackets may be open at once. The parser's time grows with the square of
// the number of open brackets.
const maxOpen = 200

// nested returns how many brackets of a text are open at once at most. It also counts brackets
// in quotes.
func nested(text string) (most int) {
	open := 0
	for i := range len(text) {
		switch text[i] {
		case '(', '[', '{':
			open++
			most = max(most, open)
		case ')', ']', '}':
			open = max(open-1, 0)
		}
	}
	return most
}

// plainText refuses bytes that shells and the parser may read differently: a carriage return may be
// white space or part of a name.
func plainText(command string) error {
	if strings.HasSuffix(command, `\`) {
		return errors.New("ends with a backslash")
	}
	if joined.MatchString(command) {
		return errors.New("joins two lines inside a word")
	}
	if !utf8.ValidString(command) {
		return errors.New("holds bytes that are no UTF-8")
	}
	for _, r := range command {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f {
			return errors.New("holds a control character")
		}
	}
	return nil
}

// joined matches an escaped line end inside a word or an operator. Bash and the parser may
// read it differently: if "$\" ends a line and the next line begins with "(rm x)", bash reads
// one substitution and the parser two words. A line end after a blank joins nothing, so joined
// does not match it.
var joined = regexp.MustCompile(`(^|[^ \t])\\\n`)

// alike refuses forms that bash and the parser read differently.
func alike(node syntax.Node, command string) error {
	switch n := node.(type) {
	case *syntax.Comment:
		return comment(n, command)
	case *syntax.Stmt:
		if _, timed := n.Cmd.(*syntax.TimeClause); timed && n.Negated {
			// Bash and the parser take the two parts in a different order.
			return errors.New("has a form that is not looked into")
		}
	case *syntax.ParamExp:
		if quotesInside(n) {
			// If the expansion is in double quotes, single quotes in it may be plain
			// characters.
			return errors.New("has quotes inside an expansion")
		}
	case *syntax.CmdSubst:
		if n.Backquotes && strings.Contains(source(n, command), `\`) {
			// Bash removes the backslash before it reads the rest.
			return errors.New("has a backslash between backquotes")
		}
	case *syntax.Redirect:
		return hereDocument(n, command)
	case *syntax.BinaryTest:
		if n.Op == syntax.TsReMatch && !patternWithout(n.Y, ";&<> \t\n#") {
			return errPattern
		}
	}
	return nil
}

var errPattern = errors.New("[[ =~ ]] with a pattern that shells read differently")

// comment refuses a "#" that might start a comment for the parser but not for bash, because
// bash would then run the text after it. Only a "#" after a blank, a line end or a semicolon,
// or at the start of the text, certainly starts a comment. comment also refuses a comment that
// ends in a backslash: the parser continues it on the next line, and bash does not.
func comment(c *syntax.Comment, command string) error {
	at := int(c.Hash.Offset())
	starts := at == 0 || strings.IndexByte(" \t\n;", command[at-1]) >= 0
	line, _, _ := strings.Cut(command[at:], "\n")
	if !starts || strings.HasSuffix(command[:at], "\\\n") || strings.HasSuffix(line, `\`) {
		return errors.New("a # that is not clearly a comment")
	}
	return nil
}

var delimiter = regexp.MustCompile(`^(?:[A-Za-z0-9_]+|'[A-Za-z0-9_]+'|"[A-Za-z0-9_]+")$`)

// hereDocument refuses here-documents whose end is not clear: those with a delimiter that is not a
// plain name, and those with joined lines, which may hide the delimiter.
func hereDocument(r *syntax.Redirect, command string) error {
	if r.Op != syntax.Hdoc && r.Op != syntax.DashHdoc {
		return nil
	}
	end := source(r.Word, command)
	switch raw := strings.ContainsAny(end, `'"`); {
	case !delimiter.MatchString(end):
		return errors.New("has a here-document with an odd delimiter")
	case !raw && r.Hdoc != nil && strings.Contains(source(r.Hdoc, command), "\\\n"):
		return errors.New("has a here-document with joined lines")
	}
	return nil
}

// source returns the text of a node.
func source(n syntax.Node, command string) string {
	return command[n.Pos().Offset():min(int(n.End().Offset()), len(command))]
}

// quotesInside reports whether an expansion contains single quotes, outside the commands in it.
func quotesInside(p *syntax.ParamExp) (found bool) {
	syntax.Walk(p, func(node syntax.Node) bool {
		switch node.(type) {
		case *syntax.CmdSubst:
			return false
		case *syntax.SglQuoted:
			found = true
		}
		return true
	})
	return found
}

// patternWithout reports whether no unquoted part of a regular expression contains one of the
// characters.
func patternWithout(x syntax.TestExpr, chars string) bool {
	word, ok := x.(*syntax.Word)
	if !ok {
		return false
	}
	for _, part := range word.Parts {
		if lit, ok := part.(*syntax.Lit); ok && strings.ContainsAny(lit.Value, chars) {
			return false
		}
	}
	return true
}
