// Package expression implements the conditions of policies and tools: CEL over one call. A
// [Program] is compiled once and evaluated on the [Subject] of each call.
//
//	tool.name, tool.kind, tool.pool   text
//	input                             the arguments: a map
//	session.id, principal.id          text; empty where no session is known (plans, concurrency_safe)
//	principal.user                    text: the user of an HTTP request; empty where none is known
//	labels                            the labels of the batch: a map of texts
//
// The language is CEL's standard library, its macros and its strings extension, without the
// functions whose result can be far larger than their input. A number of the input is an int if it
// is whole and fits into 64 bits, else a double; the two are compared by value.
//
// Operators write the expressions, but strangers write the inputs. So an evaluation has a
// bounded cost (and takes no context), never panics, and never quotes a value in its error.
// The caller decides what an error means: permission rules treat it as a reason against the
// call.
//
// The package is pure, and everything in it is safe for concurrent use.
package expression

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/ext"
)

const (
	// MaxSource is the longest expression, in bytes. Longer logic belongs in a hook.
	MaxSource = 4096
	// MaxCost limits the cost of one evaluation, in CEL's units. One unit is about one step or ten
	// characters of text. The limit is enough to match a regular expression against a few hundred
	// kilobytes. An evaluation of this cost takes a fraction of a second.
	MaxCost = 1_000_000
	// maxRecursion limits how deep brackets may be nested, because each level uses some of the
	// parser's stack.
	maxRecursion = 64
)

// Type is the type of an expression's result.
type Type int

// The result types.
const (
	Bool Type = iota
	Text
)

func (t Type) String() string { return [...]string{"true or false", "text"}[t] }

// Error says what is wrong with an expression, and where.
type Error struct {
	Line, Column int // from 1, in characters
	Message      string
}

func (e *Error) Error() string { return fmt.Sprintf("%d:%d: %s", e.Line, e.Column, e.Message) }

// variables lists everything that an expression can read. Each dotted name is one variable, so that
// a misspelt one is found when the expression is compiled.
var variables = []string{"input", "labels", "tool.name", "tool.kind", "tool.pool", "session.id", "principal.id", "principal.user"}

// environment defines the language.
var environment = func() *cel.Env {
	options := []cel.EnvOption{
		cel.CrossTypeNumericComparisons(true),
		cel.DefaultUTCTimeZone(true),
		cel.EnableMacroCallTracking(),
		cel.ParserRecursionLimit(maxRecursion),
		cel.ParserExpressionSizeLimit(MaxSource),
		cel.ASTValidators(cel.ValidateRegexLiterals(), cel.ValidateDurationLiterals(), cel.ValidateTimestampLiterals()),
		ext.Strings(),
		cel.Variable("input", cel.MapType(cel.StringType, cel.DynType)),
		cel.Variable("labels", cel.MapType(cel.StringType, cel.StringType)),
	}
	for _, name := range variables[2:] {
		options = append(options, cel.Variable(name, cel.StringType))
	}
	env, err := cel.NewEnv(options...)
	if err != nil {
		panic(err) // never happens: it depends on no input
	}
	return env
}()

// Program is a compiled expression.
type Program struct {
	source string
	reads  map[string]bool
	run    cel.Program
}

// Source returns the expression as it was written.
func (p *Program) Source() string { return p.source }

// Reads reports whether the expression mentions a variable.
func (p *Program) Reads(variable string) bool { return p.reads[variable] }

// Compile checks an expression and prepares it for evaluation. The error is an [*Error].
func Compile(source string, want Type) (p *Program, err error) {
	defer func() {
		if recover() != nil { // a panic of the CEL library
			p, err = nil, &Error{1, 1, "cannot be read as an expression"}
		}
	}()
	switch {
	case len(source) > MaxSource:
		return nil, &Error{1, 1, fmt.Sprintf("%d bytes long (limit %d)", len(source), MaxSource)}
	case strings.TrimSpace(source) == "":
		return nil, &Error{1, 1, "is empty"}
	case !utf8.ValidString(source):
		return nil, &Error{1, 1, "is no valid UTF-8"}
	}
	ast, issues := environment.Compile(source)
	if issues.Err() != nil {
		return nil, firstOf(issues.Errors(), source)
	}
	out := map[Type]*cel.Type{Bool: cel.BoolType, Text: cel.StringType}[want]
	if got := ast.OutputType(); !got.IsExactType(out) && !got.IsExactType(cel.DynType) {
		return nil, &Error{1, 1, fmt.Sprintf("results in %s, want %s", got, want)}
	}
	if e := growth(ast); e != nil {
		return nil, e
	}
	run, err := environment.Program(ast, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(MaxCost), cel.CostTracking(weigher{}), cel.OptimizeRegex(matches...))
	if err != nil {
		return nil, &Error{1, 1, err.Error()}
	}
	reads := map[string]bool{}
	for _, reference := range ast.NativeRep().ReferenceMap() {
		reads[reference.Name] = true
	}
	return &Program{source, reads, run}, nil
}

// The errors of an evaluation. CEL's own errors are never returned, because they quote the value
// that they failed on.
var (
	errInput   = errors.New("the input has a number out of range, or is no JSON object within bounds")
	errCost    = errors.New("it takes too much work on this input")
	errMissing = errors.New("a member that it reads is not there")
	errType    = errors.New("a value is of a type that it cannot work with")
	errOther   = errors.New("it cannot be evaluated on this input")
)

// Bool evaluates a program that was compiled for [Bool].
func (p *Program) Bool(s *Subject) (bool, error) {
	v, err := p.eval(s)
	if err != nil {
		return false, err
	}
	b, ok := v.(bool)
	if !ok {
		return false, errType
	}
	return b, nil
}

// Text evaluates a program that was compiled for [Text].
func (p *Program) Text(s *Subject) (string, error) {
	v, err := p.eval(s)
	if err != nil {
		return "", err
	}
	text, ok := v.(string)
	if !ok {
		return "", errType
	}
	return text, nil
}

func (p *Program) eval(s *Subject) (v any, err error) {
	defer func() {
		if recover() != nil {
			v, err = nil, errOther
		}
	}()
	if s.err != nil {
		return nil, s.err
	}
	out, _, err := p.run.Eval(s.variables)
	if err != nil {
		return nil, inWords(err)
	}
	if out == nil || types.IsUnknownOrError(out) {
		return nil, errOther
	}
	return out.Value(), nil
}

func inWords(err error) error {
	said := err.Error()
	for part, known := range map[string]error{
		"cost limit exceeded": errCost, "no such key": errMissing, "index out of bounds": errMissing, "no such overload": errType,
	} {
		if strings.Contains(said, part) {
			return known
		}
	}
	return errOther
}
