package schemas

import (
	"bytes"
	"strings"
	"unicode"
)

// inside is where a place in a text value stands in the file: line and column count within the value. YAML folds
// lines and drops indentation, but keeps every character that is no white space in its order, so those are counted
// in both. Where that leads nowhere, it is where the value starts.
func (m *mistakes) inside(at position, text string, line, column int) position {
	skip := 0 // characters of the value in front of the place
	for i, l := range strings.SplitAfter(text, "\n") {
		runes := []rune(l)
		if i == line-1 {
			runes = runes[:min(column-1, len(runes))]
		}
		for _, c := range runes {
			if !unicode.IsSpace(c) {
				skip++
			}
		}
		if i == line-1 {
			break
		}
	}
	if found, ok := m.nth(at, skip); ok {
		return found
	}
	return at
}

// nth is where the character stands that has n characters before it in the value that starts at a position. Behind
// the last one is a place too: what is missing is missing there.
func (m *mistakes) nth(at position, n int) (position, bool) {
	lines := bytes.Split(m.source, []byte("\n"))
	if at.line < 1 || at.line > len(lines) {
		return at, false
	}
	first := []rune(string(lines[at.line-1]))
	if at.column < 1 || at.column > len(first) {
		return at, false
	}
	start, quote := at.column-1, rune(0)
	switch c := first[start]; c {
	case '|', '>': // a block, which starts in the next line
		start = len(first)
	case '\'', '"':
		quote = c
		start++
	}
	behind, seen := at, 0
	for i := at.line - 1; i < len(lines); i++ {
		runes := []rune(strings.TrimSuffix(string(lines[i]), "\r"))
		for ; start < len(runes); start++ {
			if unicode.IsSpace(runes[start]) {
				continue
			}
			here := position{i + 1, start + 1}
			escape := quote == '"' && runes[start] == '\\' || quote == '\'' && runes[start] == '\''
			if escape && start+1 < len(runes) {
				start++
			}
			if seen == n {
				return here, true
			}
			behind = position{i + 1, start + 2}
			if seen++; seen == n && start+1 == len(runes) {
				return behind, true
			}
		}
		start = 0
	}
	return behind, seen == n
}
