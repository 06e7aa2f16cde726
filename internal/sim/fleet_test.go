package sim_test

import (
	"flag"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/rawjson"
	"github.com/toolfleet/toolfleet/internal/sim"
	"github.com/toolfleet/toolfleet/internal/sim/staff"
	"github.com/toolfleet/toolfleet/internal/sim/world"
)

var (
	seeds  = flag.Uint64("sim.seeds", 500, "how many random fleets are run")
	first  = flag.Uint64("sim.first", 0, "the seed of the first of them")
	orders = flag.Uint64("sim.orders", 1, "in how many orders of parties every single fault is tried on a small fleet; even ones ask nobody")
	pairs  = flag.Int("sim.pairs", 1000, "how many pairs of faults are tried on the small fleet; 0: all of them")
	seed   = flag.Int64("sim.seed", -1, "run this one fleet only, and print its history")
)

// TestWhateverHappensTheRulesHold runs random fleets under random faults.
func TestWhateverHappensTheRulesHold(t *testing.T) {
	if *seed >= 0 {
		history, _, err := storm(uint64(*seed), true)
		t.Logf("seed %d:\n%s", *seed, history)
		if err != nil {
			t.Errorf("seed %d: %v", *seed, err)
		}
		return
	}
	t.Parallel()
	start, seen := time.Now(), map[string]int{}
	for n := *first; n < *first+*seeds; n++ {
		_, tally, err := storm(n, false)
		for what, times := range tally {
			seen[what] += times
		}
		if err != nil {
			history, _, again := storm(n, true)
			t.Fatalf("seed %d: %v\n%s\nseed %d: %v (-sim.seed=%d runs it again)", n, err, history, n, again, n)
		}
	}
	t.Logf("%d seeds, %.0f a second", *seeds, float64(*seeds)/time.Since(start).Seconds())
	for _, what := range rawjson.SortedKeys(seen) {
		t.Logf("%9d %s", seen[what], what)
	}
}

// Nothing goes wrong: no result mentions a fault. With one coordinator every call runs exactly
// once, also in batches that are submitted again. Several coordinators may drive one batch at
// the same time, which can run reads again: see docs/rough-edges.md.
func TestNothingIsRunTwiceForNothing(t *testing.T) {
	t.Parallel()
	again, runs := 0, 0
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 4))
		shape := randomShape(rng)
		shape.Parts, shape.Old, shape.Gaps, shape.Bounded = nil, 0, 0, false
		shape.Says, shape.Reforms, shape.Prompt, shape.AskFor = 0, 0, true, 15*time.Minute
		f := sim.NewFleet(shape, world.Calm{}, rng)
		f.Record()
		if err := f.Run(); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, f.History())
		}
		again += f.Tally()["runs again"]
		if n := f.Tally()["runs again"]; n > 0 && shape.Coordinators == 1 {
			t.Fatalf("seed %d: nothing goes wrong, and %d calls run again\n%s", seed, n, f.History())
		}
		runs += f.Tally()["runs"]
		if n := f.Tally()["runs after the end"]; n > 0 && shape.Coordinators == 1 {
			t.Fatalf("seed %d: nothing goes wrong, and %d calls run after their end\n%s", seed, n, f.History())
		}
		for _, what := range []string{"takeovers", "results: outcome_unknown", "results: expired", "results: skipped", "results: aborted"} {
			if n := f.Tally()[what]; n > 0 {
				t.Fatalf("seed %d: nothing goes wrong, and there are %d %s\n%s", seed, n, what, f.History())
			}
		}
		if took := f.Slowest(); took > 5*time.Second {
			t.Fatalf("seed %d: nothing goes wrong, and the job of a call that was granted is published %v later\n%s", seed, took, f.History())
		}
	}
	t.Logf("%d runs, %d of them again", runs, again)
}

func storm(seed uint64, verbose bool) (history string, tally map[string]int, err error) {
	rng := rand.New(rand.NewPCG(seed, 3))
	f := sim.NewFleet(randomShape(rng), world.NewStorm(rng), rng)
	if verbose {
		f.Record()
	}
	err = f.Run()
	return f.History(), f.Tally(), err
}

func randomShape(rng *rand.Rand) sim.Shape {
	tools := []string{"read", "read", "read", "sum", "alone", "shifty", "once", "once", "again", "again", "shell", "stern", "sternshell", "nope", "late"}
	reforms := max(0, rng.IntN(4)-1)
	shape := sim.Shape{Reforms: reforms, Coordinators: 1 + rng.IntN(3), Workers: 1 + rng.IntN(3), Says: max(0, rng.IntN(5)-2), AskFor: 15 * time.Minute, Late: rng.IntN(3) == 0}
	if rng.IntN(2) == 0 { // workers have different tools, come and leave
		for range shape.Workers {
			shape.Parts = append(shape.Parts, []staff.Part{staff.Whole, staff.Whole, staff.Reads, staff.Writes}[rng.IntN(4)])
		}
		shape.Old, shape.Bounded, shape.Gaps = max(0, rng.IntN(6)-3), rng.IntN(5) == 0, rng.IntN(3)
	}
	if rng.IntN(2) == 0 { // some calls need a person
		tools = append(tools, "askread", "askread", "askonce", "askonce", "askagain", "askagain", "askboth", "sternask")
		shape.AskFor = []time.Duration{20 * time.Second, 2 * time.Minute, 15 * time.Minute}[rng.IntN(3)]
	}
	if rng.IntN(10) == 0 { // many batches of other sessions
		shape.Late = true
		for range 6 {
			shape.Sessions = append(shape.Sessions, []string{tools[rng.IntN(len(tools))], ""})
		}
		return shape
	}
	if rng.IntN(3) == 0 { // an agent sends one call at a time
		var session []string
		for range 3 + rng.IntN(5) {
			call := tools[rng.IntN(len(tools))]
			if rng.IntN(2) == 0 {
				call = "read"
			}
			if rng.IntN(6) == 0 {
				call += " " + tools[rng.IntN(len(tools))]
			}
			session = append(session, call)
		}
		shape.Sessions = append(shape.Sessions, session)
		return shape
	}
	for range 1 + rng.IntN(2) {
		var session []string
		for range 1 + rng.IntN(3) {
			var batch []string
			for range rng.IntN(7) {
				batch = append(batch, tools[rng.IntN(len(tools))])
			}
			if rng.IntN(12) == 0 {
				batch = []string{"?"}
			}
			session = append(session, strings.Join(batch, " "))
		}
		shape.Sessions = append(shape.Sessions, session)
	}
	return shape
}

// small is the list of fleets in which every crash point is tried: one asks no person, and one
// does.
var small = []sim.Shape{
	{Coordinators: 2, Workers: 2, Sessions: [][]string{{"read once read again"}}, AskFor: 15 * time.Minute},
	{Coordinators: 2, Workers: 2, Sessions: [][]string{{"askread askonce", "once"}}, AskFor: 15 * time.Minute, Prompt: true},
}

// script runs a small fleet with the given faults. order sets the order in which the parties
// act; an odd order takes the fleet that asks people.
func script(order uint64, verbose bool, hits ...world.Hit) (*sim.Fleet, error) {
	f := sim.NewFleet(small[order%2], world.Script(hits), rand.New(rand.NewPCG(order, 5)))
	if verbose {
		f.Record()
	}
	return f, f.Run()
}

func try(t *testing.T, order uint64, hits ...world.Hit) map[string]int {
	t.Helper()
	f, err := script(order, false, hits...)
	if err != nil {
		f, _ := script(order, true, hits...)
		t.Fatalf("order %d, %v: %v\n%s\norder %d, %v: %v", order, hits, err, f.History(), order, hits, err)
	}
	return f.Tally()
}

// TestEveryCrashPoint tries each fault at each command of a small batch.
func TestEveryCrashPoint(t *testing.T) {
	t.Parallel()
	tried := 0
	for order := range *orders {
		f, err := script(order, true)
		if err != nil {
			t.Fatalf("nothing goes wrong, and yet: %v\n%s", err, f.History())
		}
		for command := 1; command <= f.Commands(); command++ {
			for _, hit := range world.Hits(command, 4) {
				tally := try(t, order, hit)
				tried++
				if unsure := tally["results: outcome_unknown"]; unsure > 0 && hit.OfMessage() {
					f, _ := script(order, true, hit)
					t.Fatalf("%s\norder %d, %v: a message is lost, and %d results are unknown, though nobody died", f.History(), order, hit, unsure)
				}
			}
		}
	}
	t.Logf("%d faults", tried)
}

// TestPairsOfCrashPoints tries two faults in one run. The flag says how many pairs it tries,
// evenly spread over all pairs.
func TestPairsOfCrashPoints(t *testing.T) {
	t.Parallel()
	for order := range uint64(2) {
		f, err := script(order, false)
		if err != nil {
			t.Fatal(err)
		}
		var all []world.Hit
		for command := 1; command <= f.Commands()*3/2; command++ { // the first fault can make the history longer
			all = append(all, world.Hits(command, 4)...)
		}
		stride := 1
		if *pairs > 0 {
			stride = max(1, len(all)*len(all) / *pairs)
		}
		tried, n := 0, 0
		for i, first := range all {
			for _, second := range all[i+1:] {
				if n++; n%stride == 0 {
					try(t, order, first, second)
					tried++
				}
			}
		}
		t.Logf("%d of %d pairs", tried, n)
	}
}
