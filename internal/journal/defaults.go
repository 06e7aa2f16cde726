package journal

import "time"

// Defaults that workers and coordinators share: workers make claims, and coordinators
// decide when a claim has lapsed.
const (
	DefaultLease  = 10 * time.Second // how long a claim is valid without renewal
	DefaultPoison = 5                // after how many lost workers a call is given up
)

// DefaultGrace returns the default of two settings: how long before the end of the lease a
// worker kills its tool, and how long after that end a coordinator counts the claim as
// lapsed.
func DefaultGrace(lease time.Duration) time.Duration { return min(2*time.Second, lease/5) }
