package process

import (
	"context"
	"errors"
	"os"
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

// BenchmarkRun measures a command without a sandbox and in one: the difference is the cost of
// the sandbox.
func BenchmarkRun(b *testing.B) {
	for name, box := range map[string]*sandbox.Box{"alone": nil, "sandbox": boxFor(b, nil)} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := Run(b.Context(), Command{Args: []string{"true"}, Sandbox: box}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
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
