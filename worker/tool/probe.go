package tool

import (
	"bytes"
	"context"
	"fmt"
)

// Prober is a Runner of a checkable tool: it finds out whether a run of the call that was lost has been
// applied. It changes nothing.
type Prober interface {
	// Probe asks about the call as it ran: its IdempotencyKey is the key of that run. An error means that
	// nobody knows. When ctx ends the probe must end, and leave nothing running.
	Probe(ctx context.Context, call Call) (Probed, error)
}

// Probed is what a probe found out.
type Probed struct {
	Applied bool
	Output  Output // what the run gave, where the probe knows it; zero: not known
}

// Checkable makes a Runner that is a [Prober] of two functions: what a tool with on_crash checkable needs.
func Checkable(run Func, probe func(ctx context.Context, call Call) (Probed, error)) Runner {
	if probe == nil {
		return run // a Registry refuses it, rather than a call that was lost
	}
	return checkable{run, probe}
}

type checkable struct {
	Func
	probe func(ctx context.Context, call Call) (Probed, error)
}

// Probe asks the probe.
func (c checkable) Probe(ctx context.Context, call Call) (Probed, error) { return c.probe(ctx, call) }

// ReadProbed reads the answer of a probe that is no Go code: its first line is done or not_done, and what
// follows the line done is what the run printed. Nothing there means that the output is not known.
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
