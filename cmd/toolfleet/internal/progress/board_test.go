package progress

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminaltest"
	"github.com/toolfleet/toolfleet/messages"
)

// told is an event, with the time at which it came since the start of the batch.
type told struct {
	at time.Duration
	e  messages.Event
}

func start(index int, tool string) messages.Event {
	return messages.Event{Type: messages.EventStart, Index: index, Tool: tool}
}

func running(index, attempt int) messages.Event {
	return messages.Event{Type: messages.EventRunning, Index: index, Attempt: attempt}
}

func progress(index int, fraction float64, text string) messages.Event {
	return messages.Event{Type: messages.EventProgress, Index: index, Progress: &messages.Progress{Fraction: fraction, Text: text}}
}

func ended(index int, status messages.Status, ms float64, err *messages.Error) messages.Event {
	r := messages.Result{Index: index, Status: status, DurationMS: ms, Outcome: messages.Outcome{Err: err}}
	return messages.Event{Type: messages.EventEnd, Index: index, Result: &r}
}

func asked(index int) messages.Event {
	p := messages.Pending{
		ID: "3fa9c1d200ff3fa9c1d2", Tool: "issue_refund", Line: "issue_refund amount=149.99", Tier: messages.TierHigh, Approvers: 1,
		Asked: time.Unix(142, 0), Expires: time.Unix(142+900, 0),
	}
	return messages.Event{Type: messages.EventAwaiting, Index: index, Tool: p.Tool, Approval: &p}
}

// story is a batch in which everything happens that can happen.
var story = []told{
	{0, start(0, "Grep")}, {0, start(1, "deploy_to_production_and_everywhere_else")}, {0, start(2, "Bash")}, {0, start(3, "nope")},
	{0, ended(3, messages.StatusUnknownTool, 0, &messages.Error{Code: messages.CodeUnknownTool, Message: `There is no tool named "nope".`})},
	{5 * time.Millisecond, running(0, 1)},
	{17 * time.Millisecond, ended(0, messages.StatusOK, 12.4, nil)},
	{20 * time.Millisecond, running(2, 1)},
	{1500 * time.Millisecond, progress(2, 0.42, "compiling\r\x1b[31m step 3\n of 7")},
	{70 * time.Second, running(2, 2)},
	{71 * time.Second, running(1, 1)},
	{72 * time.Second, progress(1, 0, "waiting for the lock")},
	{140 * time.Second, ended(1, messages.StatusError, 69_000, &messages.Error{Code: messages.CodeToolError, Message: "exit status 1\nno space left \x07on device"})},
	{141 * time.Second, ended(2, messages.StatusOutcomeUnknown, 71_000, &messages.Error{Code: messages.CodeOutcomeUnknown, Message: strings.Repeat("long ", 100)})},
	{142 * time.Second, asked(4)},
	{142 * time.Second, messages.Event{Type: messages.EventHook, Index: 4, Hook: &messages.HookMessage{Type: messages.HookPermissionDecision, Hook: "fraud"}}},
	{200 * time.Second, running(4, 1)},
	{201 * time.Second, ended(4, messages.StatusOK, 900, nil)},
	{201 * time.Second, ended(0, messages.StatusOK, 12.4, nil)}, // repeated: the batch resumed
	{201 * time.Second, messages.Event{Type: messages.EventReply, Index: -1}},
	{201 * time.Second, messages.Event{Type: messages.EventEnd, Index: 1 << 30}},
}

func TestBoard(t *testing.T) {
	for _, tc := range []struct {
		file   string
		colour bool
		width  int
	}{{"board.txt", false, 80}, {"narrow.txt", false, 40}, {"colour.txt", true, 80}} {
		t.Run(tc.file, func(t *testing.T) {
			var out strings.Builder
			b := board{colour: tc.colour}
			began := time.Unix(0, 0)
			for i, news := range story {
				b.apply(news.e, began.Add(news.at))
				if i+1 < len(story) && story[i+1].at == news.at {
					continue
				}
				later := news.at + 250*time.Millisecond
				fmt.Fprintf(&out, "== after %v\n", later)
				for _, line := range draw(b.lines(), began.Add(later), tc.width) {
					fmt.Fprintln(&out, strings.ReplaceAll(line, "\x1b", "ESC"))
				}
			}
			terminaltest.Golden(t, tc.file, out.String())
		})
	}
}

func TestPlainLines(t *testing.T) {
	var out strings.Builder
	b := board{decide: func(id string) string { return "toolfleet approvals approve " + id }}
	for _, news := range story {
		b.apply(news.e, time.Unix(0, 0).Add(news.at))
		if line := b.plain(news.e); line != "" {
			fmt.Fprintln(&out, line)
		}
	}
	terminaltest.Golden(t, "plain.txt", out.String())
}

// If all coordinators disappear, the user is told that they may leave and how to fetch the reply
// later.
func TestNobodyAnswersAnyMore(t *testing.T) {
	var out strings.Builder
	d := NewDisplay(&out, false)
	d.Take(messages.Event{Type: messages.EventWaiting, Session: "conversation-1", Batch: "turn-7", Index: -1})
	d.Close()
	want := "no coordinator answers any more: the batch goes on once one is back. Ctrl-C ends the waiting; later `toolfleet batch get turn-7 --session conversation-1` fetches its reply\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

func TestSummary(t *testing.T) {
	r := messages.Reply{Status: messages.ReplyCompleted, Results: []messages.Result{{Status: messages.StatusOK}, {Status: messages.StatusTimeout}}}
	if got, want := Summary(r, 1234*time.Millisecond), "completed: 2 calls, 1 of them not ok, 1.2 s"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
