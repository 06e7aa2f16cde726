package permission

import (
	"regexp"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// evaluates reports whether bash would evaluate a value at the node as code: as arithmetic,
// as a name, or as a prompt. In arithmetic an array index may contain a command
// substitution: x='a[$(rm f)]'; echo $((x)). Commands that run in this way are not in the
// syntax tree.
func (s *script) evaluates(node syntax.Node) bool {
	switch n := node.(type) {
	case *syntax.UnaryTest:
		return n.Op == syntax.TsVarSet || n.Op == syntax.TsRefVar
	case *syntax.BinaryTest:
		switch n.Op {
		case syntax.TsEql, syntax.TsNeq, syntax.TsLeq, syntax.TsGeq, syntax.TsLss, syntax.TsGtr:
			return !s.plainOperand(n.X) || !s.plainOperand(n.Y)
		}
	case *syntax.ArithmExp:
		return !s.plainArithmetic(n.X)
	case *syntax.ArithmCmd:
		return !s.plainArithmetic(n.X)
	case *syntax.CStyleLoop:
		return !s.plainArithmetic(n.Init) || !s.plainArithmetic(n.Cond) || !s.plainArithmetic(n.Post)
	case *syntax.LetClause:
		return true
	case *syntax.ParamExp:
		return s.evaluatesParam(n)
	case *syntax.Assign:
		return !s.plainIndex(n.Index)
	case *syntax.ArrayElem:
		return !s.plainIndex(n.Index)
	case *syntax.Redirect:
		return n.N != nil && strings.Contains(n.N.Value, "[")
	case *syntax.DeclClause:
		return s.evaluatesDeclaration(n)
	}
	return false
}

// evaluatesParam is [script.evaluates] for a ${...}. It also returns true for ${x=...},
// because that sets a value for all text that follows.
func (s *script) evaluatesParam(p *syntax.ParamExp) bool {
	if p.Excl && !(p.Names == 0 && indexAll(p.Index)) || p.Names != 0 || !s.plainIndex(p.Index) {
		return true
	}
	if p.Slice != nil && (!s.plainArithmetic(p.Slice.Offset) || !s.plainArithmetic(p.Slice.Length)) {
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

// indexAll reports whether an index is @ or *. ${!a[@]} stands for the indexes of a.
func indexAll(x syntax.ArithmExpr) bool {
	w, ok := x.(*syntax.Word)
	return ok && (w.Lit() == "@" || w.Lit() == "*")
}

// evaluatesDeclaration is [script.evaluates] for declare and similar builtins. It returns true
// in three cases: for -i and -n, whose values are expressions and names; for a word that
// becomes an assignment only when it is expanded; and for an array that is given as text.
func (s *script) evaluatesDeclaration(d *syntax.DeclClause) bool {
	array := false
	for _, a := range d.Args {
		if a.Naked && a.Name != nil && special(a.Name.Value) == "obeyed" && a.Name.Value != "PATH" {
			return true
		}
		if !a.Naked || a.Value == nil {
			if array && a.Value != nil {
				if w := s.read.word(a.Value); !w.known || strings.HasPrefix(strings.TrimLeft(w.text, " \t\n"), "(") {
					return true
				}
			}
			continue
		}
		w := s.read.word(a.Value)
		option := strings.HasPrefix(w.text, "-") || strings.HasPrefix(w.text, "+")
		if !w.known || special(w.text) == "obeyed" && w.text != "PATH" || option && strings.ContainsAny(w.text, "in") || !option && subscript.MatchString(w.text) {
			return true
		}
		if name, value, ok := strings.Cut(w.text, "="); ok && !option {
			s.sets(name, exact(value))
			if array {
				return true
			}
		}
		array = array || option && strings.ContainsAny(w.text, "aA")
	}
	return false
}

func (s *script) plainOperand(x syntax.TestExpr) bool {
	w, ok := x.(*syntax.Word)
	if !ok {
		return false
	}
	if len(w.Parts) == 1 {
		if q, ok := w.Parts[0].(*syntax.DblQuoted); ok && len(q.Parts) == 1 {
			w = &syntax.Word{Parts: q.Parts}
		}
	}
	return s.plainNumber(w)
}

// plainIndex reports whether an array index is absent, a number, @ or *.
func (s *script) plainIndex(x syntax.ArithmExpr) bool { return indexAll(x) || s.plainArithmetic(x) }

// plainArithmetic reports whether an expression is absent or made of numbers only.
func (s *script) plainArithmetic(x syntax.ArithmExpr) bool {
	switch x := x.(type) {
	case nil:
		return true
	case *syntax.Word:
		return s.plainNumber(x) || s.numbers[x.Lit()]
	case *syntax.ParenArithm:
		return s.plainArithmetic(x.X)
	case *syntax.UnaryArithm:
		return s.plainArithmetic(x.X)
	case *syntax.BinaryArithm:
		return s.plainArithmetic(x.X) && s.plainArithmetic(x.Y)
	}
	return false
}

var digits = regexp.MustCompile(`^-?[0-9]+$`)

// plainNumber reports whether a word is a number: digits, a status ($?), a count ($#), an
// id ($$), a length, or a variable to which the text assigns only numbers.
func (s *script) plainNumber(w *syntax.Word) bool {
	if digits.MatchString(w.Lit()) {
		return true
	}
	if len(w.Parts) != 1 {
		return false
	}
	switch p := w.Parts[0].(type) {
	case *syntax.ArithmExp:
		return s.plainArithmetic(p.X)
	case *syntax.ParamExp:
		if p.Param == nil || p.Excl || p.Exp != nil || p.Repl != nil || p.Slice != nil {
			return false
		}
		return p.Length && s.plainIndex(p.Index) || p.Index == nil &&
			(p.Short && slices.Contains([]string{"?", "#", "$", "!"}, p.Param.Value) || s.numbers[p.Param.Value])
	}
	return false
}

// variables returns the variables to which a text assigns values, and the set of variables to
// which it assigns only numbers. outer holds variables that were assigned outside the text.
func variables(file *syntax.File, outer map[string]bool) (wordReader, map[string]bool) {
	r := wordReader{assigned: map[string]bool{}}
	for name := range outer {
		r.assigned[name] = true
	}
	other := map[string]bool{} // variables with values that are no numbers or unknown
	for name := range outer {
		other[name] = true
	}
	var numeric []*syntax.Assign
	whole := false
	syntax.Walk(file, func(node syntax.Node) bool {
		switch n := node.(type) {
		case *syntax.Assign:
			if n.Name == nil {
				break
			}
			r.assigned[n.Name.Value] = true
			if n.Value != nil && !n.Append && n.Index == nil {
				numeric = append(numeric, n)
			} else {
				other[n.Name.Value] = true
			}
		case *syntax.WordIter:
			r.assigned[n.Name.Value] = true
			for _, w := range n.Items {
				if !digits.MatchString(w.Lit()) && !numberRange.MatchString(w.Lit()) && !countedBySeq(w) {
					other[n.Name.Value] = true
				}
			}
			if len(n.Items) == 0 {
				other[n.Name.Value] = true
			}
		case *syntax.CStyleLoop:
			if x, ok := n.Init.(*syntax.BinaryArithm); ok {
				if w, ok := x.X.(*syntax.Word); ok {
					r.assigned[w.Lit()] = true
				}
			}
		case *syntax.CallExpr:
			if len(n.Args) == 0 {
				break
			}
			switch name := n.Args[0].Lit(); {
			case slices.Contains(naming, name), name == "builtin", name == "command":
				for _, w := range n.Args[1:] {
					text := wordReader{}.word(w).text
					r.assigned[text], other[text] = true, true
				}
			case name == "eval", name == ".", name == "source":
				whole = true // it may assign any value to any variable
			}
		}
		return true
	})
	numbers := map[string]bool{}
	if whole {
		for _, name := range plainVariables {
			r.assigned[name] = true
		}
		return r, numbers
	}
	s := &script{numbers: numbers, read: r}
	for name := range r.assigned {
		numbers[name] = !other[name] && special(name) == ""
	}
	for changed := true; changed; { // x=$y makes x a number only if y is one
		changed = false
		for _, a := range numeric {
			if numbers[a.Name.Value] && !s.plainOperand(a.Value) {
				numbers[a.Name.Value], changed = false, true
			}
		}
		if len(numeric) > maxTexts {
			clear(numbers)
		}
	}
	return r, numbers
}

var numberRange = regexp.MustCompile(`^\{[0-9]+\.\.[0-9]+\}$`)

// countedBySeq reports whether a word has the form $(seq 1 10), with numbers only.
func countedBySeq(w *syntax.Word) bool {
	if len(w.Parts) != 1 {
		return false
	}
	sub, ok := w.Parts[0].(*syntax.CmdSubst)
	if !ok || len(sub.Stmts) != 1 {
		return false
	}
	call, ok := sub.Stmts[0].Cmd.(*syntax.CallExpr)
	if !ok || len(call.Args) < 2 || call.Args[0].Lit() != "seq" {
		return false
	}
	return !slices.ContainsFunc(call.Args[1:], func(w *syntax.Word) bool { return !digits.MatchString(w.Lit()) })
}

// naming lists the builtins that take the name of a variable as a word, and evaluate an
// index in that name.
var naming = []string{"[", "getopts", "mapfile", "printf", "read", "readarray", "test", "unset", "wait"}

// subscript matches a name with an index that bash evaluates.
var subscript = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*\[`)

// plainSubscript matches a name with an index that evaluates nothing.
var plainSubscript = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*\[(?:[0-9]+|@|\*)\]$`)

// evaluatesNames reports whether a builtin of bash may run code from its words, or from the
// values of variables that its words name.
func (s *script) evaluatesNames(name string, c command) bool {
	args := c[1:]
	indexed := func(w word) bool {
		return w.known && subscript.MatchString(w.text) && !plainSubscript.MatchString(w.text)
	}
	unclear := func(w word) bool { return !w.known || indexed(w) || w.known && special(w.text) != "" }
	has := func(letters string) bool {
		return slices.ContainsFunc(args, func(w word) bool {
			return !w.known && w.many || w.known && strings.HasPrefix(w.text, "-") && !strings.HasPrefix(w.text, "--") && strings.ContainsAny(w.text, letters)
		})
	}
	switch name {
	case "printf":
		args = behindDashes(args)
		return slices.ContainsFunc(args, indexed) || len(args) > 0 && args[0].option() && (!args[0].known || len(args) > 1 && args[0].text == "-v" && unclear(args[1]) ||
			strings.HasPrefix(args[0].text, "-v") && len(args[0].text) > 2)
	case "read":
		return slices.ContainsFunc(withoutValues(args, "pdnNtui"), unclear)
	case "mapfile", "readarray":
		return has("C") || slices.ContainsFunc(withoutValues(args, "dnOsuc"), unclear)
	case "unset", "getopts":
		return slices.ContainsFunc(args, func(w word) bool { return unclear(w) && !(name == "getopts" && w.known && !indexed(w)) })
	case "wait":
		return has("p") && slices.ContainsFunc(args, unclear)
	case "test":
		return evaluatesTest(args)
	case "[":
		if len(args) > 0 {
			args = args[:len(args)-1]
		}
		return evaluatesTest(args)
	case "enable":
		return len(args) > 0
	case "compgen", "complete", "bind", "fc":
		return len(args) > 0 && has("CWFVxfe")
	case "hash":
		return has("p")
	case "alias":
		return slices.ContainsFunc(args, func(w word) bool { return !w.known || strings.Contains(w.text, "=") })
	case "set":
		return s.setsOptions(args)
	case "shopt":
		return slices.ContainsFunc(args, func(w word) bool { return !w.known || !shoptWords[w.text] })
	case "let":
		return true
	case "export", "readonly", "local", "declare", "typeset": // a word after builtin or command
		return len(c) > 1 && c[1].known && slices.ContainsFunc(args, func(w word) bool {
			name, value, _ := strings.Cut(w.text, "=")
			s.sets(name, exact(value))
			return !w.known || subscript.MatchString(w.text) || strings.HasPrefix(w.text, "-") && strings.ContainsAny(w.text, "inaA")
		})
	}
	return false
}

// withoutValues returns the words that are neither options nor values of options. letters
// are the options that take a value.
func withoutValues(args command, letters string) (operands command) {
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch {
		case a.known && a.text == "--":
			return append(operands, args[i+1:]...)
		case a.known && len(a.text) > 1 && strings.HasPrefix(a.text, "-"):
			if at := strings.IndexAny(a.text[1:], letters); at >= 0 && at == len(a.text)-2 {
				i++
			}
		default:
			operands = append(operands, a)
		}
	}
	return operands
}

var (
	unaryTests  = names("-a -b -c -d -e -f -g -h -k -n -o -p -r -s -t -u -w -x -z -G -L -N -O -S")
	binaryTests = names("= == != -eq -ne -lt -le -gt -ge -nt -ot -ef < >")
)

// evaluatesTest reports whether the builtin test may evaluate an operand. It may do so for -v
// and -R, and for a word of unknown value in the place of an operator.
func evaluatesTest(args command) bool {
	for len(args) > 0 && args[0] == exact("!") {
		args = args[1:]
	}
	unknown := func(w word) bool { return !w.known }
	if slices.ContainsFunc(args, func(w word) bool { return w.many || w.known && (w.text == "-v" || w.text == "-R") }) {
		return true
	}
	switch {
	case !slices.ContainsFunc(args, unknown), len(args) == 1:
		return false
	case len(args) == 2:
		return !args[0].known || !unaryTests[args[0].text]
	case len(args) == 3:
		return !args[1].known || !binaryTests[args[1].text]
	}
	// In longer tests, every word of unknown value must be next to a known operator.
	for i, w := range args {
		if w.known || i > 0 && args[i-1].known && (unaryTests[args[i-1].text] || binaryTests[args[i-1].text]) && args[i-1].text != "-a" && args[i-1].text != "-o" {
			continue
		}
		if i+1 < len(args) && args[i+1].known && binaryTests[args[i+1].text] {
			continue
		}
		return true
	}
	return false
}

var (
	setLetters = regexp.MustCompile(`^[-+][abefhmnptuvxBCEHPT]*o?$`)
	setNames   = names("errexit nounset pipefail xtrace noglob verbose noclobber errtrace functrace monitor allexport braceexpand hashall noexec")
	shoptWords = names("-s -u -q -p -o globstar nullglob dotglob extglob failglob nocaseglob nocasematch lastpipe inherit_errexit pipefail errexit checkwinsize histappend")
)

// setsOptions reports whether the builtin set changes how bash reads the following text. It
// returns true if that is not clear.
func (s *script) setsOptions(args command) bool {
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch {
		case !a.known:
			return true
		case a.text == "--", a.text == "-", !strings.HasPrefix(a.text, "-") && !strings.HasPrefix(a.text, "+"):
			return false // the rest are positional parameters
		case !setLetters.MatchString(a.text):
			return true
		case strings.HasSuffix(a.text, "o"):
			if i++; i < len(args) && (!args[i].known || !setNames[args[i].text]) {
				return true
			}
		}
	}
	return false
}

var (
	setting = regexp.MustCompile(`^-|%[^A-Za-z%]*[hjlLqtz]*n`)
)

// setsByPrintf reports whether a command may be a printf that sets a variable: printf -v, or %n in
// a format.
func setsByPrintf(c command) bool {
	at := slices.IndexFunc(c, func(w word) bool { return w == exact("printf") })
	if at < 0 || at > 0 && wrappers[c[0].text] == nil {
		return false
	}
	args := behindDashes(c[at+1:])
	return len(args) > 0 && (!args[0].known || setting.MatchString(strings.ReplaceAll(args[0].text, "%%", "")))
}
