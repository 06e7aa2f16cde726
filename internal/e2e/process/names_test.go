package process

import "github.com/toolfleet/toolfleet/internal/e2e/fleettest"

// These helpers of fleettest are used in every file.
type (
	call         = fleettest.Call
	lockedBuffer = fleettest.Buffer
)

var (
	canonical = fleettest.Canonical
	statuses  = fleettest.Statuses
	says      = fleettest.Says
	checkFeed = fleettest.CheckFeed
)
