package progress

import (
	"slices"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

// unanswered returns the events with the question of the last one open again.
func unanswered(events []messages.Event) []messages.Event {
	events = slices.Clone(events)
	last := &events[len(events)-1]
	question := *last.Approval
	question.State, question.Agreed = "", nil
	last.Approval = &question
	return events
}

// The status of a batch, from its timeline and the fleet around it.
func TestStatusOf(t *testing.T) {
	all := history()
	around := Fleet{
		tools:   map[string]schemas.Tool{"issue_refund": {Pool: "money", Kind: messages.KindWrite}, "lookup_order": {Pool: "default", Kind: messages.KindRead}, "send_mail": {Pool: "default", Kind: messages.KindWrite}},
		workers: map[string]bool{"worker-a": true}, pools: map[string]int{"default": 1},
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
		s := around.Explain(StatusOf(messages.Timeline{Status: "running", Events: tt.events}))
		if got := s.Text(question.Expires.Add(-14 * time.Minute)); got != tt.want {
			t.Errorf("%d events: got %q, want %q", len(tt.events), got, tt.want)
		}
	}
}
