package soak

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Kind is a kind of fault.
type Kind string

// [Kinds] says what each kind of fault does.
const (
	KillWorker      Kind = "worker"
	KillCoordinator Kind = "coordinator"
	KillServer      Kind = "server"
	RestartServer   Kind = "restart"
	PauseWorker     Kind = "pause"
	PauseCoord      Kind = "stall"
	Roll            Kind = "roll"
	Zero            Kind = "zero"
)

// server is the name of the only server of the fleet.
const server = "server"

// Kinds describes each kind of fault, in the order of the listing.
var Kinds = []struct {
	Kind Kind
	Does string
}{
	{KillWorker, "kill -9 of a worker"},
	{KillCoordinator, "kill -9 of a coordinator"},
	{KillServer, "kill -9 of the NATS server, restarted on the same data"},
	{RestartServer, "SIGTERM to the NATS server, restarted on the same data"},
	{PauseWorker, "SIGSTOP of a worker, mostly past its lease, then SIGCONT"},
	{PauseCoord, "SIGSTOP of a coordinator, then SIGCONT"},
	{Roll, "SIGTERM to each worker and coordinator in turn, each restarted"},
	{Zero, "every worker ended at once, by SIGTERM or kill -9, and back after a while"},
}

// Mix is the weight of each kind of fault.
type Mix map[Kind]int

// DefaultMix returns the weights of a run that names none. Most of its faults are kills.
func DefaultMix() Mix {
	return Mix{KillWorker: 6, KillCoordinator: 3, KillServer: 2, RestartServer: 1, PauseWorker: 2, PauseCoord: 1, Roll: 1, Zero: 1}
}

// ParseMix reads a mix such as "worker,server" or "worker=3,server=1".
func ParseMix(text string) (Mix, error) {
	mix := Mix{}
	for part := range strings.SplitSeq(text, ",") {
		name, weight, weighted := strings.Cut(strings.TrimSpace(part), "=")
		n := 1
		if weighted {
			var err error
			if n, err = strconv.Atoi(weight); err != nil || n < 0 || n > 1000 {
				return nil, fmt.Errorf("%s: want a weight from 0 to 1000, not %q", name, weight)
			}
		}
		if !slices.ContainsFunc(Kinds, func(k struct {
			Kind Kind
			Does string
		}) bool {
			return string(k.Kind) == name
		}) {
			return nil, fmt.Errorf("there is no fault %q", name)
		}
		mix[Kind(name)] += n
	}
	if len(mix.deck()) == 0 {
		return nil, fmt.Errorf("no fault is left in %q", text)
	}
	return mix, nil
}

func (m Mix) String() string {
	var parts []string
	for _, k := range Kinds {
		if n := m[k.Kind]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s=%d", k.Kind, n))
		}
	}
	return strings.Join(parts, ",")
}

// deck returns a list with each kind as many times as its weight.
func (m Mix) deck() []Kind {
	var deck []Kind
	for _, k := range Kinds {
		for range m[k.Kind] {
			deck = append(deck, k.Kind)
		}
	}
	return deck
}

// dealer returns a function that deals shuffled decks one after another. So even a short run
// has each kind about as often as its weight says.
func (m Mix) dealer(rng *rand.Rand) func() Kind {
	var left []Kind
	return func() Kind {
		if len(left) == 0 {
			left = m.deck()
			rng.Shuffle(len(left), func(i, j int) { left[i], left[j] = left[j], left[i] })
		}
		next := left[0]
		left = left[1:]
		return next
	}
}

// faultLog collects the faults of a run.
type faultLog struct {
	mu     sync.Mutex
	faults []Fault // guarded by mu
}

func (l *faultLog) add(f Fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults = append(l.faults, f)
}

func (l *faultLog) all() []Fault {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.faults)
}

// times returns the number of faults with the given act.
func times(faults []Fault, act Act) int {
	n := 0
	for _, f := range faults {
		if f.Act == act {
			n++
		}
	}
	return n
}
