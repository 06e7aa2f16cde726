//go:build unix

package soak

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/e2e/oldbuild"
	"github.com/toolfleet/toolfleet/messages"
)

// Half of the processes of a soak run are of an old build, as during a rolling update and its
// rollback. Each restart of a member changes its build, including the server's. No rule is
// broken.
func TestTwoBuildsRunSideBySide(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIP: it builds an old commit, and the race detector sees nothing of other processes")
	}
	t.Parallel()
	old := t.TempDir()
	if err := oldbuild.Build(old); errors.Is(err, oldbuild.ErrNoHistory) {
		t.Skip("SKIP:", err)
	} else if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		OldPrograms: old, Duration: 15 * time.Second, Every: 900 * time.Millisecond, Kills: 6, Coordinators: 3, Workers: 4,
		Seed: rand.Uint64(), Progress: func(line string) { t.Log(line) },
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
	if report.Statuses[messages.StatusOK] == 0 {
		t.Error("not one call went well: this run shows nothing")
	}
	if !t.Failed() {
		_ = os.RemoveAll(report.Config.Dir)
	} else {
		t.Logf("data, logs and ledger are in %s; again: make soak SOAK='-old DIR -seed %d -duration %s -every %s', with the old toolfleet in DIR", report.Config.Dir, cfg.Seed, cfg.Duration, cfg.Every)
	}
}
