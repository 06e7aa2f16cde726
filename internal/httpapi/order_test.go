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

// meeting has three tools for numbered rounds: write, read, and meet. meet is a read that ends
// when three runs of its round have begun. The tools record their runs.
type meeting struct {
	mu     sync.Mutex
	ran    []string              // guarded by mu
	rounds map[int]*meetingRound // guarded by mu
}

type meetingRound struct {
	here int
	full chan struct{} // closed when three runs have begun
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

// begins records that a tool runs.
func (m *meeting) begins(name string, c tool.Call) *meetingRound {
	var input struct{ Round int }
	if err := json.Unmarshal(c.Input, &input); err != nil {
		panic(err) // cannot happen: the test wrote the input
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

// Single calls that are handed over one after another keep their order: the client sends each
// call once the one before is stored, without waiting for results. Each write runs alone,
// between the reads before it and those after it. Three slow reads run together: none ends
// before all three have begun. With TOOLFLEET_HTTP_ROUNDS, which `make soak` sets, the test
// uses real connections and real time.
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
		slices.Sort(want[first+1:]) // the reads of a round may begin in any order
		slices.Sort(got[min(first+1, len(got)):min(len(want), len(got))])
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what ran (-want +got):\n%s", diff)
	}
}
