package coordinator

import (
	"sync"
	"time"
)

// pace is the mean time that calls currently wait: the time from publishing a job to the
// notice of its end, less the duration of the run. Safe for concurrent use.
type pace struct {
	mu   sync.Mutex
	mean time.Duration // guarded by mu
}

// paceWeight: each new call has a weight of 1/paceWeight in the mean. paceFactor: a driver
// reads the journal when a call has waited for paceFactor times the mean.
const (
	paceWeight = 32
	paceFactor = 4
)

func (p *pace) waited(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mean += (max(d, 0) - p.mean) / paceWeight
}

// firstPoll returns how long after a dispatch a driver reads the journal. The read finds news
// only if a job or a notice was lost. It waits longer while all calls wait long, because early
// reads would add load to a busy server.
func (p *pace) firstPoll(least, most time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return min(max(least, paceFactor*p.mean), most)
}
