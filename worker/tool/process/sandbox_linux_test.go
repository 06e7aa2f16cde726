package process

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/toolfleet/toolfleet/internal/sandbox"
)

func boxFor(t testing.TB, change func(*sandbox.Policy)) *sandbox.Box {
	t.Helper()
	policy := sandbox.Policy{Read: sandbox.SystemPaths("", os.Getenv("PATH")), Write: []string{t.TempDir()}, Network: sandbox.NoNetwork}
	if change != nil {
		change(&policy)
	}
	box, err := sandbox.New(policy)
	if err != nil {
		t.Fatal(err)
	}
	return box
}

// BenchmarkRun runs a command without a sandbox and in one, in turn, so that both meet the
// same machine. It reports for both the median, and the first decile, which other programs on
// the machine disturb less: both in ms, with their difference (more) and ratio. The goal is 3
// ms more at most.
func BenchmarkRun(b *testing.B) {
	boxes := []*sandbox.Box{nil, boxFor(b, nil)}
	var took [2][]time.Duration
	for b.Loop() {
		for i, box := range boxes {
			began := time.Now()
			if _, err := Run(b.Context(), Command{Args: []string{"true"}, Sandbox: box}); err != nil {
				b.Fatal(err)
			}
			took[i] = append(took[i], time.Since(began))
		}
	}
	for name, part := range map[string]int{"median": 2, "decile": 10} {
		var ms [2]float64
		for i, all := range took {
			slices.Sort(all)
			ms[i] = float64(all[len(all)/part].Microseconds()) / 1000
		}
		b.ReportMetric(ms[0], name+"-alone-ms")
		b.ReportMetric(ms[1], name+"-sandbox-ms")
		b.ReportMetric(ms[1]-ms[0], name+"-more-ms")
		b.ReportMetric(ms[1]/ms[0], name+"-ratio")
	}
	b.ReportMetric(0, "ns/op") // of both commands together: it says nothing
}

var errStop = errors.New("stop")

func contextWithCause(t *testing.T, after time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(t.Context(), after, errStop)
}

// Commands that start at the same time do not disturb each other.
func TestManySandboxesAtOnce(t *testing.T) {
	needs(t, "bash")
	g := newGround(t, false)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 25 {
				if r, out := g.run(t, `echo x >>ledger; echo noted`); r.ExitCode != 0 || out != "noted\n" {
					t.Errorf("%s: %q", r.Status(), out)
				}
				// A command without a sandbox ends: that does not kill a command that is
				// starting in a sandbox.
				if r, err := sh(t.Context(), "true", nil); err != nil || r.ExitCode != 0 {
					t.Errorf("%s, %v", r.Status(), err)
				}
			}
		})
	}
	wg.Wait()
}
