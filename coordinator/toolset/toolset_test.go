package toolset_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/coordinator/toolset"
	"github.com/toolfleet/toolfleet/internal/wire"
)

// worker returns a worker that serves these digests in pool "p". A tool's name is its digest
// without the version.
func worker(slots, busy int, digests ...string) wire.Presence {
	return wire.Presence{
		Pools: []string{"p"}, Slots: slots, Busy: busy,
		Queues: map[string]wire.Queue{"p": {Token: wire.QueueToken("p", digests), Tools: digests}},
	}
}

// before returns a worker as the version before announces it. The next one, silent, announces
// only the names of its tools.
func before(digests ...string) wire.Presence {
	tools := map[string]string{}
	for _, d := range digests {
		tools[d[:1]] = d
	}
	return wire.Presence{Pools: []string{"p"}, Slots: 1, Toolsets: map[string]map[string]string{"p": tools}}
}

func silent(names ...string) wire.Presence {
	return wire.Presence{Pools: []string{"p"}, Slots: 1, Tools: names}
}

func draining(w wire.Presence) wire.Presence {
	w.Draining = true
	return w
}

func tool(digest string) toolset.Tool {
	return toolset.Tool{Pool: "p", Name: digest[:1], Digest: digest}
}

func none(string) int { return 0 }

func TestPlace(t *testing.T) {
	token := func(digests ...string) string { return wire.QueueToken("p", digests) }
	waiting := wire.WaitingQueue("p")
	hostile := worker(1, 0, "a1")
	hostile.Queues["p"] = wire.Queue{Token: "p.>", Tools: []string{"a1"}}
	stranger := worker(1, 0, "a1")
	stranger.Queues["p"] = wire.Queue{Token: wire.QueueToken("q", []string{"a1"}), Tools: []string{"a1"}}
	greedy := worker(1, 0, "a1") // a worker that would take calls of others into its own queue
	greedy.Queues["p"] = wire.Queue{Token: "p~0123456789abcdef", Tools: []string{"a1"}}
	poser := worker(1, 0, "b1") // a worker that would have calls put into a queue whose workers lack the tool
	poser.Queues["p"] = wire.Queue{Token: token("b1"), Tools: []string{"a1"}}
	empty := worker(1, 0, "a1")
	empty.Queues["p"] = wire.Queue{Token: waiting}
	bounded := worker(1, 0, "a1")
	bounded.Queues["p"] = wire.Queue{Token: "p", Tools: []string{"a1"}}
	for name, tc := range map[string]struct {
		present []wire.Presence
		want    string
	}{
		"nobody":                         {nil, waiting},
		"its toolset":                    {[]wire.Presence{worker(1, 0, "a1", "b1")}, token("a1", "b1")},
		"another version":                {[]wire.Presence{worker(1, 0, "a2")}, waiting},
		"several versions of a name":     {[]wire.Presence{worker(1, 0, "a2", "a1")}, token("a1", "a2")},
		"the one that has it":            {[]wire.Presence{worker(9, 0, "a2"), worker(1, 1, "a1")}, token("a1")},
		"the one with free slots":        {[]wire.Presence{worker(4, 4, "a1"), worker(4, 1, "a1", "b1")}, token("a1", "b1")},
		"a worker of the version before": {[]wire.Presence{before("a1"), worker(9, 0, "a2")}, "p"},
		"that has another version":       {[]wire.Presence{before("a2")}, waiting},
		"that tells only names":          {[]wire.Presence{silent("a")}, "p"},
		"a pool with one queue":          {[]wire.Presence{bounded}, "p"},
		"one that drains":                {[]wire.Presence{draining(worker(1, 0, "a1"))}, waiting},
		"and one that stays":             {[]wire.Presence{draining(worker(1, 0, "a1")), worker(1, 1, "a1")}, token("a1")},
		"a token that is none":           {[]wire.Presence{hostile}, waiting},
		"the token of another pool":      {[]wire.Presence{stranger}, waiting},
		"the token of no tools":          {[]wire.Presence{greedy}, waiting},
		"the token of other tools":       {[]wire.Presence{poser, worker(1, 0, "b1")}, waiting},
		"the token of waiting jobs":      {[]wire.Presence{empty}, waiting},
	} {
		got, served := toolset.New(tc.present).Place(tool("a1"), "call", none)
		if got != tc.want || served != (tc.want != waiting) {
			t.Errorf("%s: %s, served %v; want %s", name, got, served, tc.want)
		}
	}
}

// Jobs are distributed in proportion to the slots, whether or not the workers' own counts are
// up to date. Coordinators that know the same choose the same queue.
func TestSharesOut(t *testing.T) {
	small, large := worker(2, 0, "a1"), worker(6, 0, "a1", "b1")
	f := toolset.New([]wire.Presence{small, large})
	out := map[string]int{}
	for i := range 800 {
		token, _ := f.Place(tool("a1"), fmt.Sprint(i), func(token string) int { return out[token] })
		out[token]++
	}
	if n := out[small.Queues["p"].Token]; n < 195 || n > 205 {
		t.Errorf("%d of 800 jobs went to a quarter of the slots", n)
	}
	even := toolset.New([]wire.Presence{worker(2, 1, "a1"), worker(2, 1, "a1", "b1")})
	chosen := map[string]int{}
	for i := range 800 {
		token, _ := even.Place(tool("a1"), fmt.Sprint(i), none)
		again, _ := toolset.New([]wire.Presence{worker(2, 1, "a1", "b1"), worker(2, 1, "a1")}).Place(tool("a1"), fmt.Sprint(i), none)
		if chosen[token]++; token != again {
			t.Fatalf("call %d goes to %s or %s", i, token, again)
		}
	}
	for token, n := range chosen {
		if len(chosen) != 2 || n < 300 || n > 500 {
			t.Errorf("%d of 800 calls prefer %s", n, token)
		}
	}
}

func TestKeeps(t *testing.T) {
	own, both := wire.QueueToken("p", []string{"a1"}), wire.QueueToken("p", []string{"a1", "b1"})
	waiting := wire.WaitingQueue("p")
	for name, tc := range map[string]struct {
		present []wire.Presence
		token   string
		want    bool
	}{
		"its workers are there":             {[]wire.Presence{worker(1, 1, "a1"), worker(9, 0, "a1", "b1")}, own, true},
		"they have gone":                    {[]wire.Presence{worker(9, 0, "a1", "b1")}, own, false},
		"all have gone":                     {nil, own, false},
		"they drain":                        {[]wire.Presence{draining(worker(1, 0, "a1")), worker(1, 0, "a2")}, own, true},
		"they drain, and others have it":    {[]wire.Presence{draining(worker(1, 0, "a1")), worker(1, 0, "a1", "b1")}, own, false},
		"another queue":                     {[]wire.Presence{worker(1, 0, "a1")}, both, false},
		"it waits":                          {[]wire.Presence{worker(1, 0, "a2")}, waiting, true},
		"it waits, and a worker comes":      {[]wire.Presence{worker(1, 0, "a1")}, waiting, false},
		"it waits, and one of before comes": {[]wire.Presence{silent("a")}, waiting, false},
		"nobody of the version before":      {[]wire.Presence{worker(1, 0, "a1")}, "p", false},
		"somebody of the version before":    {[]wire.Presence{worker(1, 0, "a1"), before("a1")}, "p", true},
		"of that version, without the tool": {[]wire.Presence{worker(1, 0, "a1"), before("a2")}, "p", false},
	} {
		if got := toolset.New(tc.present).Keeps(tc.token, tool("a1")); got != tc.want {
			t.Errorf("%s: keeps %v", name, got)
		}
	}
}

// An announcement is bounded: it cannot list more than a worker can serve, and is cheap to
// read.
func TestBound(t *testing.T) {
	many := func(n int, prefix string) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprint(prefix, i))
		}
		return all
	}
	for name, tc := range map[string]struct {
		announced   wire.Presence
		slots, busy int // of pool "p", or of the queue of a1 in it
		want        string
	}{
		"a worker":        {worker(10, 2, "a1"), 10, 2, ""},
		"too many slots":  {worker(1<<40, 0, "a1"), 4096, 0, "1099511627776 slots, of which 4096 count"},
		"too many pools":  {wire.Presence{Slots: 1, Pools: append([]string{"p"}, many(120_000, "q")...), Tools: []string{"a"}}, 1, 0, "120001 pools, of which 64 count"},
		"too many tools":  {worker(1, 0, append([]string{"a1"}, many(5000, "b")...)...), 0, 0, "pool p with 5001 tools; at most 4096 count"},
		"a pool twice":    {wire.Presence{Slots: 1, Pools: []string{"p", "p"}, Tools: []string{"a"}}, 1, 0, ""},
		"no name of one":  {wire.Presence{Slots: 1, Pools: []string{"p.>"}, Tools: []string{"a"}}, 0, 0, `pool "p.>", which is no name of one`},
		"another's queue": {wire.Presence{Slots: 1, Pools: []string{"p"}, Queues: map[string]wire.Queue{"p": {Token: "q", Tools: []string{"a1"}}}}, 0, 0, `queue "q" of pool p, which is not the one of its tools`},
	} {
		_, dropped := toolset.Bound(tc.announced)
		if got := strings.Join(dropped, "; "); got != tc.want {
			t.Errorf("%s: left out %q, want %q", name, got, tc.want)
		}
		var slots, busy int
		all := toolset.New([]wire.Presence{tc.announced}).Queues()
		for _, q := range all {
			if q.Pool == "p" {
				slots, busy = q.Slots, q.Busy
			}
		}
		if slots != tc.slots || busy != tc.busy || len(all) > 64 {
			t.Errorf("%s: %d slots, %d busy, %d queues", name, slots, busy, len(all))
		}
	}
}

func TestPlaceFree(t *testing.T) {
	from, both, three := wire.QueueToken("p", []string{"a1"}), wire.QueueToken("p", []string{"a1", "b1"}), wire.QueueToken("p", []string{"a1", "c1"})
	for name, tc := range map[string]struct {
		present []wire.Presence
		out     map[string]int
		want    string
	}{
		"only its own queue":                  {[]wire.Presence{worker(9, 0, "a1")}, nil, ""},
		"another has a free slot":             {[]wire.Presence{worker(1, 1, "a1"), worker(1, 0, "a1", "b1")}, nil, both},
		"its own seems to be free too":        {[]wire.Presence{worker(9, 0, "a1"), worker(9, 8, "a1", "b1")}, nil, both},
		"the other is full":                   {[]wire.Presence{worker(1, 1, "a1"), worker(2, 2, "a1", "b1")}, nil, ""},
		"other jobs are on their way there":   {[]wire.Presence{worker(1, 1, "a1"), worker(2, 0, "a1", "b1")}, map[string]int{both: 2}, ""},
		"one of two others has a free slot":   {[]wire.Presence{worker(1, 1, "a1"), worker(1, 1, "a1", "b1"), worker(9, 8, "a1", "c1")}, nil, three},
		"the other has another version of it": {[]wire.Presence{worker(1, 1, "a1"), worker(1, 0, "a2", "b1")}, nil, ""},
		"the other drains":                    {[]wire.Presence{worker(1, 1, "a1"), draining(worker(1, 0, "a1", "b1"))}, nil, ""},
	} {
		got, ok := toolset.New(tc.present).PlaceFree(tool("a1"), "call", from, func(token string) int { return tc.out[token] })
		if got != tc.want || ok != (tc.want != "") {
			t.Errorf("%s: %q, %v; want %q", name, got, ok, tc.want)
		}
	}
}

func TestMoves(t *testing.T) {
	now := time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	for name, tc := range map[string]struct {
		job  toolset.Job
		want bool
	}{
		"no worker has got it":          {toolset.Job{}, true},
		"a worker has just got it":      {toolset.Job{Delivered: ago(100 * time.Millisecond)}, false},
		"and is silent":                 {toolset.Job{Delivered: ago(time.Second)}, true},
		"it runs":                       {toolset.Job{Delivered: ago(time.Hour), Sign: ago(5 * time.Second)}, false},
		"it ran, and is silent":         {toolset.Job{Delivered: ago(time.Hour), Sign: ago(10 * time.Second)}, true},
		"it runs by another's delivery": {toolset.Job{Sign: ago(time.Second)}, false},
	} {
		if got := tc.job.Moves(now, 10*time.Second); got != tc.want {
			t.Errorf("%s: moves %v", name, got)
		}
	}
}

// The fleet places jobs as a simple twin does, which knows no queues: it asks of one worker at
// a time which jobs it takes.
func TestTwin(t *testing.T) {
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var present []wire.Presence
		for range rng.IntN(5) {
			var digests []string
			for _, d := range []string{"a1", "a2", "b1"} {
				if rng.IntN(2) == 0 {
					digests = append(digests, d)
				}
			}
			if len(digests) == 0 { // this worker does not exist
				digests = []string{"b1"}
			}
			w := [](func() wire.Presence){
				func() wire.Presence { return worker(1+rng.IntN(3), rng.IntN(3), digests...) },
				func() wire.Presence { return worker(1+rng.IntN(3), rng.IntN(3), digests...) },
				func() wire.Presence { return before(digests...) },
			}[rng.IntN(3)]()
			w.Draining = rng.IntN(4) == 0
			present = append(present, w)
		}
		want := tool([]string{"a1", "a2", "b1"}[rng.IntN(3)])
		takes := func(w wire.Presence) string {
			if q, is := w.Queues["p"]; is {
				return q.Token
			}
			return "p"
		}
		has := func(w wire.Presence) bool {
			return slices.Contains(w.Queues["p"].Tools, want.Digest) || w.Toolsets["p"][want.Name] == want.Digest
		}
		f := toolset.New(present)
		token, served := f.Place(want, "call", none)
		var taker, any bool
		for _, w := range present {
			any = any || has(w) && !w.Draining
			taker = taker || has(w) && !w.Draining && takes(w) == token
			if len(w.Queues) > 0 && takes(w) == token && !has(w) {
				t.Fatalf("seed %d: %s of %+v goes to a worker without it", seed, want.Digest, present)
			}
		}
		if served != any || taker != any || f.Serves(want) != any || !f.Keeps(token, want) {
			t.Fatalf("seed %d: %s of %+v goes to %s, served %v, keeps %v", seed, want.Digest, present, token, served, f.Keeps(token, want))
		}
		if any && f.Keeps(wire.WaitingQueue("p"), want) {
			t.Fatalf("seed %d: %s of %+v may go on waiting", seed, want.Digest, present)
		}
	}
}
