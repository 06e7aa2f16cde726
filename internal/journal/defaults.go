package journal

import "time"

// Defaults that workers, which make claims, and coordinators, which read them, have to share.
const (
	DefaultLease  = 10 * time.Second // how long a claim holds without renewal
	DefaultPoison = 5                // how many claims of a call may be lost with their workers
)

// DefaultGrace returns the default of two times: from when the tool is ended until its lease ends,
// and from then until a coordinator counts the lease as lapsed.
func DefaultGrace(lease time.Duration) time.Duration { return min(2*time.Second, lease/5) }
