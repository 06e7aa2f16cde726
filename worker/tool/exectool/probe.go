package exectool

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/worker/tool"
)

// Probe runs a program that finds out whether a run of a call was applied. The program must
// not change anything. It has the same input on stdin, the same environment and the same
// folder as the run. Its first line is done or not_done. After done it may print the output
// of the run. Any other answer, an exit status other than 0, or a timeout means that the
// answer is unknown. Safe for concurrent use.
type Probe struct {
	program *Tool
	timeout time.Duration
}

// NewProbe returns a probe for a program, like [New]. The timeout bounds one probe.
func NewProbe(cfg Config, timeout time.Duration) (*Probe, error) {
	program, err := New(cfg)
	if err != nil {
		return nil, err
	}
	return &Probe{program, timeout}, nil
}

// Probe runs the program once. When it returns, everything that it started is dead.
func (p *Probe) Probe(ctx context.Context, call tool.Call) (tool.Probed, error) {
	name := p.program.cfg.Command[0]
	ctx, cancel := context.WithTimeoutCause(ctx, p.timeout, fmt.Errorf("it did not end in %v", p.timeout))
	defer cancel()
	result, err := p.program.start(ctx, call, nil, nil)
	if err == nil && result.ExitCode != 0 {
		err = errors.New(strings.TrimSpace(result.Status() + " " + lastOutput(result.Stderr)))
	}
	var probed tool.Probed
	if err == nil {
		probed, err = tool.ReadProbed(result.Stdout.Bytes())
	}
	if err != nil {
		return tool.Probed{}, fmt.Errorf("probe %s: %w", name, err)
	}
	return probed, nil
}
