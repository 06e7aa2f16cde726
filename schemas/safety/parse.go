package safety

import (
	"errors"
	"regexp"
	"strings"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"
)

// Parse is the syntax tree of a command line for bash. It refuses text that bash and the parser may read
// differently, where a command to the one is a comment, a word or nothing to the other: the tree would not
// show what runs. Nothing is said about what the commands do, nor about values that bash evaluates as it runs.
// The caller bounds the length: nesting takes stack. The error quotes no part of the line.
func Parse(command string) (file *syntax.File, err error) {
	defer func() {
		if recover() != nil { // the parser met something its authors did not expect; neither do we
			file, err = nil, errors.New("cannot be parsed")
		}
	}()
	if err := plainText(command); err != nil {
		return nil, err
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

// plainText refuses bytes that shells and the parser may see differently: a carriage return is white
// space to one and part of a name to the other.
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

// joined is a line end taken out of a word or an operator: bash reads "$\" and "(rm x)" on the next line as
// one substitution, the parser as two words. Behind a blank nothing is joined.
var joined = regexp.MustCompile(`(^|[^ \t])\\\n`)

// alike refuses the forms that two parsers read differently.
func alike(node syntax.Node, command string) error {
	switch n := node.(type) {
	case *syntax.Comment:
		return comment(n, command)
	case *syntax.Stmt:
		if _, timed := n.Cmd.(*syntax.TimeClause); timed && n.Negated {
			return errors.New("has a form that is not looked into") // the two are ordered differently
		}
	case *syntax.ParamExp:
		if quotesInside(n) {
			return errors.New("has quotes inside an expansion") // inside double quotes they may not quote
		}
	case *syntax.CmdSubst:
		if n.Backquotes && strings.Contains(source(n, command), `\`) {
			return errors.New("has a backslash between backquotes") // taken out before the rest is read
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

// comment refuses a "#" that is a comment only to one of two parsers, and a comment that ends in a
// backslash, which this parser takes to go on in the next line and bash does not: what one skips would be a
// command to the other. Behind a blank, or alone on its line, it is a comment to all.
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

// hereDocument refuses those whose end is not clear: a delimiter that is no plain name, and a text whose
// lines are joined, which may hide it.
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

// source is the text of a node.
func source(n syntax.Node, command string) string {
	return command[n.Pos().Offset():min(int(n.End().Offset()), len(command))]
}

// quotesInside reports whether the words of an expansion hold single quotes, those of commands in it aside.
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

// patternWithout reports whether no unquoted part of a regular expression holds one of the characters.
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
