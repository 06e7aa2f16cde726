//go:build unix

package soak

import (
	"bytes"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/messages"
)

// A short soak run with real processes and a few dozen faults breaks no rule. `make soak` runs
// the long form.
func TestAFleetIsBroken(t *testing.T) {
	t.Parallel()
	cfg := Config{Duration: 10 * time.Second, Every: 900 * time.Millisecond, Seed: rand.Uint64(), Progress: func(line string) { t.Log(line) }}
	cfg.Kills = 4 // a fault may hit no running process, so the number is a minimum
	if testing.Short() {
		cfg.Duration, cfg.Kills = 6*time.Second, 1
	}
	report, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	report.Print(&text)
	t.Logf("\n%s", &text)
	for _, v := range report.Violations {
		t.Error(v)
	}
	if n := times(report.Faults, Kill); n < cfg.Kills {
		t.Errorf("%d processes were killed, want %d at least: this run shows little", n, cfg.Kills)
	}
	if report.Statuses[messages.StatusOK] == 0 {
		t.Error("not one call went well: this run shows nothing")
	}
	if !t.Failed() {
		_ = os.RemoveAll(report.Config.Dir)
	} else {
		t.Logf("data, logs and ledger are in %s; again: make soak SOAK='-seed %d -duration %s -every %s'", report.Config.Dir, cfg.Seed, cfg.Duration, cfg.Every)
	}
}

// A short run of the scenario Restarts breaks no rule. `make soak` runs the long form.
func TestTheServerRestartsUnderLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIP: it takes ten seconds, and the race detector sees nothing of other processes")
	}
	t.Parallel()
	cfg := Restarts(rand.Uint64())
	cfg.Sequence, cfg.Every, cfg.Batches, cfg.Progress = cfg.Sequence[:3], time.Second, 50, func(line string) { t.Log(line) }
	report, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range report.Violations {
		t.Error(v)
	}
	if report.Batches < cfg.Batches {
		t.Errorf("%d batches, want %d at least: this run shows little", report.Batches, cfg.Batches)
	}
	if !t.Failed() {
		_ = os.RemoveAll(report.Config.Dir)
	} else {
		t.Logf("data, logs and ledger are in %s; again: make soak SOAK='-scenario restarts -seed %d'", report.Config.Dir, cfg.Seed)
	}
}

func TestParsingAndDealingAMix(t *testing.T) {
	mix, err := ParseMix("worker=3, zero")
	if err != nil || mix.String() != "worker=3,zero=1" {
		t.Fatalf("got %s, err %v", mix, err)
	}
	next := mix.dealer(rand.New(rand.NewPCG(1, 1)))
	dealt := Mix{}
	for range 8 {
		dealt[next()]++
	}
	if dealt[KillWorker] != 6 || dealt[Zero] != 2 {
		t.Errorf("two decks held %s, want worker=6,zero=2", dealt)
	}
	for _, bad := range []string{"", "wurker", "worker=x", "worker=-1", "worker=0"} {
		if mix, err := ParseMix(bad); err == nil {
			t.Errorf("%q is read as %s", bad, mix)
		}
	}
}
