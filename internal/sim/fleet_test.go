package sim_test

import (
	"flag"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/sim"
)

var (
	seeds = flag.Uint64("sim.seeds", 1000, "how many random fleets are run")
	seed  = flag.Int64("sim.seed", -1, "run this one fleet only, and print its history")
)

// TestWhateverHappensTheRulesHold runs random fleets under random faults.
func TestWhateverHappensTheRulesHold(t *testing.T) {
	if *seed >= 0 {
		history, err := storm(uint64(*seed), true)
		t.Logf("seed %d:\n%s", *seed, history)
		if err != nil {
			t.Errorf("seed %d: %v", *seed, err)
		}
		return
	}
	start := time.Now()
	for n := range *seeds {
		if _, err := storm(n, false); err != nil {
			history, again := storm(n, true)
			t.Fatalf("seed %d: %v\n%s\nseed %d: %v (-sim.seed=%d runs it again)", n, err, history, n, again, n)
		}
	}
	t.Logf("%d seeds, %.0f a second", *seeds, float64(*seeds)/time.Since(start).Seconds())
}

func storm(seed uint64, verbose bool) (history string, err error) {
	rng := rand.New(rand.NewPCG(seed, 3))
	f := sim.NewFleet(randomShape(rng), sim.NewStorm(rng), rng)
	if verbose {
		f.Record()
	}
	err = f.Run()
	return f.History(), err
}

func randomShape(rng *rand.Rand) sim.Shape {
	tools := []string{"read", "read", "read", "sum", "alone", "once", "once", "again", "again", "nope"}
	shape := sim.Shape{Coordinators: 1 + rng.IntN(3), Workers: 1 + rng.IntN(3)}
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
