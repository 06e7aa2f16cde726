package soak

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Restarts returns a run in which the server restarts on the same data, after a shutdown and
// after a kill in turn, while agents submit batches without a pause. There is no other fault,
// no abort and no question to a person, so every batch must be completed. The fleet has its
// default settings.
//
// An agent has one batch open at a time, so JetStream delivers each batch on its own. After a
// restart it delivers the batch again, to the coordinator that reconnects first. Both
// coordinators then drive the batch, so their journal writes conflict about 40 times a second
// while the server goes away again.
func Restarts(seed uint64) Config {
	return Config{
		Seed: seed, Every: 2 * time.Second, Batches: 200, Sessions: 25, Depth: 1, Think: time.Nanosecond, Drain: time.Minute,
		Sequence: []Kind{RestartServer, KillServer, RestartServer, KillServer, RestartServer},
		Settings: Defaults, Shape: pairs, Calm: true,
	}
}

// pairs returns a batch of two reads and two writes in random order. One batch in 16 uses
// tools that write to the ledger, because each run of such a tool starts a process, which is
// expensive.
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
