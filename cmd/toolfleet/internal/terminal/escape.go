package terminal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf16"

	"github.com/toolfleet/toolfleet/internal/rawjson"
)

// Escape makes an id from outside safe as part of a sentence, on one line.
func Escape[T ~string](id T) string {
	return strings.ReplaceAll(escapeText(string(id)), "\n", `\u000a`)
}

var wordLike = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`)

// ArgumentName returns the name of an argument as it is if it looks like a word, else as a JSON
// string.
func ArgumentName(name string) string {
	if wordLike.MatchString(name) {
		return name
	}
	return JSONText(rawjson.Quote(name))
}

// JSONText renders a JSON value for a person, still as JSON: with sorted keys, indentation, and
// escapes for characters that are not printable.
func JSONText(raw json.RawMessage) string {
	canonical, err := rawjson.Canonical(raw)
	if err != nil {
		return Escape(string(raw))
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, canonical, "", "  "); err != nil {
		return Escape(string(raw))
	}
	return escapeText(indented.String())
}

// escapeText returns a text with an escape in place of every character that a person could not see
// or recognize.
func escapeText(text string) string {
	var out strings.Builder
	marks := mostMarks
	for _, r := range text {
		switch {
		case unicode.IsMark(r):
			marks++
		case unicode.IsLetter(r):
			marks = 0
		default:
			marks = mostMarks
		}
		if r == '\n' || marks <= mostMarks && unicode.IsPrint(r) && !unicode.In(r, unseen...) {
			out.WriteRune(r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			fmt.Fprintf(&out, `\u%04x`, unit)
		}
	}
	return out.String()
}

// mostMarks is how many combining marks a letter may carry. More would cover the text around it.
const mostMarks = 3

// unseen holds characters that count as printable but cannot be seen, or that change the direction
// of the text.
var unseen = []*unicode.RangeTable{unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector, unicode.Bidi_Control}
