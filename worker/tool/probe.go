package tool

import (
	"bytes"
	"context"
	"fmt"
)

// Prober is a Runner of a checkable tool. It finds out whether a lost run of a call was
// applied, and changes nothing.
type Prober interface {
	// Probe asks about a run of the call. The call's IdempotencyKey is the key of that run.
	// An error means that the answer is unknown. When ctx ends, the probe must end too, and
	// leave nothing running.
	Probe(ctx context.Context, call Call) (Probed, error)
}

// Probed is what a probe found out.
type Probed struct {
	Applied bool
	Output  Output // what the run produced; zero if the probe does not know
}

// NewProber makes a Runner that is a [Prober] from two functions, for a tool with on_crash
// checkable.
func NewProber(run Func, probe func(ctx context.Context, call Call) (Probed, error)) Runner {
	if probe == nil {
		return run // a Registry refuses a checkable tool without a probe
	}
	return prober{run, probe}
}

type prober struct {
	Func
	probe func(ctx context.Context, call Call) (Probed, error)
}

// Probe calls the probe function.
func (p prober) Probe(ctx context.Context, call Call) (Probed, error) { return p.probe(ctx, call) }

// ReadProbed reads the answer of a probe that is not Go code. The first line is done or
// not_done. The output of the run may follow after done. If nothing follows, the output is
// unknown.
func ReadProbed(answer []byte) (Probed, error) {
	line, rest, _ := bytes.Cut(answer, []byte("\n"))
	line = bytes.TrimSpace(line)
	switch {
	case string(line) == "not_done":
		return Probed{}, nil
	case string(line) != "done":
		return Probed{}, fmt.Errorf("its first line is %.80q; want done or not_done", line)
	case len(rest) == 0:
		return Probed{Applied: true}, nil
	}
	return Probed{Applied: true, Output: Printed(rest)}, nil
}
