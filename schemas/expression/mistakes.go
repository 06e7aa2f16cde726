package expression

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"cel.dev/cel-go/common"
)

// firstOf returns the first mistake by position, because later mistakes often follow from it.
func firstOf(all []*common.Error, source string) *Error {
	first := slices.MinFunc(all, func(a, b *common.Error) int {
		return cmp.Or(cmp.Compare(a.Location.Line(), b.Location.Line()), cmp.Compare(a.Location.Column(), b.Location.Column()))
	})
	message, _, _ := strings.Cut(first.Message, "\n")
	m := mistake{lines: strings.Split(source, "\n"), line: max(first.Location.Line(), 1), column: max(first.Location.Column(), 0)}
	if name, unknown := strings.CutPrefix(message, "undeclared reference to "); unknown {
		name, hint, _ := strings.Cut(name, " (did you mean ")
		return m.unknown(strings.Trim(name, "'"), strings.Trim(hint, "'?)"))
	}
	if syntax, ok := strings.CutPrefix(message, "Syntax error: "); ok {
		return m.syntax(syntax)
	}
	if message == "invalid argument to has() macro" {
		message = "has wants a member, such as has(input.reason)"
	}
	return m.says("%s", message)
}

// mistake is a place in an expression: a line, from 1, and the number of characters before it in
// that line.
type mistake struct {
	lines        []string
	line, column int
}

func (m mistake) says(format string, args ...any) *Error {
	return &Error{m.line, m.column + 1, fmt.Sprintf(format, args...)}
}

// before returns the text of the line up to the place; after returns the rest.
func (m mistake) before() string {
	line := m.lineText()
	return string(line[:min(m.column, len(line))])
}

func (m mistake) after() string {
	line := m.lineText()
	return string(line[min(m.column, len(line)):])
}

func (m mistake) lineText() []rune {
	if m.line > len(m.lines) {
		return nil
	}
	return []rune(m.lines[m.line-1])
}

// back returns the place that is earlier by the length of text.
func (m mistake) back(text string) mistake {
	m.column -= len([]rune(text))
	return m
}

// end returns the place after the last word. An expression that ends too early is reported there,
// not on the empty lines after it.
func (m mistake) end() mistake {
	for i, line := range slices.Backward(m.lines) {
		if line = strings.TrimRightFunc(line, unicode.IsSpace); line != "" {
			m.line, m.column = i+1, len([]rune(line))
			return m
		}
	}
	return m
}

// elsewhere maps function names of other languages to those of CEL.
var elsewhere = map[string]string{
	"len": "size", "length": "size", "count": "size", "includes": "contains", "any": "exists", "some": "exists", "every": "all",
	"toLowerCase": "lowerAscii", "toLower": "lowerAscii", "toUpperCase": "upperAscii", "toUpper": "upperAscii", "strip": "trim",
	"starts_with": "startsWith", "ends_with": "endsWith", "match": "matches",
}

// macros lists functions whose arguments CEL rewrites, with an example. If the arguments of a
// macro have the wrong form, CEL reports an unknown function.
var macros = map[string]string{
	"has": "has(input.a)", "all": "all(x, x > 1)", "exists": "exists(x, x > 1)", "exists_one": "exists_one(x, x > 1)",
	"map": "map(x, x + 1)", "filter": "filter(x, x > 1)",
}

// unknown reports an unknown variable or function. For a function, CEL gives the position of
// the bracket after its name. For a method of an unknown variable, CEL reports
// "variable.method" as one unknown function.
func (m mistake) unknown(name, hint string) *Error {
	if !strings.HasPrefix(m.after(), "(") {
		return m.says("'%s' is not known; an expression reads %s", name, strings.Join(variables, ", "))
	}
	front := strings.TrimRightFunc(m.before(), unicode.IsSpace)
	m.column = len([]rune(front))
	if strings.HasSuffix(front, name) {
		m = m.back(name)
	}
	if at := strings.LastIndexByte(name, '.'); at > 0 {
		variable := name[:at]
		// Report the place of the variable, as for an unknown variable without a method.
		m.column += max(strings.LastIndexByte(variable, '.'), 0)
		return m.says("'%s' is not known; an expression reads %s", variable, strings.Join(variables, ", "))
	}
	if example := macros[name]; example != "" {
		return m.says("%s is used like %s", name, example)
	}
	if known := elsewhere[name]; known != "" {
		hint = known
	}
	if hint != "" && (macros[hint] != "" || environment.HasFunction(hint)) {
		return m.says("there is no function %s; did you mean %s?", name, hint)
	}
	return m.says("there is no function %s", name)
}

// notHere maps operators of other languages to those of CEL.
var notHere = map[string]string{
	"=": "==", "===": "==", "!==": "!=", "<>": "!=", "=!": "!=", "=>": ">=", "=<": "<=", "&": "&&", "|": "||",
	"and": "&&", "AND": "&&", "or": "||", "OR": "||", "not": "!", "NOT": "!",
}

var (
	operatorBehind = regexp.MustCompile(`[=!<>&|]+$`)
	operatorAhead  = regexp.MustCompile(`^[=!<>&|]+`)
	wordBehind     = regexp.MustCompile(`(?:^|[^\w.])(not|NOT)\s+$`)
	noToken        = regexp.MustCompile(`^token recognition error at: '(.*)'$`)
	noEscape       = regexp.MustCompile(`^['"].*(\\[^\\])$`)
	misplaced      = regexp.MustCompile(`^(?:mismatched|extraneous) input ('.*')(?: expecting .*)?$`)
	missing        = regexp.MustCompile(`^(?:missing ('.+') at '<EOF>'|mismatched input '<EOF>' expecting ('[^']+'))$`)
)

// syntax rewords the common errors of the parser. It keeps the text of all others.
func (m mistake) syntax(said string) *Error {
	end := m.end()
	atEnd := m.line > end.line || m.line == end.line && m.column >= end.column
	if parts := missing.FindStringSubmatch(said); parts != nil {
		return end.says("the expression ends too early: %s is missing", cmp.Or(parts[1], parts[2]))
	}
	if atEnd && (strings.HasPrefix(said, "mismatched input '<EOF>'") || strings.HasPrefix(said, "no viable alternative at input '.'")) {
		return end.says("the expression ends too early")
	}
	if e := m.foreign(); e != nil {
		return e
	}
	if parts := noToken.FindStringSubmatch(said); parts != nil {
		return m.noToken(parts[1])
	}
	if parts := misplaced.FindStringSubmatch(said); parts != nil {
		return m.says("%s is not expected here", parts[1])
	}
	said, _, _ = strings.Cut(said, " expecting {") // the rest lists all tokens of the language
	return m.says("Syntax error: %s", said)
}

// foreign reports an operator of another language around the place.
func (m mistake) foreign() *Error {
	front := operatorBehind.FindString(m.before())
	if word := front + operatorAhead.FindString(m.after()); notHere[word] != "" {
		return m.back(front).isNone(word)
	}
	word, _, _ := strings.Cut(m.after(), " ")
	if notHere[word] != "" {
		return m.isNone(word)
	}
	if at := wordBehind.FindStringSubmatchIndex(m.before()); at != nil {
		word, rest := m.before()[at[2]:at[3]], m.before()[at[2]:]
		return m.back(rest).isNone(word)
	}
	return nil
}

func (m mistake) isNone(operator string) *Error {
	return m.says("'%s' is no operator; %s is", operator, notHere[operator])
}

// noToken reports characters with which no token of CEL begins.
func (m mistake) noToken(text string) *Error {
	switch first := []rune(text + " ")[0]; first {
	case '"', '\'':
		if parts := noEscape.FindStringSubmatch(text); parts != nil {
			return m.says(`%s is no escape in a text; a backslash is written \\, and r"..." takes it as it is`, parts[1])
		}
		return m.says("the text that begins here does not end")
	case '“', '”', '„', '‘', '’':
		return m.says(`%c is no quotation mark of the language; " and ' are`, first)
	default:
		return m.says("'%s' is not expected here", strings.TrimSpace(text))
	}
}
