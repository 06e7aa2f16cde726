package session_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/coordinator/batch"
	"github.com/toolfleet/toolfleet/coordinator/plan"
	"github.com/toolfleet/toolfleet/coordinator/session"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

func TestTurns(t *testing.T) {
	over, passable, blocks := session.Standing{Over: true}, session.Standing{Passable: true}, session.Standing{}
	for name, tc := range map[string]struct {
		line []session.Standing
		want []batch.May
	}{
		"alone":                       {[]session.Standing{blocks}, []batch.May{batch.Everything}},
		"behind a batch that is over": {[]session.Standing{over, blocks}, []batch.May{batch.Everything, batch.Everything}},
		"behind one that can be passed, and one behind that which cannot": {
			[]session.Standing{passable, blocks, blocks}, []batch.May{batch.Everything, batch.SafeCalls, batch.Nothing}},
		"a passable batch behind one that blocks lets nobody pass": {
			[]session.Standing{blocks, passable, blocks}, []batch.May{batch.Everything, batch.Nothing, batch.Nothing}},
		"a batch that is over in the middle": {
			[]session.Standing{passable, over, passable, blocks}, []batch.May{batch.Everything, batch.SafeCalls, batch.SafeCalls, batch.SafeCalls}},
	} {
		var got []batch.May
		for _, turn := range session.Turns(tc.line, 8) {
			got = append(got, turn.May)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestThePlacesOfTheWindow(t *testing.T) {
	line := []session.Standing{{Passable: true, Running: 3, Held: 2}, {Passable: true, Running: 1}, {Running: 2, Held: 4}, {}}
	var rooms []int
	for _, turn := range session.Turns(line, 8) {
		rooms = append(rooms, turn.Room)
	}
	// The first batch may use all places that the others do not hold. The others leave it the
	// two places that it waits for. A batch that may start nothing gets no place.
	if want := []int{5, 1, 2, 0}; !slices.Equal(rooms, want) {
		t.Errorf("the rooms are %v, want %v", rooms, want)
	}
}

// To pass a batch costs a record. So a batch is passed only if the next one makes use of it.
func TestWhichBatchesArePassed(t *testing.T) {
	over, read, write := session.Standing{Over: true}, session.Standing{Safe: true}, session.Standing{}
	passable := session.Standing{Passable: true, Safe: true}
	for name, tc := range map[string]struct {
		line []session.Standing
		want []bool
	}{
		"alone":                           {[]session.Standing{read}, []bool{false}},
		"before a read":                   {[]session.Standing{over, passable, read, read, over}, []bool{false, true, true, false, false}},
		"before a write":                  {[]session.Standing{read, write, read}, []bool{false, false, false}},
		"before a read that is over":      {[]session.Standing{read, over}, []bool{false, false}},
		"before a passable one":           {[]session.Standing{passable, {Passable: true}, read}, []bool{true, true, false}},
		"before a passable one, a write":  {[]session.Standing{passable, {Passable: true}, write}, []bool{false, false, false}},
		"a read that may not start":       {[]session.Standing{write, read, read}, []bool{true, false, false}},
		"two reads behind one that is in": {[]session.Standing{passable, read, read}, []bool{true, true, false}},
	} {
		var passed []bool
		for _, turn := range session.Turns(tc.line, 8) {
			passed = append(passed, turn.Passed)
		}
		if !slices.Equal(passed, tc.want) {
			t.Errorf("%s: passed are %v, want %v", name, passed, tc.want)
		}
	}
}

// twinCall is a call of a twinBatch.
type twinCall struct {
	tool    string // fixed, changing, exclusive, or shy: a read that runs alone
	ended   bool
	durable bool // its end is in a record
	handed  bool // a worker handed it back
}

func (c twinCall) exclusive() bool { return c.tool == "exclusive" || c.tool == "shy" || c.handed }

// twinBatch is a batch whose state the slow twin knows completely.
type twinBatch struct {
	calls   []twinCall
	planned bool // its plan record is stored
	over    bool
}

// passable follows the rule of the design word by word: the plan record is stored, and each
// call that is not fixed has ended durably.
func (b twinBatch) passable() bool {
	return b.planned && !slices.ContainsFunc(b.calls, func(c twinCall) bool { return c.tool != "fixed" && !c.durable })
}

// mayStart follows the rule of the order word by word. Calls of one batch are compared by
// their stage, so a call that was handed back comes last in its stage.
func mayStart(log []twinBatch, b, i int, stage func(int) int) bool {
	call := log[b].calls[i]
	for _, earlier := range log[:b] {
		if !earlier.over && (call.exclusive() || !earlier.passable()) {
			return false
		}
	}
	for j, other := range log[b].calls {
		before := stage(j) < stage(i) || stage(j) == stage(i) && (call.handed && !other.handed || call.handed == other.handed && j < i)
		if before && !other.ended && (call.exclusive() || other.exclusive()) {
			return false
		}
	}
	return true
}

func (b twinBatch) String() (s string) {
	for _, c := range b.calls {
		s += fmt.Sprintf(" %s(ended %v, durable %v, handed back %v)", c.tool, c.ended, c.durable, c.handed)
	}
	return fmt.Sprintf("{planned %v, over %v:%s}", b.planned, b.over, s)
}

// At any point in the life of a session, each batch publishes exactly the jobs that the rule
// of the order allows.
func TestWhatMayStartAgreesWithTheTwin(t *testing.T) {
	no := false
	tools, err := schemas.NewCatalog(
		schemas.Tool{Name: "fixed", Kind: messages.KindRead}, schemas.Tool{Name: "changing", Kind: messages.KindRead, SafeWhen: "true"},
		schemas.Tool{Name: "exclusive", Kind: messages.KindWrite}, schemas.Tool{Name: "shy", Kind: messages.KindRead, ConcurrencySafe: &no},
	)
	if err != nil {
		t.Fatal(err)
	}
	started := map[string]int{}
	for seed := range uint64(30_000) {
		rng := rand.New(rand.NewPCG(seed, 7))
		log := make([]twinBatch, 1+rng.IntN(3))
		line := make([]session.Standing, len(log))
		machines := make([]*batch.Machine, len(log))
		for k := range log {
			log[k], machines[k] = randomBatch(rng, tools)
			line[k] = session.Standing{Over: log[k].over, Passable: machines[k].Passable(), Safe: machines[k].Safe()}
			if got, want := line[k].Passable, log[k].passable(); got != want {
				t.Fatalf("seed %d, %v: passable is %v, want %v", seed, log[k], got, want)
			}
		}
		for k, turn := range session.Turns(line, 100) {
			if log[k].over {
				continue
			}
			got := jobs(t, log[k], machines[k], turn)
			var want []int
			for i, c := range log[k].calls {
				if !c.ended && mayStart(log, k, i, func(i int) int { return machines[k].Plan().Calls[i].Stage }) {
					want = append(want, i)
				}
			}
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d: batch %d of %v publishes jobs of %v, want %v (%v)", seed, k, log, got, want, turn.May)
			}
			for _, i := range got {
				started[fmt.Sprint(log[k].calls[i].tool, ", ", turn.May)]++
			}
		}
	}
	for _, what := range []string{"fixed, safe calls", "changing, safe calls", "exclusive, everything", "shy, everything", "fixed, everything"} {
		if started[what] < 100 {
			t.Errorf("seen only %d times: %s", started[what], what)
		}
	}
}

// randomBatch returns a batch at a random point of its life, and its machine, which has not
// begun.
func randomBatch(rng *rand.Rand, tools schemas.Catalog) (twinBatch, *batch.Machine) {
	for {
		b, m := anyBatch(rng, tools)
		stage := func(i int) int { return m.Plan().Calls[i].Stage }
		possible := true
		for i, c := range b.calls {
			possible = possible && (!c.ended || mayStart([]twinBatch{b}, 0, i, stage))
		}
		if possible {
			return b, m
		}
	}
}

// anyBatch returns a random batch. Unlike those of randomBatch, its calls may have ended out
// of order.
func anyBatch(rng *rand.Rand, tools schemas.Catalog) (twinBatch, *batch.Machine) {
	b := twinBatch{planned: rng.IntN(2) == 0, over: rng.IntN(4) == 0}
	var calls []messages.ToolCall
	for i := range 1 + rng.IntN(4) {
		c := twinCall{tool: []string{"fixed", "fixed", "changing", "exclusive", "shy"}[rng.IntN(5)], ended: rng.IntN(2) == 0}
		c.handed = c.tool == "changing" && rng.IntN(4) == 0
		c.durable = c.ended && (c.tool == "exclusive" || b.planned && rng.IntN(2) == 0)
		b.calls = append(b.calls, c)
		calls = append(calls, messages.ToolCall{Index: i, ID: messages.CallID(fmt.Sprint("c", i)), Name: c.tool, Input: []byte(`{}`)})
	}
	p := plan.New(calls, tools)
	m := batch.New(p, batch.Config{Window: 100, QueueTimeout: time.Hour, Poll: time.Hour, FirstPoll: time.Hour, NotAfter: time.Unix(1e9, 0)})
	record := wire.PlanRecord{Calls: p.Record()}
	for i, c := range b.calls {
		r := messages.Result{Index: i, CallID: calls[i].ID, Tool: c.tool, Status: messages.StatusOK}
		switch {
		case c.durable && c.tool != "exclusive":
			record.Results = append(record.Results, r)
		case c.ended:
			m.Step(time.Unix(0, 0), batch.Ended{Index: i, Result: r})
		}
		if c.handed || c.tool == "fixed" && b.planned && rng.IntN(8) == 0 { // the hand-back of a fixed call changes nothing: it still runs beside others
			m.Step(time.Unix(0, 0), batch.HandedBack{Index: i})
		}
	}
	if b.planned {
		m.Step(time.Unix(0, 0), batch.Planned{Record: record, Seq: 1})
	}
	return b, m
}

// jobs returns the calls whose jobs the machine publishes in this turn, in call order. It
// stores plan records at once. It also checks that no job builds on an end that a power loss
// could take away, if one of the two calls is exclusive.
func jobs(t *testing.T, b twinBatch, m *batch.Machine, turn batch.Turn) (dispatched []int) {
	b.calls = slices.Clone(b.calls)
	m.Step(time.Unix(0, 0), turn)
	wants := m.Step(time.Unix(0, 0), batch.Begin{})
	for seq := uint64(2); len(wants) > 0; seq++ {
		switch want := wants[0].(type) {
		case batch.Dispatch:
			dispatched = append(dispatched, want.Index)
			for j, c := range b.calls {
				if j < want.Index && c.ended && !c.durable && (c.exclusive() || b.calls[want.Index].exclusive()) {
					t.Errorf("%v: call %d starts before the end of call %d is durable", b, want.Index, j)
				}
			}
		case batch.StorePlan:
			for _, r := range want.Record.Results {
				b.calls[r.Index].durable = true
			}
			wants = append(wants, m.Step(time.Unix(0, 0), batch.Planned{Record: want.Record, Seq: seq})...)
		}
		wants = wants[1:]
	}
	slices.Sort(dispatched)
	return dispatched
}

// The reply of a batch is stored: later news about the batch does not hold up the batches
// behind it.
func TestABatchThatIsOverStaysOver(t *testing.T) {
	line := session.Line[string]{Window: 8}
	line.Add("first", 1, time.Time{}, 0)
	line.Add("second", 2, time.Time{}, 0)
	line.Over("first")
	line.Set("first", session.Standing{Running: 1})
	line.GiveTurns()
	if may := line.Turn("second").May; may != batch.Everything {
		t.Errorf("the second may start %v, want everything", may)
	}
	if head, _ := line.Head(); head != "second" {
		t.Errorf("the head is %q, want the second", head)
	}
}

// A server that restarts may give a new batch the sequence of one that has left the log. So
// the log is read on from the last batch that is still in it, and the time of acceptance
// distinguishes the two.
func TestASequenceThatIsUsedAgain(t *testing.T) {
	at := time.Unix(100, 0)
	line := session.Line[string]{Window: 8}
	line.Add("first", 1, at, 0)
	line.Add("second", 2, at, 0)
	if got := line.Last(); got != 2 {
		t.Errorf("the log is read from %d, want 2", got)
	}
	line.Over("second")
	if got := line.Last(); got != 1 {
		t.Errorf("the second is over: the log is read from %d, want 1", got)
	}
	line.Over("first")
	if got := line.Last(); got != 0 || line.Empty() {
		t.Errorf("both are over: the log is read from %d, want 0", got)
	}
	if !line.Holds(1, at) || line.Holds(1, at.Add(time.Second)) || line.Holds(3, at) {
		t.Error("the line does not know its batches")
	}
}

// A session rests if all of its batches rest. It rests until the first of them has to be
// looked at.
func TestASessionRests(t *testing.T) {
	at := time.Unix(100, 0)
	line := session.Line[string]{Window: 8}
	if _, rests := line.Resting(); rests {
		t.Error("a session without batches rests")
	}
	line.Add("first", 1, at, 0)
	line.Add("second", 2, at, 0)
	line.Rest("second", at)
	if _, rests := line.Resting(); rests {
		t.Error("the session rests while its first batch does not")
	}
	line.Rest("first", at.Add(time.Second))
	if until, rests := line.Resting(); !rests || !until.Equal(at) {
		t.Errorf("it rests: %v, until %v; want true, until %v", rests, until, at)
	}
	line.Rest("second", time.Time{})
	if _, rests := line.Resting(); rests {
		t.Error("the session rests, and its second batch has news")
	}
}
