package tool

import (
	"bytes"
	"context"
	"fmt"
)

// Prober is a Runner of a checkable tool. It finds out whether a lost run of the call was applied,
// and changes nothing.
type Prober interface {
	// Probe asks about the call as it ran: its IdempotencyKey is the key of that run. An error
	// means that the answer is unknown. When ctx ends the probe must end too, and leave nothing
	// running.
	Probe(ctx context.Context, call Call) (Probed, error)
}

// Probed is what a probe found out.
type Probed struct {
	Applied bool
	Output  Output // what the run produced, if the probe knows; zero: not known
}

// NewProber makes a Runner that is a [Prober] of two functions, for a tool with on_crash checkable.
func NewProber(run Func, probe func(ctx context.Context, call Call) (Probed, error)) Runner {
	if probe == nil {
		return run // a Registry then refuses the tool, so that a missing probe does not first show when a call is lost
	}
	return prober{run, probe}
}

type prober struct {
	Func
	probe func(ctx context.Context, call Call) (Probed, error)
}

// Probe calls the probe function.
func (p prober) Probe(ctx context.Context, call Call) (Probed, error) { return p.probe(ctx, call) }

// ReadProbed reads the answer of a probe that is not Go code. Its first line is done or not_done.
// After done comes the output of the run; if nothing comes, the output is not known.
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
