package expression

import (
	"fmt"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/overloads"
)

// growing lists functions that are not allowed. CEL checks the cost of a function only after
// the function has returned, and until then these could take minutes or all memory. For
// example, a megabyte in which each letter is replaced by that megabyte has a terabyte.
var (
	growing = map[string]bool{"join": true, "format": true}
	// written lists functions that are allowed only if their arguments are literals in the
	// expression, because literals are short.
	written = map[string]bool{"replace": true, "indexOf": true, "lastIndexOf": true}
)

const maxWritten = 100

// growth returns an error for the first use of a function that is not allowed, or of a regular
// expression that is not a literal.
func growth(checked *cel.Ast) *Error {
	var found *Error
	native := checked.NativeRep()
	report := func(e ast.Expr, format string, args ...any) {
		at := native.SourceInfo().GetStartLocation(e.ID())
		found = &Error{max(at.Line(), 1), max(at.Column(), 0) + 1, fmt.Sprintf(format, args...)}
	}
	ast.PreOrderVisit(native.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if found != nil || e.Kind() != ast.CallKind {
			return
		}
		call := e.AsCall()
		name := call.FunctionName()
		switch {
		case name == overloads.Matches && pattern(call).Kind() != ast.LiteralKind:
			report(pattern(call), "matches: write the regular expression as a literal; one from the input could cost too much")
		case growing[name]:
			report(e, "%s is not available: its result may be far larger than the input", name)
		case written[name]:
			for _, arg := range call.Args() {
				if arg.Kind() != ast.LiteralKind || isLong(arg.AsLiteral().Value()) {
					report(arg, "%s: write out what it looks for and puts in, with at most %d bytes", name, maxWritten)
					return
				}
			}
			if name == "replace" && call.Args()[0].AsLiteral().Value() == "" {
				report(e, "replace: what it looks for is empty")
			}
		}
	}))
	return found
}

// pattern returns the regular expression of a match: the last argument, in
// matches(text, re) as in text.matches(re).
func pattern(matches ast.CallExpr) ast.Expr { return matches.Args()[len(matches.Args())-1] }

func isLong(literal any) bool {
	text, isText := literal.(string)
	return isText && len(text) > maxWritten
}
