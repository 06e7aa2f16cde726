package main

import (
	"cmp"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

// metric is one figure of a slice. base is the slice of the row that it is compared with.
type metric struct {
	name string
	of   func(s, base sample) float64
}

var (
	p50        = metric{"p50, ms", func(s, _ sample) float64 { return milliseconds(s.percentile(50)) }}
	p99        = metric{"p99, ms", func(s, _ sample) float64 { return milliseconds(s.percentile(99)) }}
	rate       = metric{"calls/s", func(s, _ sample) float64 { return s.rate() }}
	ownRate    = metric{"share of own calls/s at 64 sessions", func(s, base sample) float64 { return s.rate() / base.rate() }}
	cpuPerCall = metric{"CPU per call, us", func(s, _ sample) float64 {
		total := 0.0
		for _, seconds := range s.cpu {
			total += seconds
		}
		return total * 1e6 / float64(s.calls)
	}}
)

// cpuOfRole is the processor time of one role per call.
func cpuOfRole(role string) metric {
	return metric{"CPU per call, us, " + role, func(s, _ sample) float64 { return s.cpu[role] * 1e6 / float64(s.calls) }}
}

// over is the time of a batch beyond that of its slowest call.
func over(d time.Duration) metric {
	return metric{"p50 over the slowest call, ms", func(s, _ sample) float64 { return milliseconds(s.percentile(50) - d) }}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func (s sample) percentile(p int) time.Duration { return s.took[(len(s.took)-1)*p/100] }

func (s sample) rate() float64 { return float64(s.calls) / s.wall.Seconds() }

// row is one load, and the metrics that are shown for it. It becomes a line of the table for
// each metric.
type row struct {
	name string
	load
	metrics []metric
	base    string // name of the row that ownRate compares with
	// all: every contestant runs the row. If all is false, guests (see contestant) do not run
	// it.
	all   bool
	slice time.Duration // 0: the slice of the command
	// rounds bounds how often a slow row is repeated; 0: no bound.
	rounds int
}

// contestant is one system under measurement: toolfleet, the floor, or a guest. A guest is a
// further system, or a variant of toolfleet, that runs only some of the rows. The contestants
// of a contest are compared with its first contestant.
type contestant struct {
	name  string
	start func(*fleet, string) error
	// binary is the program, or the folder of the programs.
	binary string
	guest  bool // it runs only the rows in which all is set
}

// contest is a set of rows, and the contestants that run them. For each contestant a fleet is
// started with the same setup: the server, coordinators and workers of that contestant.
type contest struct {
	setup
	contestants []contestant
	rows        []row
}

const bytesOfInput = 128

var (
	one  = load{sessions: 1, reads: 8, writes: 2, bytes: bytesOfInput}
	many = one.with(64)
)

func (l load) with(sessions int) load { l.sessions = sessions; return l }

// In the setup relaxed, the NATS server syncs its files every two minutes, which is the
// default of nats-server. In the setup always, the server syncs before it acknowledges a
// message.
var (
	relaxed = setup{sync: "2m", workers: 1, slots: 64}
	always  = setup{sync: "always", workers: 1, slots: 64}
)

// short returns the contests of the flag -short, which CI runs.
func short(product string) []contest {
	return []contest{{relaxed, field(product), []row{
		{name: "1 session", load: one, metrics: []metric{p50}},
		{name: "64 sessions", load: many, metrics: []metric{rate, cpuPerCall}},
	}}}
}

// field returns the contestants of every contest: toolfleet and the floor.
func field(product string) []contestant {
	return []contestant{
		{name: "toolfleet", start: startToolfleet, binary: product},
		{name: "floor", start: startFloor, binary: product},
	}
}

// goals has the rows with a target, measured beside every comparable system.
func goals(product string, old []string, binaries map[string]string) []contest {
	contestants := field(product)
	guest := func(name string, start func(*fleet, string) error, binary string) {
		contestants = append(contestants, contestant{name, start, binary, true})
	}
	for _, old := range old {
		guest(filepath.Base(old), startToolfleet, binaries[old])
	}
	synced := slices.Clone(contestants)
	// Not measured yet: toolfleet with identities.
	guest("traced", startTraced, product)
	guest("Client.Run", startRun, product)
	if redis, err := exec.LookPath("redis-server"); err == nil {
		guest("asynq", startAsynq, redis)
	}
	if postgres, err := filepath.Glob("/usr/lib/postgresql/*/bin"); err == nil && len(postgres) > 0 {
		guest("river", startRiver, postgres[len(postgres)-1])
		synced = append(synced, contestants[len(contestants)-1])
	}
	const nap = 50 * time.Millisecond
	return []contest{
		{relaxed, contestants, []row{
			{name: "1 session", load: one, metrics: []metric{p50, p99, cpuPerCall}, all: true},
			{name: "64 sessions", load: many, metrics: []metric{
				rate, p50, p99, cpuPerCall, cpuOfRole("server"), cpuOfRole("coordinator"), cpuOfRole("worker"), cpuOfRole("client"),
			}, all: true},
			{name: "8 reads of 50 ms, 1 session", load: load{sessions: 1, reads: 8, sleep: nap, bytes: bytesOfInput}, metrics: []metric{over(nap)}, all: true},
			{name: "1,000 sessions", load: one.with(1000), metrics: []metric{rate, ownRate}, base: "64 sessions", slice: 6 * time.Second, rounds: 5},
			{name: "10,000 sessions", load: one.with(10_000), metrics: []metric{rate, ownRate}, base: "64 sessions", slice: 10 * time.Second, rounds: 2},
		}},
		{always, synced, []row{
			{name: "sync always, 1 session", load: one, metrics: []metric{p50}, all: true},
			{name: "sync always, 64 sessions", load: many, metrics: []metric{rate, cpuPerCall}, all: true},
		}},
	}
}

// growth has rows that show how cost grows with sessions, calls, payload and workers.
func growth(product string) []contest {
	shown := []metric{p50, rate, cpuPerCall}
	large := many.with(8)
	large.bytes = 100 << 10
	kilobyte := many
	kilobyte.bytes = 1 << 10
	contests := []contest{{relaxed, field(product), []row{
		{name: "1 session", load: one, metrics: shown},
		{name: "8 sessions", load: one.with(8), metrics: shown},
		{name: "64 sessions", load: many, metrics: shown},
		{name: "512 sessions", load: one.with(512), metrics: shown, rounds: 5},
		{name: "64 sessions, 1 read", load: load{sessions: 64, reads: 1, bytes: bytesOfInput}, metrics: shown},
		{name: "64 sessions, 1 write", load: load{sessions: 64, writes: 1, bytes: bytesOfInput}, metrics: shown},
		{name: "64 sessions, 100 reads", load: load{sessions: 64, reads: 100, bytes: bytesOfInput}, metrics: shown},
		{name: "64 sessions, 1 KB", load: kilobyte, metrics: shown},
		{name: "8 sessions, 100 KB", load: large, metrics: shown, slice: time.Second, rounds: 5},
	}}}
	for _, workers := range []int{2, 4} {
		more := relaxed
		more.workers = workers
		contests = append(contests, contest{more, field(product), []row{
			{name: fmt.Sprintf("64 sessions, %d workers", workers), load: many, metrics: shown},
		}})
	}
	return contests
}

// times returns how often a row is repeated.
func (r row) times(rounds int) int { return min(rounds, cmp.Or(r.rounds, rounds)) }
