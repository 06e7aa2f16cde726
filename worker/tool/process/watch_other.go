//go:build !linux

package process

import (
	"time"

	"github.com/toolfleet/toolfleet/internal/sandbox"
)

// watch does nothing: this system does not show what a command uses.
func (t *tree) watch(sandbox.Policy, time.Duration, <-chan struct{}) string { return "" }
