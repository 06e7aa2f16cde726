package permission

import (
	"regexp"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// evaluates reports whether bash evaluates a value at the node as code: as arithmetic, as a name,
// or as a prompt. In arithmetic an array index may hold a command substitution: x='a[$(rm f)]';
// echo $((x)). The commands that this runs are not in the syntax tree.
func evaluates(node syntax.Node) bool {
	switch n := node.(type) {
	case *syntax.UnaryTest:
		return n.Op == syntax.TsVarSet || n.Op == syntax.TsRefVar
	case *syntax.BinaryTest:
		switch n.Op {
		case syntax.TsEql, syntax.TsNeq, syntax.TsLeq, syntax.TsGeq, syntax.TsLss, syntax.TsGtr:
			return !plainOperand(n.X) || !plainOperand(n.Y)
		}
	case *syntax.ArithmExp:
		return !plainArithmetic(n.X)
	case *syntax.ArithmCmd:
		return !plainArithmetic(n.X)
	case *syntax.LetClause, *syntax.CStyleLoop:
		return true
	case *syntax.ParamExp:
		return evaluatesParam(n)
	case *syntax.Assign:
		return !plainIndex(n.Index)
	case *syntax.ArrayElem:
		return !plainIndex(n.Index)
	case *syntax.DeclClause:
		return slices.ContainsFunc(n.Args, evaluatesDeclared)
	}
	return false
}

// evaluatesParam is evaluates for ${...}. It also returns true for ${x=...}, because everything
// that follows sees the value that it sets.
func evaluatesParam(p *syntax.ParamExp) bool {
	if p.Excl || p.Names != 0 || !plainIndex(p.Index) {
		return true
	}
	if p.Slice != nil && (!plainArithmetic(p.Slice.Offset) || !plainArithmetic(p.Slice.Length)) {
		return true
	}
	if p.Exp == nil {
		return false
	}
	switch p.Exp.Op {
	case syntax.AssignUnset, syntax.AssignUnsetOrNull, syntax.OtherParamOps:
		return true
	}
	return false
}

// evaluatesDeclared is evaluates for an argument of declare. It returns true for declare -i and -n,
// whose values are expressions and names, and for a word that becomes an assignment only when it is
// expanded.
func evaluatesDeclared(a *syntax.Assign) bool {
	if !a.Naked || a.Value == nil {
		return false
	}
	w := wordOf(a.Value)
	option := strings.HasPrefix(w.text, "-") || strings.HasPrefix(w.text, "+")
	return !w.known || option && strings.ContainsAny(w.text, "in") || indexed.MatchString(w.text)
}

func plainOperand(x syntax.TestExpr) bool {
	w, ok := x.(*syntax.Word)
	return ok && plainNumber(w)
}

// plainIndex reports whether an array index is absent, a number, @ or *.
func plainIndex(x syntax.ArithmExpr) bool {
	if w, ok := x.(*syntax.Word); ok && (w.Lit() == "@" || w.Lit() == "*") {
		return true
	}
	return plainArithmetic(x)
}

// plainArithmetic reports whether an expression is absent or made of numbers only.
func plainArithmetic(x syntax.ArithmExpr) bool {
	switch x := x.(type) {
	case nil:
		return true
	case *syntax.Word:
		return plainNumber(x)
	case *syntax.ParenArithm:
		return plainArithmetic(x.X)
	case *syntax.UnaryArithm:
		return plainArithmetic(x.X)
	case *syntax.BinaryArithm:
		return plainArithmetic(x.X) && plainArithmetic(x.Y)
	}
	return false
}

var digits = regexp.MustCompile(`^[0-9]+$`)

// plainNumber reports whether a word is a number: written out, a status ($?), a count ($#) or an id
// ($$).
func plainNumber(w *syntax.Word) bool {
	if digits.MatchString(w.Lit()) {
		return true
	}
	if len(w.Parts) != 1 {
		return false
	}
	p, ok := w.Parts[0].(*syntax.ParamExp)
	return ok && p.Short && p.Param != nil && p.Index == nil && slices.Contains([]string{"?", "#", "$"}, p.Param.Value)
}

// naming lists the builtins that take a variable's name as a word and evaluate an index in it.
var naming = []string{"[", "getopts", "mapfile", "printf", "read", "readarray", "test", "unset", "wait"}

var indexed = regexp.MustCompile("[A-Za-z0-9_]\\[[^\\]]*(\\$\\(|`)")

// evaluatesNames reports whether a command is a builtin in naming and one of its words has an index
// that may run code.
func evaluatesNames(c command) bool {
	_, found := c.behind(naming)
	return found && slices.ContainsFunc(c, func(w word) bool { return w.known && indexed.MatchString(w.text) })
}

// behind returns the words after the first word that is one of the names. found is false unless the
// command has that name or may run a command with it.
func (c command) behind(names []string) (args command, found bool) {
	at := slices.IndexFunc(c, func(w word) bool { return w.known && slices.Contains(names, w.text) })
	if at < 0 || at > 0 && !runsOthers(c[0]) {
		return nil, false
	}
	return c[at+1:], true
}

var (
	printf  = []string{"printf"}
	setting = regexp.MustCompile(`^-|%[^A-Za-z%]*[hjlLqtz]*n`)
)

// setsByPrintf reports whether a command may be a printf that sets a variable: printf -v, or %n in
// a format.
func setsByPrintf(c command) bool {
	args, _ := c.behind(printf)
	if len(args) > 0 && args[0] == (word{"--", true}) {
		args = args[1:]
	}
	return len(args) > 0 && (!args[0].known || setting.MatchString(strings.ReplaceAll(args[0].text, "%%", "")))
}
