package terminal

import (
	"strings"
	"testing"
	"time"
)

func TestCleanNeverHarmsATerminal(t *testing.T) {
	for _, text := range []string{"\x1b]0;owned\x07", "a\nb\rc\td", "\u202eright to left", strings.Repeat("é", 500), "\xff\xfe", "   "} {
		got := Clean(text, 20)
		if n := len([]rune(got)); n > 20 {
			t.Errorf("clean(%.20q) has %d characters", text, n)
		}
		if strings.ContainsAny(got, "\x1b\x07\n\r\t\u202e") {
			t.Errorf("clean(%.20q) = %q", text, got)
		}
	}
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 1600 * time.Millisecond: "2s", 14*time.Minute + 20*time.Second: "14m20s", 15 * time.Minute: "15m", 3*time.Hour + 5*time.Minute: "3h05m", 3 * time.Hour: "3h", 50 * time.Hour: "2d",
	} {
		if got := Span(d); got != want {
			t.Errorf("span(%v) = %s, want %s", d, got, want)
		}
	}
}
