package coordinator

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/bus"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

// submitLarge stores a batch of one call, with a body of about the given size.
func (o *office) submitLarge(session, id string, size int) {
	o.t.Helper()
	call := map[string]any{"id": "c0", "name": "refund", "input": map[string]any{"pad": strings.Repeat("x", size)}}
	o.store(messages.Batch{
		V: 1, ID: messages.BatchID(id), Session: messages.SessionID(session), Provider: messages.Canonical,
		Message: rawjson.MustMarshal(map[string]any{"calls": []any{call}}),
	})
}

func (o *office) store(b messages.Batch) wire.BatchKey {
	o.t.Helper()
	key := wire.KeyOf(messages.OneTenant, b.Session, b.ID)
	_, err := o.conn.Append(o.t.Context(), o.names.Of(wire.VerbBatch, key), nil, rawjson.MustMarshal(b))
	o.must(err)
	return key
}

// drives waits until a coordinator drives want batches. Then it waits some polls more, and
// checks that the coordinator does not drive more.
func (o *office) drives(c *Coordinator, want int) {
	o.t.Helper()
	driven := func() int {
		c.runs.mu.Lock()
		defer c.runs.mu.Unlock()
		return len(c.runs.byKey)
	}
	o.until(fmt.Sprint(want, " batches are driven"), time.Minute, func() bool { return driven() >= want })
	time.Sleep(30 * time.Second) // simulated
	if got := driven(); got != want {
		o.t.Errorf("%d batches are driven, want %d", got, want)
	}
}

func TestLookaheadBoundsTheBatchesOfASession(t *testing.T) {
	for _, lookahead := range []int{1, 4} {
		inOffice(t, messages.KindRead, func(t *testing.T, o *office) {
			c, _ := o.coordinator(Config{Lookahead: lookahead})
			for n := range 10 {
				o.submit("s", fmt.Sprint("b", n), 1)
			}
			o.drives(c, lookahead)
		})
	}
}

// Many large batches wait in a session: those behind the first one hold bodies of 8 MiB
// together, at most.
func TestTheBodiesOfASessionAreBounded(t *testing.T) {
	inOffice(t, messages.KindRead, func(t *testing.T, o *office) {
		c, _ := o.coordinator(Config{Lookahead: 32})
		const size = 900 << 10
		for n := range 12 {
			o.submitLarge("s", fmt.Sprint("b", n), size)
		}
		o.drives(c, 1+(8<<20)/size)
	})
}

// The bodies of all sessions together are bounded too. The first batch of a session never
// waits because of this bound.
func TestTheBodiesOfAllSessionsAreBounded(t *testing.T) {
	inOffice(t, messages.KindRead, func(t *testing.T, o *office) {
		c, _ := o.coordinator(Config{Lookahead: 32})
		const size = 900 << 10
		if !c.bodies.TryAcquire(maxAllSuccessors - 2<<20) { // as if the batches of many sessions held them
			t.Fatal("the bodies are taken")
		}
		for n := range 4 {
			o.submitLarge("s", fmt.Sprint("b", n), size)
			o.submitLarge("other", fmt.Sprint("b", n), size)
		}
		o.drives(c, 2+2)
	})
}

// Each batch that is not the first of its session needs a place. All sessions share the
// places, and a batch gives its place back at its end.
func TestThePlacesOfSuccessorsAreShared(t *testing.T) {
	inOffice(t, messages.KindRead, func(t *testing.T, o *office) {
		const slots = 2
		c, _ := o.coordinator(Config{Lookahead: 32, Slots: slots, BatchTTL: 20 * time.Minute})
		var all []wire.BatchKey
		for n := range 5 {
			all = append(all, o.submit("s", fmt.Sprint("b", n), 1), o.submit("other", fmt.Sprint("b", n), 1))
		}
		o.drives(c, slots+slots)
		for _, key := range all { // no worker takes their calls, so the batches expire
			o.reply(key, 20*time.Minute)
		}
		o.until("the places are given back", time.Minute, func() bool {
			return c.successors.TryAcquire(slots) && c.bodies.TryAcquire(maxAllSuccessors)
		})
	})
}

// A batch becomes the first of its session: it gives its place back.
func TestTheFirstBatchHasNoPlace(t *testing.T) {
	inOffice(t, messages.KindRead, func(t *testing.T, o *office) {
		c, _ := o.coordinator(Config{Lookahead: 32})
		first, second := o.submit("s", "first", 1), o.submit("s", "second", 1)
		o.drives(c, 2)
		if c.successors.TryAcquire(int64(c.cfg.Slots)) {
			t.Error("the second has no place")
		}
		o.say("s", messages.Control{Abort: []byte(`"first"`)})
		o.reply(first, time.Minute)
		o.until("the place is given back", soon, func() bool {
			return c.runs.of(second) != nil && c.successors.TryAcquire(int64(c.cfg.Slots)) && c.bodies.TryAcquire(maxAllSuccessors)
		})
	})
}

// A batch behind the oldest one already has its reply. It is in the log again because the
// server lost its removal, and the broker never delivers it. The driver of the session
// publishes the reply again and removes the batch.
func TestABatchThatIsBackInTheLog(t *testing.T) {
	inOffice(t, messages.KindRead, func(t *testing.T, o *office) {
		conn := o.connect("coordinator")
		defer conn.Close()
		c, err := New(conn, Config{Lookahead: 32, Logger: o.log})
		o.must(err)
		c.serving.Store(true)
		head, back := o.submit("s", "head", 1), o.submit("s", "back", 1)
		accepted, _, err := o.journal.Open(t.Context(), back)
		o.must(err)
		_, err = o.journal.WriteReply(t.Context(), accepted, messages.Reply{
			V: 1, Batch: "back", Session: "s", Status: messages.ReplyCompleted, Digest: messages.Digest(accepted.Body),
		})
		o.must(err)
		replies := make(chan bus.Msg, 10)
		unsubscribe, err := o.conn.Subscribe(o.names.Of(wire.VerbReply, back), "", func(m bus.Msg) { replies <- m })
		o.must(err)
		defer unsubscribe()
		first, _, err := o.journal.Open(t.Context(), head)
		o.must(err)
		s := c.newSessionRun(head)
		s.take(c.newRun(s, first, nil))
		o.must(s.readLog(t.Context()))
		if _, open, err := o.journal.Open(t.Context(), back); open || err != nil {
			t.Errorf("the batch is in the log: %v, err %v", open, err)
		}
		o.until("the reply is published again", soon, func() bool { return len(replies) > 0 })
		if len(s.driven) != 1 || !c.successors.TryAcquire(int64(c.cfg.Slots)) {
			t.Errorf("%d batches are driven, want the head alone; or a place is taken", len(s.driven))
		}
	})
}
