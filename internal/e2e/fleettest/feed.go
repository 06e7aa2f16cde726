package fleettest

import (
	"fmt"
	"testing"

	"github.com/toolfleet/toolfleet/messages"
)

// EventName returns an event in the short form of the tests: its type, the index of its call,
// and its attempt, such as "end 0 #1". Members that an event does not have are left out.
func EventName(e messages.Event) string {
	name := string(e.Type)
	if e.Index >= 0 {
		name += fmt.Sprint(" ", e.Index)
	}
	if e.Attempt > 0 {
		name += fmt.Sprint(" #", e.Attempt)
	}
	return name
}

// EventNames returns the short form of each event: see [EventName].
func EventNames(events []messages.Event) []string {
	var names []string
	for _, e := range events {
		names = append(names, EventName(e))
	}
	return names
}

// CheckFeed checks the order and number of the events of a batch with this many calls, which
// was followed to its reply. The start events come first, each event comes once, the results
// come in the order of the calls, and the reply comes last.
func CheckFeed(t testing.TB, events []messages.Event, calls int) {
	t.Helper()
	names := EventNames(events)
	times := map[string]int{}
	type at struct {
		attempt  int
		fraction float64
		ended    bool
	}
	state := make([]at, calls)
	ran, ended, results := false, 0, 0
	for i, e := range events {
		if e.Type != messages.EventProgress && e.Type != messages.EventAwaiting && e.Type != messages.EventHook {
			key := fmt.Sprint(e.Type, e.Index)
			if e.Type == messages.EventRunning {
				key = EventName(e)
			}
			if times[key]++; times[key] > 1 {
				t.Errorf("%s was told twice: %v", EventName(e), names)
			}
		}
		if e.Result != nil && (e.Type != messages.EventEnd && e.Result.Output != nil || e.Result.Trail != nil) {
			t.Errorf("%s tells more than it should: %+v", EventName(e), e.Result)
		}
		switch e.Type {
		case messages.EventStart:
			if ran || e.Index != i {
				t.Errorf("%s is event %d: %v", EventName(e), i, names)
			}
		case messages.EventRunning:
			ran = true
			if c := &state[e.Index]; e.Attempt <= c.attempt || c.ended || e.Worker == "" {
				t.Errorf("%s by %q comes too late: %v", EventName(e), e.Worker, names)
			} else {
				c.attempt, c.fraction = e.Attempt, 0
			}
		case messages.EventProgress:
			if c := &state[e.Index]; e.Attempt != c.attempt || c.ended || e.Progress.Fraction < c.fraction {
				t.Errorf("%s (%+v) goes back: %v", EventName(e), e.Progress, names)
			} else {
				c.fraction = e.Progress.Fraction
			}
		case messages.EventEnd:
			ran = true
			state[e.Index].ended = true
			ended++
		case messages.EventResult:
			if ended != calls || e.Index != results {
				t.Errorf("%s comes after %d ends and %d results: %v", EventName(e), ended, results, names)
			}
			results++
		case messages.EventReply:
			if results != calls || i != len(events)-1 {
				t.Errorf("the reply comes after %d results: %v", results, names)
			}
		}
	}
	if n := len(events); n == 0 || events[n-1].Type != messages.EventReply {
		t.Errorf("there is no reply: %v", names)
	}
}
