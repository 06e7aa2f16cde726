package journal

import "time"

// Defaults of what the workers that make claims and the coordinators that read them have in common.
const (
	DefaultLease  = 10 * time.Second // how long a claim holds without renewal
	DefaultPoison = 5                // claims of a call that may be lost with their worker
)

// DefaultGrace returns the time between the end of a tool and the end of its lease, and from there
// until a coordinator holds the lease to have lapsed.
func DefaultGrace(lease time.Duration) time.Duration { return min(2*time.Second, lease/5) }
