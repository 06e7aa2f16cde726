package strictyaml

import (
	"strings"
	"unicode"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// nodePosition returns the place at which, for a human reader, a value starts.
func nodePosition(n ast.Node) Position {
	switch n := n.(type) {
	case *ast.MappingNode:
		if !n.IsFlowStyle && len(n.Values) > 0 {
			return nodePosition(n.Values[0].Key)
		}
	case *ast.MappingValueNode:
		return nodePosition(n.Key)
	}
	return tokenPosition(n.GetToken())
}

func tokenPosition(t *token.Token) Position {
	if t == nil || t.Position == nil {
		return Position{}
	}
	return Position{t.Position.Line, t.Position.Column}
}

// scalarPosition returns the place at which a scalar begins. The library counts the blanks
// behind a plain scalar into its column. Therefore the column is computed from the blanks
// before the scalar.
func scalarPosition(t *token.Token) Position {
	at := tokenPosition(t)
	if t == nil || t.Prev == nil {
		return at
	}
	column := at.Column
	blanks := t.Origin[:len(t.Origin)-len(strings.TrimLeft(t.Origin, " \t\r\n"))]
	if newline := strings.LastIndexByte(blanks, '\n'); newline >= 0 {
		column = len(blanks) - newline
	} else if before := tokenPosition(t.Prev); before.Line == at.Line && len(t.Prev.Value) == 1 { // ":" or "-"
		column = before.Column + 1 + len(blanks)
	}
	return Position{at.Line, min(column, at.Column)}
}

// Inside returns the place in the file for a line and column within a text value. YAML folds
// lines and drops indentation, but keeps all other characters in their order. Inside therefore
// counts the characters that are not white space in both texts. If it cannot find the place,
// it returns the start of the value.
func (f *File) Inside(at Position, text string, line, column int) Position {
	before, all := 0, 0 // numbers of non-blank characters of the value: before the place, and all
	for i, l := range strings.SplitAfter(text, "\n") {
		for j, c := range []rune(l) {
			if unicode.IsSpace(c) {
				continue
			}
			all++
			if i < line-1 || i == line-1 && j < column-1 {
				before++
			}
		}
	}
	if all == 0 {
		return at
	}
	// A mistake at the end of the text is reported after the last character.
	found, ok := f.nth(at, min(before, all-1))
	if !ok {
		return at
	}
	if before == all {
		found.Column++
	}
	return found
}

// nth returns the place of the character that has n non-blank characters before it, in the
// value that starts at a position.
func (f *File) nth(at Position, n int) (Position, bool) {
	lines := strings.Split(f.source, "\n")
	if at.Line < 1 || at.Line > len(lines) {
		return at, false
	}
	first := []rune(lines[at.Line-1])
	if at.Column < 1 || at.Column > len(first) {
		return at, false
	}
	start, quote := at.Column-1, rune(0)
	switch c := first[start]; c {
	case '|', '>': // a block, which starts in the next line
		start = len(first)
	case '\'', '"':
		quote = c
		start++
	}
	for i, line := range lines[at.Line-1:] {
		runes := []rune(line)
		for j := start; j < len(runes); j++ {
			if unicode.IsSpace(runes[j]) {
				continue
			}
			if n == 0 {
				return Position{at.Line + i, j + 1}, true
			}
			n--
			// An escape is two runes of the source and one character of the value.
			if quote == '"' && runes[j] == '\\' || quote == '\'' && runes[j] == '\'' {
				j++
			}
		}
		start = 0
	}
	return at, false
}
