package journal

import "time"

// The defaults that workers and coordinators share: workers make claims, and coordinators judge
// them.
const (
	DefaultLease  = 10 * time.Second // how long a claim holds without renewal
	DefaultPoison = 5                // how many claims of a call may be lost with their workers
)

// DefaultGrace returns the default of two times: how long before the end of its lease a tool is
// killed, and how long after the end a coordinator waits until it counts the lease as lapsed.
func DefaultGrace(lease time.Duration) time.Duration { return min(2*time.Second, lease/5) }
