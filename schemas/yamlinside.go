package schemas

import (
	"strings"
	"unicode"
)

// inside finds the place in the file of a line and column within a text value. YAML folds lines and
// drops indentation, but keeps all other characters in their order, so characters that are not
// white space are counted in both. When the place cannot be found, it returns the start of the
// value.
func (m *mistakes) inside(at position, text string, line, column int) position {
	before, all := 0, 0 // characters of the value, before the place and in all
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
	// A mistake at the end of the text is reported behind its last character.
	found, ok := m.nth(at, min(before, all-1))
	if !ok {
		return at
	}
	if before == all {
		found.column++
	}
	return found
}

// nth finds the character with n non-blank characters before it, in the value that starts at a
// position.
func (m *mistakes) nth(at position, n int) (position, bool) {
	lines := strings.Split(string(m.source), "\n")
	if at.line < 1 || at.line > len(lines) {
		return at, false
	}
	first := []rune(lines[at.line-1])
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
	for i, line := range lines[at.line-1:] {
		runes := []rune(line)
		for j := start; j < len(runes); j++ {
			if unicode.IsSpace(runes[j]) {
				continue
			}
			if n == 0 {
				return position{at.line + i, j + 1}, true
			}
			n--
			// An escape: this and the next are one character.
			if quote == '"' && runes[j] == '\\' || quote == '\'' && runes[j] == '\'' {
				j++
			}
		}
		start = 0
	}
	return at, false
}
