package journal

import "time"

// Workers and coordinators share these defaults: workers make claims, and coordinators decide
// when a claim has lapsed.
const (
	DefaultLease  = 10 * time.Second // how long a claim is valid without renewal
	DefaultPoison = 5                // number of lost workers after which a call is given up
)

// DefaultGrace returns the default of two settings. One is how long before the end of the
// lease a worker kills its tool. The other is how long after that end a coordinator waits
// before the claim counts as lapsed.
func DefaultGrace(lease time.Duration) time.Duration { return min(2*time.Second, lease/5) }
