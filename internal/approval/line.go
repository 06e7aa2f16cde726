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

	"github.com/toolfleet/toolfleet/internal/rawjson"
)

// Limits of a line, in characters. If a text is longer, its middle is left out, and a note
// says how many characters are missing. The note does not count.
const (
	maxText  = 160  // one string, number or name
	maxValue = 240  // one argument, if there are few
	minValue = 48   // one argument, if there are many
	maxLine  = 1600 // the whole line
	shared   = 1000 // all arguments together; each gets an equal share
	maxDepth = 6    // levels of nesting; each level is decoded again for every level around it
)

// Line returns a call as one line for people: the tool's name, and the arguments sorted by
// name, with values as compact JSON. It has nothing else that the model says about the call.
//
//	issue_refund amount=149.99 note="two lines\nof text" order="A-1001"
//
// No argument can look like something else. JSON escapes replace control characters,
// characters that change the direction of text, invisible characters, and characters that look
// like a quotation mark. The note about left-out text is outside the quotes, where no argument
// can write. A name that is not a plain word is quoted. Its first character is escaped unless
// it is a letter from a to z. So the name is read from left to right, in whatever direction
// the text before it is written.
func Line(tool string, input json.RawMessage) string {
	line := pieces{name(tool, plainTool)}
	members, err := rawjson.Object(input)
	if err != nil || rawjson.Check(input) != nil {
		return string(append(line, " (arguments that cannot be read: ", shorten(runes(string(input)), `"`), ")").cut(maxLine))
	}
	budget := max(minValue, min(maxValue, shared/max(1, len(members))))
	for _, key := range rawjson.SortedKeys(members) {
		value := pieces{}.value(members[key], 0).cut(budget)
		line = append(line, " ", name(key, plainKey), "=", string(value))
	}
	return string(line.cut(maxLine))
}

var (
	plainTool = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	plainKey  = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,63}$`)
)

// name returns a plain name unchanged. It quotes any other name. In a quoted name, it escapes
// the first character unless that is a letter from a to z.
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

// pieces is a text in parts. Each part is kept or left out as a whole.
type pieces []string

// value adds the parts of a JSON value. Each string, number and punctuation mark is one
// part.
func (p pieces) value(raw json.RawMessage, depth int) pieces {
	kind := rawjson.TypeOf(raw)
	if depth == maxDepth && (kind == "an object" || kind == "an array") {
		return append(p, leftOut(utf8.RuneCount(raw)))
	}
	switch kind {
	case "an object":
		members, _ := rawjson.Object(raw) // cannot fail: rawjson.Check has accepted it
		p = append(p, "{")
		for i, key := range rawjson.SortedKeys(members) {
			if i > 0 {
				p = append(p, ",")
			}
			p = append(p, name(key, nil)+":").value(members[key], depth+1)
		}
		return append(p, "}")
	case "an array":
		var items []json.RawMessage
		_ = json.Unmarshal(raw, &items) // cannot fail: rawjson.Check has accepted it
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

// cut joins the parts. If they have more than budget characters, it leaves out parts in the
// middle. It never cuts a single part, because each part has been shortened before.
func (p pieces) cut(budget int) (all []byte) {
	size := 0
	for _, s := range p {
		size += utf8.RuneCountInString(s)
	}
	if size <= budget {
		return []byte(strings.Join(p, ""))
	}
	head, tail, kept := 0, len(p), 0
	for kept < budget/2 && head < tail {
		kept += utf8.RuneCountInString(p[head])
		head++
	}
	for tail > head && kept+utf8.RuneCountInString(p[tail-1]) <= budget {
		kept += utf8.RuneCountInString(p[tail-1])
		tail--
	}
	if head == tail {
		return []byte(strings.Join(p, ""))
	}
	return []byte(strings.Join(p[:head], "") + leftOut(size-kept) + strings.Join(p[tail:], ""))
}

func leftOut(n int) string { return fmt.Sprintf("...(%d characters left out)...", n) }

// runes returns the characters of a text in the form for the line.
func runes(s string) []string {
	var out []string
	marks := maxMarks // with no letter before it, a mark is escaped
	for i, r := range s {
		if _, size := utf8.DecodeRuneInString(s[i:]); r == utf8.RuneError && size == 1 {
			out = append(out, fmt.Sprintf(`\x%02x`, s[i])) // invalid UTF-8, so the JSON is invalid
			continue
		}
		out, marks = appendRune(out, r, marks)
	}
	return out
}

// text returns a JSON string in the form for the line. It does not use encoding/json, which
// turns every unpaired surrogate into U+FFFD: different strings would look the same.
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

// unescape reads the escape at the start of s. For an unpaired surrogate it returns the
// surrogate's code point.
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

// maxMarks is how many combining marks a letter may have. Further marks, and any mark on a
// quotation mark or a digit, are escaped, because a mark can hide or change the character
// below it.
const maxMarks = 3

// appendRune appends a character in the form for the line. marks is the number of combining
// marks since the last letter.
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

// plain reports whether a person can see and recognize a character.
func plain(r rune) bool {
	return unicode.IsPrint(r) && r != utf8.RuneError && r != '"' && r != '\\' && !strings.ContainsRune(lookalikes, r) &&
		!unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

// lookalikes has the characters that look like a quotation mark, an equals sign or a space.
const lookalikes = "\u02ba\u02dd\u02ee\u05f2\u05f4\u201c\u201d\u201e\u201f\u2033\u2036\u275d\u275e\u3003\u301d\u301e\u301f\uff02" +
	"\ua78a\uff1d\u2550\u30a0\u2e40\u2800\u180e\ufffc"

// escape returns a character as a JSON escape in ASCII.
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

// shorten joins characters into one quoted text. If there are more than maxText characters, it
// keeps both ends, each in quotes, and writes between them how many characters are left out.
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

// fit returns how many characters from the start fit into the budget.
func fit(chars []string, budget int) int {
	for i, c := range chars {
		if budget -= utf8.RuneCountInString(c); budget < 0 {
			return i
		}
	}
	return len(chars)
}
