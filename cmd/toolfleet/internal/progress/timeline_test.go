package progress

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/cmd/toolfleet/internal/terminaltest"
	"github.com/toolfleet/toolfleet/messages"
)

// history is a batch with everything that a picture can show.
func history() messages.Timeline {
	began := time.Date(2026, 11, 22, 2, 3, 27, 120_000_000, time.UTC)
	tl := messages.Timeline{V: 1, Session: "conversation-1", Batch: "turn-7", Status: "completed", Accepted: began, TraceID: "4bf92f3577b34da6a3ce929d0e0e4736"}
	tell := func(ms int, kind messages.EventType, index, attempt int, more func(*messages.Event)) {
		e := messages.Event{V: 1, Type: kind, Index: index, Attempt: attempt, Time: began.Add(time.Duration(ms) * time.Millisecond)}
		if more != nil {
			more(&e)
		}
		tl.Events = append(tl.Events, e)
	}
	for i, tool := range []string{"search_orders", "lookup_order", "nope", "issue_refund", "send_mail"} {
		tell(0, messages.EventStart, i, 0, func(e *messages.Event) { e.Tool, e.Stage = tool, max(0, i-2) })
	}
	ends := func(ms, index, attempt int, took float64, worker string, r messages.Result) {
		r.Index, r.Attempt, r.DurationMS, r.Worker = index, attempt, took, worker
		tell(ms, messages.EventEnd, index, attempt, func(e *messages.Event) { e.Result, e.Worker = &r, worker })
	}
	runs := func(ms, index, attempt int, worker string) {
		tell(ms, messages.EventRunning, index, attempt, func(e *messages.Event) { e.Worker = worker })
	}
	ends(1, 2, 0, 0, "", messages.Result{Status: messages.StatusUnknownTool, Outcome: messages.Failed(messages.CodeUnknownTool, `There is no tool named "nope".`)})
	runs(12, 0, 1, "worker-a")
	runs(14, 1, 1, "worker-b")
	ends(912, 0, 1, 900, "worker-a", messages.Result{Status: messages.StatusOK})
	ends(1600, 1, 1, 1586, "worker-b", messages.Result{Status: messages.StatusOK})
	tell(1650, messages.EventAwaiting, 3, 0, func(e *messages.Event) {
		e.Approval = &messages.Pending{ID: "ab", Line: "issue_refund amount=149.99", Tier: messages.TierHigh, Asked: e.Time, Expires: e.Time.Add(15 * time.Minute), Rule: "refunds-over-50", State: "granted", Agreed: []string{"alice"}}
	})
	runs(4800, 3, 1, "worker-a")
	runs(6300, 3, 2, "worker-b")
	ends(7000, 3, 2, 700, "worker-b", messages.Result{Status: messages.StatusOK, Permission: &messages.Permission{Effect: "ask", Source: "person", Rule: "refunds-over-50", By: []string{"alice"}}})
	runs(7100, 4, 1, "worker-a")
	ends(8000, 4, 1, 900, "worker-a", messages.Result{Status: messages.StatusError, Outcome: messages.Failed(messages.CodeToolError, "mailbox full\nof alice")})
	for i := range 5 {
		tell(8010, messages.EventResult, i, 0, nil)
	}
	tell(8010, messages.EventReply, -1, 0, func(e *messages.Event) { e.Status = messages.ReplyCompleted })
	return tl
}

func TestDrawTimeline(t *testing.T) {
	all := history()
	var out strings.Builder
	for _, width := range []int{80, 60} {
		fmt.Fprintln(&out, DrawTimeline(all, all.Status, "", "", time.Now(), width))
	}
	now := all
	now.Status, now.Events, now.TraceID = "running", all.Events[:11], ""
	fmt.Fprintln(&out, DrawTimeline(now, StatusOf(now).Heading(), StatusOf(now).Text(now.Accepted), "", now.Accepted.Add(3*time.Second), 80))
	fmt.Fprintln(&out, DrawTimeline(messages.Timeline{Session: "s", Batch: "\x1b[31m"}, "refused", "malformed_message: no\x1b[31m calls", "", time.Now(), 80))
	terminaltest.Golden(t, "timeline.txt", out.String())
	for _, line := range strings.Split(DrawTimeline(all, all.Status, "", "", time.Now(), 80), "\n") {
		if n := len([]rune(line)); n > 80 {
			t.Errorf("%d characters: %s", n, line)
		}
	}
}

// The link to a trace stands on its own line and is never cut, however narrow the picture is.
func TestDrawTimelineLinks(t *testing.T) {
	link := "http://traces.example/" + strings.Repeat("long/", 20) + "4bf92f3577b34da6a3ce929d0e0e4736"
	if got := DrawTimeline(history(), "completed", "", link, time.Now(), 60); !strings.Contains(got, ", trace 4bf92f3577b34da6a3ce929d0e0e4736\n"+link+"\n\n") {
		t.Errorf("no link:\n%s", got)
	}
}
