package rawjson

import (
	"encoding/json"
	"math"
	"strconv"
	"time"
	"unicode/utf8"
)

// The functions Append... append the bytes that [Marshal] would write for a value, but
// without reflection.

// AppendString appends a JSON string.
func AppendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf || c == 0x7f {
			return append(b, Quote(s)...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// AppendFloat appends a number. It panics if f is infinite or NaN, because JSON has no such
// numbers.
func AppendFloat(b []byte, f float64) []byte {
	if size := math.Abs(f); size != 0 && (size < 1e-6 || size >= 1e21) || f != f {
		return append(b, MustMarshal(f)...)
	}
	return strconv.AppendFloat(b, f, 'f', -1, 64)
}

// AppendTime appends a time as encoding/json writes it. It panics if the year does not have
// four digits, or if the offset of the zone is a day or more.
func AppendTime(b []byte, t time.Time) []byte {
	const day = 24 * 60 * 60
	if _, offset := t.Zone(); t.Year() < 0 || t.Year() > 9999 || offset <= -day || offset >= day {
		return append(b, MustMarshal(t)...)
	}
	b = append(b, '"')
	b = t.AppendFormat(b, time.RFC3339Nano)
	return append(b, '"')
}

// AppendRaw appends valid JSON without the white space between its parts. If raw is empty, it
// appends null.
func AppendRaw(b []byte, raw json.RawMessage) []byte {
	if len(raw) == 0 {
		return append(b, "null"...)
	}
	if isCompact(raw) {
		return append(b, raw...)
	}
	return append(b, MustMarshal(raw)...)
}

// isCompact reports whether valid JSON has no white space outside its strings.
func isCompact(raw []byte) bool {
	for i := 0; i < len(raw); i++ {
		switch raw[i] {
		case ' ', '\t', '\r', '\n':
			return false
		case '"':
			for i++; i < len(raw) && raw[i] != '"'; i++ {
				if raw[i] == '\\' {
					i++
				}
			}
		}
	}
	return true
}
