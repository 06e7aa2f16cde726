package httpapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolfleet/toolfleet/messages"
	"github.com/toolfleet/toolfleet/worker/tool"
)

// meeting has three tools for rounds, which are numbered. They keep a history of their runs: write,
// read, and meet, a read that ends when three of its round have begun.
type meeting struct {
	mu     sync.Mutex
	ran    []string              // guarded by mu
	rounds map[int]*meetingRound // guarded by mu
}

type meetingRound struct {
	here int
	full chan struct{} // closed when three are here
}

func (m *meeting) serve(add func(string, messages.Kind, tool.Func)) {
	noting := func(name string) tool.Func {
		return func(_ context.Context, c tool.Call) (tool.Output, error) {
			m.begins(name, c)
			return tool.Text(name), nil
		}
	}
	add("write", messages.KindWrite, noting("write"))
	add("read", messages.KindRead, noting("read"))
	add("meet", messages.KindRead, func(ctx context.Context, c tool.Call) (tool.Output, error) {
		select {
		case <-m.begins("meet", c).full:
			return tool.Text("met"), nil
		case <-ctx.Done():
			return tool.Output{}, context.Cause(ctx)
		}
	})
}

// begins notes that a tool runs.
func (m *meeting) begins(name string, c tool.Call) *meetingRound {
	var input struct{ Round int }
	if err := json.Unmarshal(c.Input, &input); err != nil {
		panic(err) // never: the test wrote it
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ran = append(m.ran, fmt.Sprintf("%s %d", name, input.Round))
	if m.rounds == nil {
		m.rounds = map[int]*meetingRound{}
	}
	r := m.rounds[input.Round]
	if r == nil {
		r = &meetingRound{full: make(chan struct{})}
		m.rounds[input.Round] = r
	}
	if name == "meet" {
		if r.here++; r.here == 3 {
			close(r.full)
		}
	}
	return r
}

func (m *meeting) history() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.ran)
}

// Single calls that are handed over one by one keep their order: the client sends the next one as
// soon as the one before is stored, and waits for no result. Each write runs alone, after the reads
// before it and before those after it. Three slow reads run together: none ends before all have
// begun. TOOLFLEET_HTTP_ROUNDS, in make soak, has it done over real connections, in real time.
func TestSingleCallsKeepTheirOrder(t *testing.T) {
	const rounds = 200
	if longRounds() > 0 {
		singleCalls(t, newFleetAlone(t), rounds)
		return
	}
	inBubble(t, func(t *testing.T, f *testFleet) {
		if testing.Short() {
			singleCalls(t, f, rounds/10)
			return
		}
		singleCalls(t, f, rounds)
	})
}

func singleCalls(t *testing.T, f *testFleet, rounds int) {
	calls := []string{"write", "read", "meet", "meet", "meet"}
	path := func(round, n int) string { return fmt.Sprintf("/v1/sessions/s/calls/%d-%d", round, n) }
	body := func(round, n int) string { return fmt.Sprintf(`{"name":%q,"input":{"round":%d}}`, calls[n], round) }
	for round := range rounds {
		for n := range calls {
			if a := f.do("PUT", path(round, n), body(round, n), "Prefer", "wait=0"); a.Status != http.StatusAccepted && a.Status != http.StatusOK {
				t.Fatalf("%d %s", a.Status, a.Body)
			}
		}
	}
	for round := range rounds {
		for n := range calls {
			if a := f.do("PUT", path(round, n), body(round, n)); a.Status != http.StatusOK || decode[messages.Result](t, a.Body).Status != messages.StatusOK {
				t.Fatalf("%s: %d %s", path(round, n), a.Status, a.Body)
			}
		}
	}
	got := f.meeting.history()
	var want []string
	for round := range rounds {
		first := len(want)
		for _, name := range calls {
			want = append(want, fmt.Sprintf("%s %d", name, round))
		}
		slices.Sort(want[first+1:]) // the reads of a round begin in any order
		slices.Sort(got[min(first+1, len(got)):min(len(want), len(got))])
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what ran (-want +got):\n%s", diff)
	}
}
