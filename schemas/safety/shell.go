package safety

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// Bounds on a command that is classified. A longer or deeper one runs alone.
const (
	maxCommand = 16 << 10 // bytes
	maxDepth   = 32       // statements inside statements
)

// readOnly returns an error that says which part of the command could change something, or nil.
func readOnly(command string) error {
	if len(command) > maxCommand {
		return errors.New("too long to look into")
	}
	file, err := Parse(command)
	if err != nil {
		return err
	}
	if len(file.Stmts) == 0 {
		return errors.New("holds no command")
	}
	return walker{}.stmts(file.Stmts)
}

// walker checks a parsed command from the top, and refuses one that is nested deeper than maxDepth.
type walker struct{ depth int }

func (w walker) stmts(list []*syntax.Stmt) error {
	w.depth++
	if w.depth > maxDepth {
		return errors.New("nested too deep")
	}
	for _, s := range list {
		if err := w.stmt(s); err != nil {
			return err
		}
	}
	return nil
}

func (w walker) stmt(s *syntax.Stmt) error {
	w.depth++
	switch {
	case w.depth > maxDepth:
		return errors.New("nested too deep")
	case s.Background, s.Coprocess, s.Disown:
		return errors.New("starts something in the background")
	}
	for _, r := range s.Redirs {
		if err := w.redirect(r); err != nil {
			return err
		}
	}
	if s.Cmd == nil {
		return nil
	}
	return w.command(s.Cmd)
}

func (w walker) command(cmd syntax.Command) error {
	switch cmd := cmd.(type) {
	case *syntax.CallExpr:
		return w.call(cmd)
	case *syntax.BinaryCmd:
		if err := w.stmt(cmd.X); err != nil {
			return err
		}
		return w.stmt(cmd.Y)
	case *syntax.Block:
		return w.stmts(cmd.Stmts)
	case *syntax.Subshell:
		return w.stmts(cmd.Stmts)
	case *syntax.IfClause:
		for clause := cmd; clause != nil; clause = clause.Else {
			if err := errors.Join(w.stmts(clause.Cond), w.stmts(clause.Then)); err != nil {
				return first(err)
			}
		}
		return nil
	case *syntax.WhileClause:
		return first(errors.Join(w.stmts(cmd.Cond), w.stmts(cmd.Do)))
	case *syntax.ForClause:
		return w.loop(cmd)
	case *syntax.CaseClause:
		return w.cases(cmd)
	case *syntax.TestClause:
		return w.test(cmd.X)
	case *syntax.TimeClause:
		if cmd.Stmt == nil {
			return nil
		}
		return w.stmt(cmd.Stmt)
	case *syntax.FuncDecl:
		return errors.New("defines a function")
	case *syntax.DeclClause:
		return fmt.Errorf("%s can change how later commands behave", cmd.Variant.Value)
	case *syntax.CoprocClause:
		return errors.New("starts something in the background")
	}
	return errors.New("has a form that is not looked into")
}

// first returns the first of joined errors, because one reason is enough.
func first(err error) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()[0]
	}
	return err
}

func (w walker) loop(loop *syntax.ForClause) error {
	iter, ok := loop.Loop.(*syntax.WordIter)
	if !ok || loop.Select || loop.Braces {
		return errors.New("has a loop that is not looked into")
	}
	if err := settable(iter.Name.Value); err != nil {
		return err
	}
	if err := w.words(iter.Items); err != nil {
		return err
	}
	return w.stmts(loop.Do)
}

func (w walker) cases(c *syntax.CaseClause) error {
	if c.Braces {
		return errors.New("has a form that is not looked into")
	}
	if _, err := w.word(c.Word); err != nil {
		return err
	}
	for _, item := range c.Items {
		if err := w.words(item.Patterns); err != nil {
			return err
		}
		if err := w.stmts(item.Stmts); err != nil {
			return err
		}
	}
	return nil
}

// test checks [[ ]]. It refuses number comparisons and -v, because they evaluate their
// operands, which can run commands hidden in a value.
func (w walker) test(x syntax.TestExpr) error {
	switch x := x.(type) {
	case *syntax.Word:
		_, err := w.word(x)
		return err
	case *syntax.ParenTest:
		return w.test(x.X)
	case *syntax.UnaryTest:
		if x.Op == syntax.TsVarSet || x.Op == syntax.TsRefVar {
			return errors.New("[[ -v ]] evaluates its operand")
		}
		return w.test(x.X)
	case *syntax.BinaryTest:
		switch x.Op {
		case syntax.TsEql, syntax.TsNeq, syntax.TsLeq, syntax.TsGeq, syntax.TsLss, syntax.TsGtr:
			return errors.New("[[ ]] evaluates its operands as arithmetic")
		case syntax.TsReMatch:
			if !patternWithout(x.Y, "()|") {
				return errPattern
			}
		}
		return first(errors.Join(w.test(x.X), w.test(x.Y)))
	}
	return errors.New("has a form that is not looked into")
}

var fdNumber = regexp.MustCompile(`^[0-9]$`)

// redirect allows input from a named file or from a here-string, output to /dev/null, and
// descriptors that are duplicated or closed.
func (w walker) redirect(r *syntax.Redirect) error {
	if r.N != nil && !fdNumber.MatchString(r.N.Value) {
		return errors.New("redirects to a named descriptor")
	}
	if r.Hdoc != nil || r.Op == syntax.Hdoc || r.Op == syntax.DashHdoc {
		return errors.New("has a here-document") // shells differ most about where it ends
	}
	target, err := w.word(r.Word)
	if err != nil {
		return err
	}
	if target.exact && number.MatchString(target.text) && r.Op != syntax.DplIn && r.Op != syntax.DplOut {
		// Bash may take the number for the descriptor of the next redirection.
		return errors.New("redirects a number")
	}
	switch r.Op {
	case syntax.WordHdoc:
		return nil
	case syntax.RdrIn:
		// A redirection to /dev/tcp and the like opens a connection.
		if target.exact && target.text != "" && (target.text == "/dev/null" || !strings.HasPrefix(target.text, "/dev/")) {
			return nil
		}
		return errors.New("reads from something that is not a named file")
	case syntax.DplIn, syntax.DplOut:
		if target.exact && (fdNumber.MatchString(target.text) || target.text == "-") {
			return nil
		}
	case syntax.RdrOut, syntax.AppOut, syntax.RdrAll, syntax.AppAll:
		if target.exact && target.text == "/dev/null" {
			return nil
		}
	}
	return errors.New("redirects to a file")
}
