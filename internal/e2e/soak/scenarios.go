package soak

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Restarts is the scenario in which the server is stopped and started again on the same data, in order and as by a crash,
// under agents that publish batches without a pause. Nothing else is broken, no batch is aborted, and nobody is asked: so
// every batch has to be completed. The fleet has its default settings.
//
// An agent has one batch open at a time. Each batch then comes to its coordinator by a delivery of its own, and after a
// restart the broker delivers it again to whichever coordinator is back first. Both drive it, so their writes to the
// journal meet, some 40 times a second, while the server goes away again.
func Restarts(seed uint64) Config {
	return Config{
		Seed: seed, Every: 2 * time.Second, Batches: 200, Sessions: 25, Depth: 1, Think: time.Nanosecond, Drain: time.Minute,
		Sequence: []Kind{RestartServer, KillServer, RestartServer, KillServer, RestartServer},
		Settings: Defaults, Shape: pairs, Calm: true,
	}
}

// pairs is a batch of two reads and two writes in random order. Those that write to the ledger are processes, which are
// dear, so only one read in four is one.
func pairs(session string, n int, rng *rand.Rand) *Batch {
	b := &Batch{Session: session, ID: fmt.Sprintf("%s-%d", session, n), Claims: map[int][]Claim{}}
	reads, writes := []string{"echo"}, []string{"mark", "set"}
	if rng.IntN(16) == 0 {
		reads, writes = []string{"look"}, []string{"put", "book"}
	}
	pick := func(from []string) string { return from[rng.IntN(len(from))] }
	names := []string{pick(reads), pick(reads), pick(writes), pick(writes)}
	rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for i, name := range names {
		b.Calls = append(b.Calls, Call{ID: fmt.Sprintf("call_%d", i), Tool: name, Input: Input{MS: rng.IntN(20)}})
	}
	return b
}
