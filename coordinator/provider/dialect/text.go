package dialect

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/rawjson"
)

// Unquote returns the text of a valid JSON string. It keeps lone surrogates, which
// encoding/json replaces: each becomes the three bytes that UTF-8 would use for it. [Quote]
// writes these bytes as a surrogate again.
func Unquote(token []byte) string {
	body := token[1 : len(token)-1]
	if bytes.IndexByte(body, '\\') < 0 {
		return string(body)
	}
	out := make([]byte, 0, len(body))
	for i := 0; i < len(body); {
		switch {
		case body[i] != '\\':
			out = append(out, body[i])
			i++
		case body[i+1] != 'u':
			out = append(out, unescape(body[i+1]))
			i += 2
		default:
			r := unicodeEscape(body[i:])
			i += 6
			if pair := utf16.DecodeRune(r, unicodeEscape(body[i:])); pair != utf8.RuneError {
				r = pair
				i += 6
			}
			out = appendRune(out, r)
		}
	}
	return string(out)
}

func unescape(c byte) byte {
	switch c {
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c
}

// unicodeEscape returns the code unit of the escape \uXXXX at the start of b, or -1 if b does
// not start with one.
func unicodeEscape(b []byte) rune {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return -1
	}
	r, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(r)
}

// appendRune is like utf8.AppendRune, but also accepts surrogates.
func appendRune(b []byte, r rune) []byte {
	if utf16.IsSurrogate(r) {
		return append(b, 0xE0|byte(r>>12), 0x80|byte(r>>6)&0xBF, 0x80|byte(r)&0xBF)
	}
	return utf8.AppendRune(b, r)
}

// surrogate returns the lone surrogate at the start of s, in the form that [Unquote] writes.
func surrogate[T string | []byte](s T) (rune, bool) {
	if len(s) < 3 || s[0] != 0xED || s[1]&0xE0 != 0xA0 || s[2]&0xC0 != 0x80 {
		return 0, false
	}
	return 0xD000 | rune(s[1]&0x3F)<<6 | rune(s[2]&0x3F), true
}

const hexDigits = "0123456789abcdef"

// Quote returns s as a JSON string with only those escapes that JSON requires. Lone surrogates
// become escapes. Other bytes that are not UTF-8 become U+FFFD.
func Quote(s string) json.RawMessage { return appendQuoted(make([]byte, 0, len(s)+2), s) }

func appendQuoted(out []byte, s string) []byte {
	out = append(out, '"')
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			out = appendASCII(out, c)
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if lone, ok := surrogate(s[i:]); ok {
			out = appendEscape(out, lone)
			size = 3
		} else {
			out = utf8.AppendRune(out, r)
		}
		i += size
	}
	return append(out, '"')
}

func appendASCII(out []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(out, '\\', c)
	case '\b':
		return append(out, `\b`...)
	case '\f':
		return append(out, `\f`...)
	case '\n':
		return append(out, `\n`...)
	case '\r':
		return append(out, `\r`...)
	case '\t':
		return append(out, `\t`...)
	}
	if c < ' ' {
		return appendEscape(out, rune(c))
	}
	return append(out, c)
}

func appendEscape(out []byte, r rune) []byte {
	return append(out, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
}

// Value returns a valid JSON value without white space and without escapes that JSON does not
// need. Digits and the order of members stay the same. The model reads the value as an output,
// so every escaped "<" or "é" would cost tokens.
func Value(raw json.RawMessage) json.RawMessage {
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; c {
		case ' ', '\t', '\r', '\n':
		case '"':
			end := stringEnd(raw, i)
			out = appendQuoted(out, Unquote(raw[i:end]))
			i = end - 1
		default:
			out = append(out, c)
		}
	}
	return out
}

// stringEnd returns the index after the JSON string that starts at raw[start].
func stringEnd(raw []byte, start int) int {
	for i := start + 1; i < len(raw); i++ {
		switch raw[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(raw)
}

// parseArguments reads arguments that are JSON inside a string. problem tells the model what
// is wrong and at which byte. It does not quote the text.
func parseArguments(text string) (input []byte, problem string) {
	input = escapeSurrogates(text)
	unfit := rawjson.Check(input)
	var syntax *json.SyntaxError
	var value json.RawMessage
	if err := json.Unmarshal(input, &value); errors.As(err, &syntax) && !errors.Is(unfit, rawjson.ErrTooDeep) {
		return nil, fmt.Sprintf("The arguments are not valid JSON: %v at byte %d of %d. Send one complete JSON object.",
			syntax, syntax.Offset, len(input))
	}
	if unfit != nil {
		return nil, notTaken(unfit)
	}
	if value = bytes.TrimSpace(value); value[0] == 'n' {
		return []byte("{}"), ""
	}
	if value[0] != '{' {
		return nil, notAnObject(value)
	}
	return value, ""
}

// escapeSurrogates writes each lone surrogate as an escape. In valid JSON, a surrogate can
// occur only in a string, where the escape is allowed.
func escapeSurrogates(text string) []byte {
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		if lone, ok := surrogate(text[i:]); ok {
			out = appendEscape(out, lone)
			i += 2
			continue
		}
		out = append(out, text[i])
	}
	return out
}

func notTaken(unfit error) string {
	return fmt.Sprintf("The arguments cannot be taken: %v. Send one plain JSON object.", unfit)
}

func notAnObject(raw []byte) string {
	return fmt.Sprintf("The arguments must be one JSON object, but %s was sent.", rawjson.TypeOf(raw))
}
