// Package filetext holds code for tools that read files: lines, characters, and reading up
// to a limit.
package filetext

import (
	"bytes"
	"io"
	"unicode/utf8"
)

// SniffBytes is how many bytes of a file are read to tell text from binary content.
const SniffBytes = 8 << 10

// IsBinary reports whether a file is binary, by git's rule: there is a NUL among its first bytes.
func IsBinary(head []byte) bool {
	return bytes.IndexByte(head[:min(len(head), SniffBytes)], 0) >= 0
}

// Span is a line of a text without its line end. int32 is enough, because searched texts
// are below 2 GB.
type Span struct{ From, To int32 }

// LineFrom returns the line that begins at from, and the start of the next line.
func LineFrom(text []byte, from int) (line Span, next int) {
	to := len(text)
	next = to
	if i := bytes.IndexByte(text[from:], '\n'); i >= 0 {
		to, next = from+i, from+i+1
	}
	if to > from && text[to-1] == '\r' {
		to--
	}
	return Span{int32(from), int32(to)}, next
}

// SplitLines returns every line of text.
func SplitLines(text []byte) []Span {
	lines := make([]Span, 0, bytes.Count(text, []byte("\n"))+1)
	for from := 0; from < len(text); {
		line, next := LineFrom(text, from)
		lines = append(lines, line)
		from = next
	}
	return lines
}

// RuneStart returns the position where a character of text begins: the character that contains
// the byte at position at.
func RuneStart(text []byte, at int) int {
	if at >= len(text) {
		return len(text)
	}
	for back := 0; back < utf8.UTFMax && at-back > 0; back++ {
		if utf8.RuneStart(text[at-back]) {
			return at - back
		}
	}
	return at // the text is not UTF-8
}

// ReadAll reads f, which has about size bytes. If f has more than limit bytes, large is
// true and text is only its beginning.
func ReadAll(f io.Reader, size int64, limit int) (text []byte, large bool, err error) {
	var buf bytes.Buffer
	buf.Grow(int(min(size, int64(limit))) + bytes.MinRead)
	_, err = buf.ReadFrom(io.LimitReader(f, int64(limit)+1))
	return buf.Bytes(), buf.Len() > limit, err
}
