//go:build unix

package soak

import (
	"context"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"
)

// inflict injects faults at random times until ctx ends. It returns when every fault is
// repaired.
func (f *fleet) inflict(ctx context.Context, seed uint64, mix Mix, every time.Duration) {
	rng := rand.New(rand.NewPCG(seed, 1))
	next := mix.dealer(rng)
	var mending sync.WaitGroup
	defer mending.Wait()
	for n := uint64(2); ; n++ {
		kind := next()
		own := rand.New(rand.NewPCG(seed, n)) // the faults do not share random numbers
		wait := every/2 + time.Duration(rng.Int64N(int64(every)))
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		mending.Go(func() { f.do(kind, own) })
	}
}

// inflictAll injects the faults of cfg.Sequence, one after another. It returns when every
// fault is repaired.
func (f *fleet) inflictAll(ctx context.Context, cfg Config) {
	for n, kind := range cfg.Sequence {
		own := rand.New(rand.NewPCG(cfg.Seed, uint64(n)+2))
		if pause(ctx, cfg.Every/2+time.Duration(own.Int64N(int64(cfg.Every)))); ctx.Err() != nil {
			return
		}
		f.do(kind, own)
	}
}

// do injects one fault and repairs it. It does nothing if every process that it could hit
// already has a fault.
func (f *fleet) do(kind Kind, rng *rand.Rand) {
	switch kind {
	case KillWorker:
		f.killOne(kind, f.workers, rng)
	case KillCoordinator:
		f.killOne(kind, f.coordinators, rng)
	case KillServer:
		f.killOne(kind, []*member{f.server}, rng)
	case RestartServer:
		if f.server.mu.TryLock() {
			f.server.restart(kind, between(rng, 50, 500))
			f.server.mu.Unlock()
		}
	case PauseWorker:
		f.pauseOne(kind, f.workers, between(rng, 1000, 5000), rng)
	case PauseCoord:
		f.pauseOne(kind, f.coordinators, between(rng, 500, 4000), rng)
	case Roll:
		for _, m := range append(f.workers[:len(f.workers):len(f.workers)], f.coordinators...) {
			m.mu.Lock()
			m.restart(kind, between(rng, 10, 200))
			m.mu.Unlock()
		}
	case Zero:
		f.endAllWorkers(kind, rng)
	}
}

func between(rng *rand.Rand, least, most int) time.Duration {
	return time.Duration(least+rng.IntN(most-least+1)) * time.Millisecond
}

// free locks a random member without a fault and returns it. It returns nil if every member
// has a fault.
func free(members []*member, rng *rand.Rand) *member {
	for _, i := range rng.Perm(len(members)) {
		if members[i].mu.TryLock() {
			return members[i]
		}
	}
	return nil
}

func (f *fleet) killOne(kind Kind, members []*member, rng *rand.Rand) {
	down := between(rng, 50, 1000)
	m := free(members, rng)
	if m == nil {
		return
	}
	defer m.mu.Unlock()
	at := time.Now()
	m.kill()
	m.startNext(kind, Kill, at, down)
}

func (f *fleet) pauseOne(kind Kind, members []*member, pause time.Duration, rng *rand.Rand) {
	m := free(members, rng)
	if m == nil {
		return
	}
	defer m.mu.Unlock()
	at, p := time.Now(), m.process
	p.signal(syscall.SIGSTOP)
	time.Sleep(pause)
	p.signal(syscall.SIGCONT)
	m.log.add(Fault{Kind: kind, Member: m.name, Process: p.name, Act: Pause, At: at, Until: time.Now()})
}

// endAllWorkers ends all workers at once and starts them again.
func (f *fleet) endAllWorkers(kind Kind, rng *rand.Rand) {
	down, crash := between(rng, 500, 3000), rng.IntN(2) == 0
	for _, m := range f.workers {
		m.mu.Lock()
		defer m.mu.Unlock()
	}
	var all sync.WaitGroup
	for _, m := range f.workers {
		all.Go(func() {
			at, act := time.Now(), Kill
			if crash {
				m.kill()
			} else {
				act = m.term(patience)
			}
			m.startNext(kind, act, at, down)
		})
	}
	all.Wait()
}

// patience is how long a process may take to shut down. It is longer than any drain in the
// settings.
const patience = 15 * time.Second

// restart shuts the process of the member down and starts the next one. The caller holds mu.
func (m *member) restart(kind Kind, down time.Duration) {
	at := time.Now()
	m.startNext(kind, m.term(patience), at, down)
}

// startNext waits for the time down, starts the next process of the member, and records the
// fault that ended the process before. The caller holds mu.
func (m *member) startNext(kind Kind, act Act, at time.Time, down time.Duration) {
	was := m.process.name
	time.Sleep(down)
	until := time.Now()
	m.startOrRecord()
	m.log.add(Fault{Kind: kind, Member: m.name, Process: was, Act: act, At: at, Until: until})
}
