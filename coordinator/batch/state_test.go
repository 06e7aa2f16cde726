package batch

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/plan"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/schemas"
)

var (
	now   = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	claim = wire.CallRecord{State: wire.Claimed, LeaseMS: 10_000}
)

// columns are the columns of the table in the package comment, in its order: each is an event
// or an effect.
var columns = []struct {
	name  string
	apply func(*Machine)
}{
	{"claim", applies(Recorded{Seq: 9, Record: claim})},
	{"release", applies(Recorded{Seq: 9, Record: wire.CallRecord{State: wire.Released}})},
	{"parked", applies(Recorded{Seq: 9, Record: wire.CallRecord{State: wire.Parked}})},
	{"Running", applies(Running{})},
	{"LetGo", applies(LetGo{})},
	{"HandedBack", applies(HandedBack{})},
	{"Dispatch", func(m *Machine) { m.dispatch(now, 0, false) }},
}

func applies(ev Event) func(*Machine) { return func(m *Machine) { m.Step(now, ev) } }

// TestTableOfStates checks that the machine does what the table in the package comment says.
func TestTableOfStates(t *testing.T) {
	for from, cells := range readTable(t) {
		for n, cell := range cells {
			apply, name := columns[n].apply, columns[n].name
			want, mark := strings.TrimRight(cell, "*+"), cell[len(cell)-1]
			if want == "never" {
				continue
			}
			if want == "-" {
				want = from.String()
			}
			check := func(what, want string, m *Machine) {
				t.Helper()
				if apply(m); m.calls[0].state().String() != want {
					t.Errorf("%s, %s%s: the call is %s, want %s", from, name, what, m.calls[0].state(), want)
				}
			}
			check("", want, machineIn(t, from))
			switch m := machineIn(t, from); mark {
			case '*':
				m.calls[0].record = claim
				check(" after a contradicted claim", "claimed", m)
			case '+':
				m.calls[0].published = false
				check(" of another driver's job", from.String(), m)
			}
		}
	}
}

// A call in any state can become ending, go back from ending, and become ended.
func TestEndingAndEndedLieOverTheState(t *testing.T) {
	for base := waiting; base < ending; base++ {
		m := machineIn(t, base)
		c := &m.calls[0]
		for _, ev := range []Event{Late{}, Recorded{Seq: 9, Record: claim}} {
			c.endAt = now
			if c.state() != ending {
				t.Errorf("%s, End: the call is %s", base, c.state())
			}
			if m.Step(now, ev); c.state() == ending {
				t.Errorf("%s: still ending after %T", base, ev)
			}
		}
		c.endAt = now
		if m.Step(now, Ended{Result: messages.Result{Status: messages.StatusOK}}); c.state() != ended {
			t.Errorf("%s, Ended: the call is %s", base, c.state())
		}
	}
}

// machineIn returns a machine whose only call is in the given state. The machine has not
// begun, so a step applies its event and does nothing else.
func machineIn(t *testing.T, base state) *Machine {
	t.Helper()
	catalog, err := schemas.NewCatalog(schemas.Tool{Name: "read", Kind: messages.KindRead})
	if err != nil {
		t.Fatal(err)
	}
	calls := []messages.ToolCall{{ID: "0", Name: "read", Input: []byte("{}")}}
	m := New(plan.New(calls, catalog), Config{Window: 1, QueueTimeout: time.Minute})
	c := &m.calls[0]
	c.base, c.published = base, base != waiting && base != parked
	switch base {
	case claimed:
		c.record = claim
	case parked:
		c.record.State = wire.Parked
	}
	return m
}

// readTable returns the table in the package comment: the cells of each state.
func readTable(t *testing.T) map[state][]string {
	t.Helper()
	text, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "//\tstate ")
	head, rows, _ := strings.Cut(rest, "\n")
	var names []string
	for _, c := range columns {
		names = append(names, c.name)
	}
	if got := strings.Fields(head); strings.Join(got, " ") != strings.Join(names, " ") {
		t.Fatalf("the table has the columns %v, want %v", got, names)
	}
	table := map[state][]string{}
	for s := waiting; s < ending; s++ {
		var row string
		row, rows, _ = strings.Cut(rows, "\n")
		cells := strings.Fields(strings.TrimPrefix(row, "//"))
		if len(cells) != 1+len(columns) || cells[0] != s.String() {
			t.Fatalf("row of %s: %q", s, row)
		}
		table[s] = cells[1:]
	}
	return table
}
