package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
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

func TestPicture(t *testing.T) {
	all := history()
	var out strings.Builder
	for _, width := range []int{80, 60} {
		fmt.Fprintln(&out, picture(all, all.Status, "", "", time.Now(), width))
	}
	now := all
	now.Status, now.Events, now.TraceID = "running", all.Events[:11], ""
	fmt.Fprintln(&out, picture(now, standingOf(now).heading(), standingOf(now).text(now.Accepted), "", now.Accepted.Add(3*time.Second), 80))
	fmt.Fprintln(&out, picture(messages.Timeline{Session: "s", Batch: "\x1b[31m"}, "refused", "malformed_message: no\x1b[31m calls", "", time.Now(), 80))
	golden(t, "timeline.txt", out.String())
	for _, line := range strings.Split(picture(all, all.Status, "", "", time.Now(), 80), "\n") {
		if n := len([]rune(line)); n > 80 {
			t.Errorf("%d characters: %s", n, line)
		}
	}
}

// The link to a trace stands on its own line and is never cut, however narrow the picture is.
func TestPictureLinks(t *testing.T) {
	link := "http://traces.example/" + strings.Repeat("long/", 20) + "4bf92f3577b34da6a3ce929d0e0e4736"
	if got := picture(history(), "completed", "", link, time.Now(), 60); !strings.Contains(got, ", trace 4bf92f3577b34da6a3ce929d0e0e4736\n"+link+"\n\n") {
		t.Errorf("no link:\n%s", got)
	}
}

// The output of toolfleet watch, without a terminal and on one.
func TestWatchedSession(t *testing.T) {
	var out strings.Builder
	for _, live := range []bool{false, true} {
		w := watchedSession{live: live}
		fmt.Fprintf(&out, "== live: %v\n", live)
		for i, e := range history().Events {
			e.Batch = "turn-7"
			now := e.Time
			out.WriteString(w.take(e, now))
			other := messages.Event{Type: messages.EventRunning, Batch: "turn-8", Tool: "Grep", Time: now, Attempt: 1}
			if i == 7 {
				out.WriteString(w.take(other, now))
			}
			if i == 11 && live {
				fmt.Fprintln(&out, strings.Join(draw(w.lines(), now, 80), "\n"))
			}
		}
		fmt.Fprintln(&out, strings.Join(draw(w.lines()[:1], time.Now(), 80), "\n"))
	}
	golden(t, "watch.txt", out.String())
}

// Each batch that is open at the start gets a line with its status.
func TestStandingLines(t *testing.T) {
	all := history()
	stuck := all
	stuck.Status, stuck.Events = "running", unanswered(all.Events[:11])
	golden(t, "watchbegins.txt", standingLines([]openBatch{
		{Batch: "turn-7", Accepted: all.Accepted, standing: standingOf(stuck)},
		{Batch: "turn-8\n", Accepted: all.Accepted, standing: standing{State: isBehind, Behind: "turn-7"}},
		{Batch: "turn-6", Accepted: all.Accepted, standing: standing{State: isEnding}},
	}, all.Accepted.Add(3*time.Second)))
}

// A watcher who comes right after the end of a batch is told how to see it.
func TestNothingOpen(t *testing.T) {
	now := time.Date(2026, 11, 22, 8, 0, 0, 0, time.UTC)
	for _, row := range []struct {
		newest *messages.ListedBatch
		want   string
	}{
		{nil, "no batch of it is open, and none has ended lately; what begins is shown"},
		{
			&messages.ListedBatch{Batch: "turn-7\n", Status: "completed", Ended: now.Add(-12 * time.Second)},
			"no batch of it is open; the last, turn-7, was completed 12s ago, and --since 1m12s shows it. What begins is shown",
		},
		{
			&messages.ListedBatch{Batch: "turn-7", Status: "refused", Ended: now.Add(-50 * time.Hour)},
			"no batch of it is open; the last, turn-7, was refused 2d ago, and --since 50h01m shows it. What begins is shown",
		},
	} {
		if got := nothingOpen(row.newest, now); got != row.want {
			t.Errorf("got  %s\nwant %s", got, row.want)
		}
	}
}

// unanswered holds events that end with an open question.
func unanswered(events []messages.Event) []messages.Event {
	events = slices.Clone(events)
	last := &events[len(events)-1]
	question := *last.Approval
	question.State, question.Agreed = "", nil
	last.Approval = &question
	return events
}

// The status of a batch, from its timeline and the fleet around it.
func TestStanding(t *testing.T) {
	all := history()
	around := surroundings{
		tools:   map[string]schemas.Tool{"issue_refund": {Pool: "money", Kind: messages.KindWrite}, "lookup_order": {Pool: "default", Kind: messages.KindRead}, "send_mail": {Pool: "default", Kind: messages.KindWrite}},
		workers: map[string]bool{"worker-a": true}, crews: map[string]int{"default": 1},
	}
	open := unanswered(all.Events[:11])
	question := open[10].Approval
	for _, tt := range []struct {
		events []messages.Event
		want   string
	}{
		{nil, "every call has ended"},
		{all.Events[:7], "runs search_orders on worker-a"},
		{all.Events[:8], "runs search_orders on worker-a, and 1 more"},
		{[]messages.Event{{Type: messages.EventRunning, Attempt: 1, Worker: "worker-b"}}, "runs  on worker-b, which is not there"},
		{open, "waits for a person: issue_refund (expires in 14m)"},
		{all.Events[:11], "queued: issue_refund, and 1 more; no worker of pool money is there"},
		{all.Events[:2], "queued: search_orders, and 1 more"},
		{[]messages.Event{{Type: messages.EventStart, Tool: "lookup_order"}}, "queued or running: lookup_order"},
		{all.Events[:14], "queued: send_mail"},
	} {
		s := around.explain(standingOf(messages.Timeline{Status: "running", Events: tt.events}))
		if got := s.text(question.Expires.Add(-14 * time.Minute)); got != tt.want {
			t.Errorf("%d events: got %q, want %q", len(tt.events), got, tt.want)
		}
	}
}
