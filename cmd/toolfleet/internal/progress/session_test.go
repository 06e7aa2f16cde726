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

// Several sessions are watched: each line names its session. Events after a reply are ignored,
// and boards are removed when events were missed.
func TestWatchedSessions(t *testing.T) {
	w := NewSessions(false, false)
	var out strings.Builder
	take := func(e messages.Event) { out.WriteString(w.Take(e, e.Time)) }
	for _, session := range []messages.SessionID{"s1", "s2"} {
		take(messages.Event{Type: messages.EventRunning, Session: session, Batch: "turn-1", Tool: "Grep", Attempt: 1})
	}
	reply := messages.Event{Type: messages.EventReply, Session: "s1", Batch: "turn-1", Index: -1, Status: messages.ReplyCompleted}
	take(reply)
	take(reply)
	take(messages.Event{Type: messages.EventRunning, Session: "s1", Batch: "turn-1", Tool: "Grep", Attempt: 1})
	if n := len(w.batches); n != 1 {
		t.Errorf("%d batches run, want that of s2", n)
	}
	take(messages.Event{Type: messages.EventGap, Index: -1})
	want := "s1 turn-1  call 0 Grep: running\ns2 turn-1  call 0 Grep: running\n✓ s1 turn-1  completed: 1 call, 0 ms\nsome events were missed\n"
	if got := out.String(); got != want || len(w.batches) != 0 {
		t.Errorf("got %d boards and\n%s\nwant\n%s", len(w.batches), got, want)
	}
}
