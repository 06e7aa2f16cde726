package journal_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

func (x *fixture) control(c messages.Control) (seq uint64) {
	x.t.Helper()
	seq, err := x.journal.WriteControl(x.t.Context(), "_", "s", c)
	x.must(err)
	return seq
}

func (x *fixture) controls() []journal.ControlEntry {
	x.t.Helper()
	entries, err := x.journal.Controls(x.t.Context(), "_", "s")
	x.must(err)
	return entries
}

func steer(text string) messages.Control { return messages.Control{Steer: rawjson.Quote(text)} }

// Aborts and steering messages are stored: the record of each names the batch that was the
// newest of its session in the log at that time.
func TestControls(t *testing.T) {
	withFixture(t, func(x *fixture) {
		if entries := x.controls(); len(entries) != 0 {
			t.Fatalf("before the first: %+v", entries)
		}
		x.submit("other", "b")
		early := x.control(steer("early"))
		x.submit("s", "a")
		newest := x.submit("s", "b")
		x.submit("other", "c")
		x.append(x.names.OfSession(wire.VerbCtl, "_", "s"), "damaged")
		x.append(x.names.OfSession(wire.VerbCtl, "_", "other"), "{}")
		abort := x.control(messages.Control{Abort: json.RawMessage(`true`), Reason: "enough", By: "ann"})
		var got []string
		for _, e := range x.controls() {
			if e.Stored.IsZero() || e.Record.V != messages.Version {
				t.Errorf("without its time or version: %+v", e)
			}
			got = append(got, fmt.Sprintf("%d up to %d: %s%s%s", e.Seq, e.Record.UpTo, e.Record.Steer, e.Record.Reason, e.Record.By))
		}
		x.same("controls", []string{fmt.Sprintf(`%d up to 0: "early"`, early), fmt.Sprintf("%d up to %d: enoughann", abort, newest.Seq)}, got)
	})
}

// A steering message goes into one reply only. A driver that has not read the newest control
// takes no message.
func TestSteeringIsTakenOnce(t *testing.T) {
	withFixture(t, func(x *fixture) {
		want := func(batch string, untaken uint64, texts ...string) {
			t.Helper()
			var all []json.RawMessage
			for _, text := range texts {
				all = append(all, rawjson.Quote(text))
			}
			got, last := journal.Steering(x.controls(), batch)
			x.same("steering of batch "+batch, all, got)
			x.same("not taken, of batch "+batch, untaken, last)
		}
		take := func(batch string, last uint64) error {
			return x.journal.TakeSteering(x.t.Context(), wire.KeyOf("_", "s", messages.BatchID(batch)), last)
		}
		want("a", 0)
		first := x.control(steer("one"))
		want("a", first, "one")
		second := x.control(steer("two"))
		if err := take("a", first); !errors.Is(err, bus.ErrConflict) {
			t.Errorf("after a control that is not the newest: %v, want bus.ErrConflict", err)
		}
		want("a", second, "one", "two")
		x.must(take("a", second))
		want("a", 0, "one", "two")
		want("b", 0)
		third := x.control(steer("three"))
		want("b", third, "three")
		want("a", third, "one", "two", "three")
		last := x.control(messages.Control{Abort: json.RawMessage(`true`)})
		want("b", last, "three")
		x.must(take("b", last))
		want("a", 0, "one", "two")
		want("b", 0, "three")
		want("c", 0)
	})
}
