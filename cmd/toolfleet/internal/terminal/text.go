// Package terminal shows text to a person and asks for answers. It has durations and names that are
// safe to print, tables and line breaks that fit the screen, differences between texts, prompts and
// editors. It knows no batch and no fleet.
//
// Text from outside may hold control characters, invisible characters or a change of direction.
// Clean replaces them, for text that is only for information. Escape, ArgumentName and JSONText
// show each of them as an escape, for text by which a person decides.
package terminal

import (
	"fmt"
	"strings"
	"time"
	"unicode"
)

// Count returns a number and what it counts: "1 call", "2 calls".
func Count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// Brief formats a duration: 0 ms, 12 ms, 3.4 s, 2m05s.
func Brief(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
}

// Span formats the distance to a moment in the past or future: 45s, 14m20s, 3h05m, 2d.
func Span(d time.Duration) string {
	d = max(0, d.Round(time.Second))
	switch hours := int(d.Hours()); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case hours >= 48:
		return fmt.Sprintf("%dd", hours/24)
	case hours > 0:
		return strings.TrimSuffix(fmt.Sprintf("%dh%02dm", hours, int(d.Minutes())%60), "00m")
	}
	return strings.TrimSuffix(fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60), "00s")
}

// Clean makes text from outside safe to show: on one line, without control characters, at most
// `most` characters.
func Clean(text string, most int) string {
	var out strings.Builder
	space := false
	for _, r := range strings.TrimSpace(text) {
		if unicode.IsSpace(r) {
			space = true
			continue
		}
		if space {
			out.WriteByte(' ')
			space = false
		}
		if !unicode.IsPrint(r) {
			r = '\uFFFD'
		}
		out.WriteRune(r)
		if out.Len() > 4*most {
			break
		}
	}
	return Clip(out.String(), most)
}

// Clip cuts a text to at most `most` characters; the last one is then an ellipsis.
func Clip(text string, most int) string {
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	return string(runes[:max(0, most-1)]) + "…"
}

// None is what a table shows in an empty cell.
const None = "-"

// OrDash is like Clean, but returns None if nothing is left.
func OrDash(text string, most int) string {
	if text = Clean(text, most); text == "" {
		return None
	}
	return text
}

// Timestamp formats a moment to the second, in UTC.
func Timestamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// ShortIDLength is how many characters of an id are shown, usually enough to tell ids apart.
const ShortIDLength = 12

// ShortID returns the first ShortIDLength characters of an id.
func ShortID(id string) string { return Clean(id[:min(len(id), ShortIDLength)], ShortIDLength) }
