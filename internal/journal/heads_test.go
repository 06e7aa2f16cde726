package journal_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/internal/journal"
	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
)

const patience = 10 * time.Minute

func (x *fixture) submit(session, id string) journal.Accepted {
	x.t.Helper()
	b := messages.Batch{V: 1, ID: messages.BatchID(id), Session: messages.SessionID(session), Provider: messages.Canonical, Message: []byte(`{"calls":[]}`)}
	key := wire.KeyOf(messages.OneTenant, b.Session, b.ID)
	_, err := x.conn.Append(x.t.Context(), x.conn.Names().Of(wire.VerbBatch, key), nil, rawjson.MustMarshal(b))
	x.must(err)
	a, found, err := x.journal.Open(x.t.Context(), key)
	x.must(err)
	if !found {
		x.t.Fatalf("batch %s is not in the log", key)
	}
	return a
}

func (x *fixture) reply(a journal.Accepted) {
	x.t.Helper()
	_, err := x.journal.WriteReply(x.t.Context(), a, messages.Reply{V: 1, Status: messages.ReplyCompleted})
	x.must(err)
}

func (x *fixture) record(a journal.Accepted, state wire.CallState, f func(*wire.CallRecord)) {
	x.t.Helper()
	newest, _, err := x.journal.Newest(x.t.Context(), a.Key.Call(0))
	x.must(err)
	record := wire.CallRecord{State: state, Nonce: fmt.Sprint(state, newest.Seq)}
	if f != nil {
		f(&record)
	}
	_, err = x.journal.Write(x.t.Context(), a.Key.Call(0), record, newest.Seq)
	x.must(err)
}

func (x *fixture) job(a journal.Accepted, notAfter time.Time) {
	x.t.Helper()
	_, err := x.conn.Append(x.t.Context(), x.conn.Names().Lane(false, "p", a.Key.Call(0)), nil, rawjson.MustMarshal(wire.Job{NotAfter: notAfter}))
	x.must(err)
}

// stuck runs a sweep. It returns the stuck heads, as "session/batch reason", and the number of
// steps.
func (x *fixture) stuck() (found []string, steps int) {
	x.t.Helper()
	sweep := x.journal.SweepHeads(patience)
	for done := false; !done; steps++ {
		var err error
		done, err = sweep.Step(x.t.Context())
		x.must(err)
	}
	for _, h := range sweep.Stuck() {
		reason := "idle"
		if h.Replied {
			reason = "replied"
		}
		found = append(found, fmt.Sprintf("%s/%s %s", h.Session, h.Batch, reason))
	}
	return found, steps
}

func (x *fixture) want(when string, want ...string) {
	x.t.Helper()
	if got, _ := x.stuck(); !slices.Equal(got, want) {
		x.t.Errorf("%s: stuck is %q, want %q", when, got, want)
	}
}

// A record explains for a while why a head waits. After that time the head counts as stuck.
func TestStuckHeads(t *testing.T) {
	for name, tc := range map[string]struct {
		begin  func(x *fixture, a journal.Accepted) // stores something about the batch; a minute passes after it
		until  time.Duration                        // how long this explains why the head waits
		reason string
	}{
		"nobody drives it":    {nil, patience - time.Minute, "idle"},
		"its reply is stored": {(*fixture).reply, time.Minute, "replied"},
		"a plan":              {func(x *fixture, a journal.Accepted) { x.plan(a) }, patience, "idle"},
		"a result":            {func(x *fixture, a journal.Accepted) { x.result(a) }, patience, "idle"},
		"a hand-back": {func(x *fixture, a journal.Accepted) {
			x.must(x.journal.WriteHandBack(x.t.Context(), a.Key.Call(0), wire.HandBack{}))
		}, patience, "idle"},
		"a call that has ended": {func(x *fixture, a journal.Accepted) { x.record(a, wire.Ended, nil) }, patience, "idle"},
		"a claim": {func(x *fixture, a journal.Accepted) {
			x.record(a, wire.Claimed, func(r *wire.CallRecord) { r.LeaseMS = 3_600_000 })
		}, time.Hour + patience, "idle"},
		"a claim that was renewed": {func(x *fixture, a journal.Accepted) {
			x.record(a, wire.Claimed, nil)
			x.record(a, wire.Renewed, func(r *wire.CallRecord) { r.LeaseMS = 3_600_000 })
		}, time.Hour + patience, "idle"},
		"a pause between two attempts": {func(x *fixture, a journal.Accepted) {
			x.record(a, wire.Released, func(r *wire.CallRecord) { r.RetryAfterMS = 1_800_000 })
		}, 30*time.Minute + patience, "idle"},
		"a question that is not listed": {func(x *fixture, a journal.Accepted) {
			x.record(a, wire.Parked, func(r *wire.CallRecord) { r.Approval = &messages.Approval{Expires: time.Now().Add(time.Hour)} })
		}, time.Hour + patience, "idle"},
		"a question that is listed": {func(x *fixture, a journal.Accepted) {
			q := messages.Approval{Tenant: messages.OneTenant, Session: "s", Batch: "b", ID: "q", Expires: time.Now().Add(time.Hour)}
			_, err := x.journal.Ask(x.t.Context(), a.Key.Call(0), q)
			x.must(err)
		}, time.Hour, "idle"},
		"a question that was answered": {func(x *fixture, a journal.Accepted) {
			x.record(a, wire.Parked, func(r *wire.CallRecord) { r.Approval = &messages.Approval{Expires: time.Now().Add(time.Hour)} })
			x.record(a, wire.Granted, nil)
		}, patience, "idle"},
		"a job": {func(x *fixture, a journal.Accepted) { x.job(a, time.Now().Add(time.Hour)) }, time.Hour + patience, "idle"},
		"the batch before it has ended": {func(x *fixture, a journal.Accepted) {
			before := x.submit("s", "before")
			x.reply(before)
			x.must(x.journal.Remove(x.t.Context(), before))
		}, patience, "idle"},
	} {
		t.Run(name, func(t *testing.T) {
			withFixture(t, func(x *fixture) {
				a := x.submit("s", "b")
				x.submit("s", "behind") // a later batch, not the head
				time.Sleep(time.Minute)
				if tc.begin != nil {
					tc.begin(x, a)
				}
				time.Sleep(tc.until - time.Second)
				x.want("a second before")
				time.Sleep(2 * time.Second)
				x.want("a second after", "s/b "+tc.reason)
				x.must(x.journal.Remove(x.t.Context(), a))
				if _, found, err := x.journal.Head(x.t.Context(), messages.OneTenant, "s"); !found || err != nil {
					t.Fatalf("the session has no head after the stuck one was removed: %v", err)
				}
			})
		})
	}
}

func (x *fixture) plan(a journal.Accepted) {
	x.t.Helper()
	_, err := x.journal.WritePlan(x.t.Context(), a.Key, wire.PlanRecord{V: 1}, 0)
	x.must(err)
}

func (x *fixture) result(a journal.Accepted) {
	x.t.Helper()
	_, err := x.journal.WriteResult(x.t.Context(), a.Key.Call(0), messages.Result{V: 1})
	x.must(err)
}

// A batch is submitted again and already has its reply: it counts as stuck only after as long
// a time as any other batch.
func TestABatchSubmittedAgainIsNotStuckAtOnce(t *testing.T) {
	withFixture(t, func(x *fixture) {
		a := x.submit("s", "b")
		x.reply(a)
		x.must(x.journal.Remove(x.t.Context(), a))
		time.Sleep(time.Hour)
		x.submit("s", "b")
		time.Sleep(59 * time.Second)
		x.want("within a minute")
		time.Sleep(2 * time.Second)
		x.want("after it", "s/b replied")
	})
}

// A step of a sweep reads a bounded number of heads and batches. A sweep finds each stuck head
// once.
func TestASweepTakesBoundedSteps(t *testing.T) {
	withFixture(t, func(x *fixture) {
		const sessions, behind = 70, 1100
		var want []string
		for s := range sessions {
			session := fmt.Sprint("s", s)
			x.submit(session, "b")
			want = append(want, session+"/b idle")
		}
		for n := range behind {
			x.submit("s0", fmt.Sprint("behind", n))
		}
		young := func() { x.submit("young", "b") }
		time.Sleep(patience)
		young()
		found, steps := x.stuck()
		if diff := cmp.Diff(want, found); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		if steps != 4 { // 32 heads; 32 more; the last 6 and a thousand batches; the rest
			t.Errorf("the sweep took %d steps, want 4", steps)
		}
	})
}

// A step of a sweep fails: nothing changes, and the same step is taken again.
func TestAStepThatFailsIsTakenAgain(t *testing.T) {
	withFixture(t, func(x *fixture) {
		x.submit("s", "b")
		time.Sleep(patience)
		sweep := x.journal.SweepHeads(patience)
		broken, cancel := context.WithCancel(x.t.Context())
		cancel()
		if _, err := sweep.Step(broken); err == nil {
			t.Error("no error without an answer")
		}
		done, err := sweep.Step(x.t.Context())
		if err != nil || !done || len(sweep.Stuck()) != 1 {
			t.Errorf("done %t, %v, %+v", done, err, sweep.Stuck())
		}
	})
}

// A stuck head is reported with its session and batch as they were submitted. If its batch
// cannot be read, it is reported with their tokens.
func TestAStuckHeadSaysWhichItIs(t *testing.T) {
	withFixture(t, func(x *fixture) {
		a := x.submit("a session", "a batch")
		damaged := wire.BatchKey{Tenant: "_", Session: "damaged", Batch: "b"}
		seq := x.append(x.names.Of(wire.VerbBatch, damaged), "damaged")
		x.append(x.names.Of(wire.VerbBatch, wire.BatchKey{Tenant: "_", Session: "s", Batch: "no!token"}), "{}")
		time.Sleep(patience)
		sweep := x.journal.SweepHeads(patience)
		done, err := sweep.Step(x.t.Context())
		if x.must(err); !done {
			t.Error("the sweep goes on")
		}
		x.same("stuck", []journal.StuckHead{
			{Key: a.Key, Session: "a session", Batch: "a batch", Seq: a.Seq, Since: a.Stored},
			{Key: damaged, Session: "damaged", Batch: "b", Seq: seq, Since: a.Stored},
		}, sweep.Stuck())
	})
}
