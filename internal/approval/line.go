package approval

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/messages"
)

// Bounds of a line, in characters. What is beyond them is left out in the middle, and the line says how much; that
// comes on top.
const (
	maxText  = 160  // of one string, number or name
	maxValue = 240  // of one argument, where there is room
	minValue = 48   // of one argument, where there are many
	maxLine  = 1600 // of the whole
	shared   = 1000 // what the arguments share evenly
	maxDepth = 6    // of lists and objects in one another: below, each is read once more for every one around it
)

// Line is a call on one line for people: the tool's name, and each argument in the order of its name with its value as
// compact JSON. It is made of those alone; nothing that the model says about the call is in it.
//
//	issue_refund amount=149.99 note="two lines\nof text" order="A-1001"
//
// No argument can look like something else. Whatever is not plainly printable is written as an escape of JSON: control
// characters, those that turn the direction of text, those that nobody sees, and those that look like a quotation
// mark. What is left out is told outside of the quotes, where no argument can write. A name that is no plain word is
// quoted, and its first character escaped unless it is a letter from a to z: a name so starts from left to right,
// whatever the direction of the text before it.
func Line(tool string, input json.RawMessage) string {
	line := pieces{name(tool, plainTool)}
	members, err := messages.Object(input)
	if err != nil || messages.Check(input) != nil {
		return string(append(line, " (arguments that cannot be read: ", shorten(runes(string(input)), `"`), ")").cut(maxLine))
	}
	room := max(minValue, min(maxValue, shared/max(1, len(members))))
	for _, key := range messages.SortedKeys(members) {
		value := pieces{}.value(members[key], 0).cut(room)
		line = append(line, " ", name(key, plainKey), "=", string(value))
	}
	return string(line.cut(maxLine))
}

var (
	plainTool = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	plainKey  = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,63}$`)
)

// name is a name as it is where it is plain, and else a quoted one that starts with a Latin letter or an escape.
func name(s string, plain *regexp.Regexp) string {
	if plain != nil && plain.MatchString(s) {
		return s
	}
	chars := runes(s)
	if first, _ := utf8.DecodeRuneInString(s); s != "" && first != utf8.RuneError && (first|0x20 < 'a' || first|0x20 > 'z') {
		chars[0] = escapeUnit(first)
	}
	return shorten(chars, `"`)
}

// pieces is a text in parts that are kept or left out whole.
type pieces []string

// value adds the parts of a JSON value: each string, number and mark is one.
func (p pieces) value(raw json.RawMessage, depth int) pieces {
	kind := messages.TypeOf(raw)
	if depth == maxDepth && (kind == "an object" || kind == "an array") {
		return append(p, leftOut(utf8.RuneCount(raw)))
	}
	switch kind {
	case "an object":
		members, _ := messages.Object(raw) // Check has seen it
		p = append(p, "{")
		for i, key := range messages.SortedKeys(members) {
			if i > 0 {
				p = append(p, ",")
			}
			p = append(p, name(key, nil)+":").value(members[key], depth+1)
		}
		return append(p, "}")
	case "an array":
		var items []json.RawMessage
		_ = json.Unmarshal(raw, &items) // Check has seen it
		p = append(p, "[")
		for i, item := range items {
			if i > 0 {
				p = append(p, ",")
			}
			p = p.value(item, depth+1)
		}
		return append(p, "]")
	case "a string":
		return append(p, text(raw))
	}
	return append(p, shorten(runes(strings.TrimSpace(string(raw))), ""))
}

// cut is the parts as one text, without those in the middle where all have more characters than there is room for.
// One that alone is too long stays: it has been shortened already.
func (p pieces) cut(room int) (all []byte) {
	size := 0
	for _, s := range p {
		size += utf8.RuneCountInString(s)
	}
	if size <= room {
		return []byte(strings.Join(p, ""))
	}
	head, tail, kept := 0, len(p), 0
	for kept < room/2 && head < tail {
		kept += utf8.RuneCountInString(p[head])
		head++
	}
	for tail > head && kept+utf8.RuneCountInString(p[tail-1]) <= room {
		kept += utf8.RuneCountInString(p[tail-1])
		tail--
	}
	if head == tail {
		return []byte(strings.Join(p, ""))
	}
	return []byte(strings.Join(p[:head], "") + leftOut(size-kept) + strings.Join(p[tail:], ""))
}

func leftOut(n int) string { return fmt.Sprintf("...(%d characters left out)...", n) }

// runes is the characters of a text as they are written in a line.
func runes(s string) []string {
	var out []string
	marks := maxMarks // none may come first
	for i, r := range s {
		if _, size := utf8.DecodeRuneInString(s[i:]); r == utf8.RuneError && size == 1 {
			out = append(out, fmt.Sprintf(`\x%02x`, s[i])) // no UTF-8, so no JSON either
			continue
		}
		out, marks = appendRune(out, r, marks)
	}
	return out
}

// text is a JSON string as it is written in a line. It reads the literal itself: half of a surrogate pair is kept as
// it came, where decoding would make all such halves equal.
func text(raw json.RawMessage) string {
	s := strings.TrimSpace(string(raw))
	s = s[1 : len(s)-1]
	var out []string
	marks := maxMarks
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		if r == '\\' {
			r, size = unescape(s)
		}
		out, marks = appendRune(out, r, marks)
		s = s[size:]
	}
	return shorten(out, `"`)
}

// unescape reads the escape at the start of a JSON string's rest. Half of a pair is its own code point.
func unescape(s string) (r rune, size int) {
	if s[1] != 'u' {
		return map[byte]rune{'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t', '"': '"', '\\': '\\', '/': '/'}[s[1]], 2
	}
	unit := func(at int) rune {
		if len(s) < at+6 || s[at:at+2] != `\u` {
			return -1
		}
		n, err := strconv.ParseUint(s[at+2:at+6], 16, 16)
		if err != nil {
			return -1
		}
		return rune(n)
	}
	r = unit(0)
	if pair := utf16.DecodeRune(r, unit(6)); pair != utf8.RuneError {
		return pair, 12
	}
	return r, 6
}

// maxMarks is how many combining marks a letter may carry. More of them, or one on a quotation mark or a digit, hide
// or change what they are drawn over.
const maxMarks = 3

// appendRune adds a character to those of a line. Marks counts the combining marks since the last letter.
func appendRune(out []string, r rune, marks int) ([]string, int) {
	switch {
	case unicode.IsMark(r) && marks < maxMarks && plain(r):
		return append(out, string(r)), marks + 1
	case unicode.IsMark(r), !plain(r):
		return append(out, escape(r)), maxMarks
	case unicode.IsLetter(r):
		return append(out, string(r)), 0
	}
	return append(out, string(r)), maxMarks
}

// plain reports whether a person sees a character, and sees it for what it is.
func plain(r rune) bool {
	return unicode.IsPrint(r) && r != utf8.RuneError && r != '"' && r != '\\' && !strings.ContainsRune(lookalikes, r) &&
		!unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

// lookalikes is what could be taken for a quotation mark or for an equals sign, and blanks that are no space.
const lookalikes = "\u02ba\u02dd\u02ee\u05f2\u05f4\u201c\u201d\u201e\u201f\u2033\u2036\u275d\u275e\u3003\u301d\u301e\u301f\uff02" +
	"\ua78a\uff1d\u2550\u30a0\u2e40\u2800\u180e\ufffc"

// escape is a character as JSON writes it in ASCII.
func escape(r rune) string {
	if short, ok := map[rune]string{'\b': `\b`, '\f': `\f`, '\n': `\n`, '\r': `\r`, '\t': `\t`, '"': `\"`, '\\': `\\`}[r]; ok {
		return short
	}
	return escapeUnit(r)
}

func escapeUnit(r rune) string {
	if high, low := utf16.EncodeRune(r); high != utf8.RuneError {
		return fmt.Sprintf(`\u%04x\u%04x`, high, low)
	}
	return fmt.Sprintf(`\u%04x`, r)
}

// shorten is characters, as they are written, in one text between quotes. Where they need too much room, both ends
// are kept, each between quotes of its own, with the number of those left out between them.
func shorten(chars []string, quote string) string {
	head := fit(chars, maxText)
	if head == len(chars) {
		return quote + strings.Join(chars, "") + quote
	}
	head = fit(chars, maxText/2)
	reversed := slices.Clone(chars[head:])
	slices.Reverse(reversed)
	tail := len(chars) - fit(reversed, maxText/2)
	return quote + strings.Join(chars[:head], "") + quote + leftOut(tail-head) + quote + strings.Join(chars[tail:], "") + quote
}

// fit is how many of the characters fit into the room, from the first.
func fit(chars []string, room int) int {
	for i, c := range chars {
		if room -= utf8.RuneCountInString(c); room < 0 {
			return i
		}
	}
	return len(chars)
}
