package main

import (
	"fmt"
	"strings"
	"time"
	"unicode"
)

func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// brief formats a duration: 0 ms, 12 ms, 3.4 s, 2m05s.
func brief(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
}

// span formats the distance to a moment in the past or future: 45s, 14m20s, 3h05m, 2d.
func span(d time.Duration) string {
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

// clean makes text from outside safe to show: on one line, without control characters, at most
// `most` characters.
func clean(text string, most int) string {
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
	return clip(out.String(), most)
}

// clip cuts a text to at most `most` characters; the last one is then an ellipsis.
func clip(text string, most int) string {
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	return string(runes[:max(0, most-1)]) + "…"
}

const orNone = "-"

func orDash(text string, most int) string {
	if text = clean(text, most); text == "" {
		return orNone
	}
	return text
}

func at(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// shortID is how many characters of an id are shown, usually enough to tell open questions apart.
// shortIDs lengthens them where it is not.
const shortID = 12

// short returns the first shortID characters of an id.
func short(id string) string { return clean(id[:min(len(id), shortID)], shortID) }
