package coordinator

import (
	"sync"
	"time"
)

// pace is how long calls wait now: from the publish of their job to the notice of their end, without
// the run itself. Safe for concurrent use.
type pace struct {
	mu   sync.Mutex
	mean time.Duration // guarded by mu
}

// The mean follows the newest calls, each with a weight of one in paceWeight. A driver looks into
// the journal when a call has waited for paceFactor times the mean.
const (
	paceWeight = 32
	paceFactor = 4
)

func (p *pace) waited(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mean += (max(d, 0) - p.mean) / paceWeight
}

// firstPoll returns how long after a dispatch a driver looks into the journal. A look is of use when
// a job or a notice is lost. While calls wait for longer than usual it finds nothing, and adds to
// the load that they wait for.
func (p *pace) firstPoll(least, most time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return min(max(least, paceFactor*p.mean), most)
}
