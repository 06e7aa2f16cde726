package httpapi

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/messages"
)

func at(second int) time.Time { return time.Unix(int64(1_000_000+second), 0) }

// history returns random events of a session: its batches overlap, with questions and
// attempts.
func history(random *rand.Rand) (events []messages.Event) {
	var open [][]messages.Event
	clock := 0
	for batch := range 12 {
		id := messages.BatchID(fmt.Sprint("b", batch))
		var own []messages.Event
		calls := 1 + random.IntN(5)
		for _, kind := range []messages.EventType{messages.EventStart, messages.EventAwaiting, messages.EventRunning, messages.EventRunning, messages.EventEnd, messages.EventResult} {
			for call := range calls {
				e := messages.Event{Type: kind, Batch: id, Index: call}
				if kind == messages.EventRunning {
					e.Attempt = 1
					if len(own) > 0 && own[len(own)-1].Type == messages.EventRunning && random.IntN(2) == 0 {
						e.Attempt = 2
					}
				}
				own = append(own, e)
			}
		}
		own = append(own, messages.Event{Type: messages.EventReply, Batch: id, Index: -1})
		open = append(open, own)
	}
	for len(open) > 0 {
		i := random.IntN(min(3, len(open)))
		e := open[i][0]
		clock++
		e.Time = at(clock)
		events = append(events, e)
		if open[i] = open[i][1:]; len(open[i]) == 0 {
			open = append(open[:i], open[i+1:]...)
		}
	}
	return events
}

// After a position, a stream shows exactly the events that were not shown up to it. This also
// holds if another server shows the events of one batch after those of another.
func TestAPositionSaysWhatWasShown(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		var all []messages.Event
		first := shownUntil(position{})
		for _, e := range history(random) {
			if first.add(e) { // false for a second running event of an attempt
				all = append(all, e)
			}
		}
		cut := 1 + random.IntN(len(all)-1)
		before := shownUntil(position{})
		for _, e := range all[:cut] {
			before.add(e)
		}
		p, ok := parsePosition(before.at("r", uint64(cut), at(0)).id())
		if !ok {
			t.Fatal("the position cannot be read")
		}
		after := shownUntil(p)
		want := map[messages.BatchID][]messages.Event{}
		for _, e := range all[cut:] {
			want[e.Batch] = append(want[e.Batch], e)
		}
		got, ends := map[messages.BatchID][]messages.Event{}, map[messages.BatchID]time.Time{}
		for _, e := range all {
			if e.Type == messages.EventReply {
				ends[e.Batch] = e.Time
			}
		}
		for batch := range 12 {
			id := messages.BatchID(fmt.Sprint("b", batch))
			if ends[id].Before(p.since()) {
				continue // the reader would not show it
			}
			for _, e := range all {
				if e.Batch == id && after.add(e) {
					got[id] = append(got[id], e)
				}
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("seed %d, after %d events (-want +got):\n%s", seed, cut, diff)
		}
	}
}

func TestCallsOfAPosition(t *testing.T) {
	for _, text := range []string{"", "1.0r", "512*0.0s", "1.0e 2*0.2s 0.0n"} {
		if got := formatCalls(parseCalls(text, messages.MaxCalls)); got != text {
			t.Errorf("%q becomes %q", text, got)
		}
	}
}

func FuzzPosition(f *testing.F) {
	f.Add(position{Reader: "r", Number: 7, Since: 1, Done: []string{"a"}, Open: map[string]string{"b": "512*1.0e"}}.id(), "b")
	f.Add("e30", "x")
	f.Fuzz(func(t *testing.T, id, batch string) {
		p, ok := parsePosition(id)
		if !ok {
			return
		}
		s := shownUntil(p)
		for _, b := range s.open {
			if len(b.calls) > messages.MaxCalls {
				t.Errorf("%d calls", len(b.calls))
			}
		}
		s.add(messages.Event{Type: messages.EventEnd, Batch: messages.BatchID(batch), Index: 3})
		s.add(messages.Event{Type: messages.EventReply, Batch: messages.BatchID(batch), Index: -1, Time: at(1)})
		if _, ok := parsePosition(s.at("r", 1, at(0)).id()); !ok {
			t.Error("a position of its own is none")
		}
	})
}

// A client sends a position as an id: whatever the id says, the position takes little memory.
// The id of a position fits into a header, however many batches are open.
func TestAPositionIsBounded(t *testing.T) {
	p := position{Open: map[string]string{}}
	for i := range 4000 {
		p.Open[fmt.Sprint(i)] = fmt.Sprintf("%d*0.0s", messages.MaxCalls)
	}
	calls := 0
	for _, b := range shownUntil(p).open {
		calls += len(b.calls)
	}
	if calls != maxPlaced {
		t.Errorf("it takes %d calls, want %d", calls, maxPlaced)
	}
	s := shownUntil(position{})
	for i := range 20_000 {
		s.add(messages.Event{Type: messages.EventStart, Batch: messages.BatchID(fmt.Sprint(i)), Time: at(i)})
	}
	id := s.at("reader", 1, at(0)).id()
	if again, ok := parsePosition(id); len(id) > maxHeaders*2/3 || !ok || len(again.Open) < 1000 || !again.since().Equal(at(0)) {
		t.Errorf("the id has %d bytes and %d batches since %v", len(id), len(again.Open), again.since())
	}
}
