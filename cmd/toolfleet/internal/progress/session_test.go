package progress

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminaltest"
	"github.com/toolfleet/toolfleet/messages"
)

// The output of toolfleet watch, without a terminal and on one.
func TestWatchedSession(t *testing.T) {
	var out strings.Builder
	for _, live := range []bool{false, true} {
		w := Session{live: live}
		fmt.Fprintf(&out, "== live: %v\n", live)
		for i, e := range history().Events {
			e.Batch = "turn-7"
			now := e.Time
			out.WriteString(w.Take(e, now))
			other := messages.Event{Type: messages.EventRunning, Batch: "turn-8", Tool: "Grep", Time: now, Attempt: 1}
			if i == 7 {
				out.WriteString(w.Take(other, now))
			}
			if i == 11 && live {
				fmt.Fprintln(&out, strings.Join(draw(w.lines(), now, 80), "\n"))
			}
		}
		fmt.Fprintln(&out, strings.Join(draw(w.lines()[:1], time.Now(), 80), "\n"))
	}
	terminaltest.Golden(t, "session.txt", out.String())
}
