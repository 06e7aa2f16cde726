package worker

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolfleet/toolfleet/messages"
)

// policyCheck compares this worker's policy with those of the coordinators. It says what is wrong once, and not for each job.
type policyCheck struct {
	version string // of the policy that this worker decides by; "": it has none
	log     *slog.Logger
	told    sync.Map     // versions of coordinators' policies that were told
	idle    atomic.Int64 // when it was told that no call is taken, in Unix nanoseconds; 0: none was refused since some were taken
}

// fits reports whether a job may be taken. A fleet whose coordinators have a policy is governed, and a worker without any would
// run what the policy asks people about. A worker that has another policy decides by its own.
func (p *policyCheck) fits(job messages.Job) bool {
	if job.Policy == messages.PlatformPolicy(p.version) {
		// Where coordinators of both kinds are there at once, each is told once a minute, and not for each job.
		if at := p.idle.Load(); at != 0 && time.Since(time.Unix(0, at)) > time.Minute && p.idle.CompareAndSwap(at, 0) {
			p.told.Clear()
			p.log.Warn("calls are taken, and nothing is denied: this coordinator has no policy, and this worker has none")
		}
		return true
	}
	if _, again := p.told.LoadOrStore(job.Policy, true); !again {
		p.tell(job.Policy)
	}
	return p.version != ""
}

func (p *policyCheck) tell(theirs string) {
	const next = "give every coordinator and worker the same policy file (--policy)"
	switch {
	case p.version == "":
		p.idle.Store(time.Now().UnixNano())
		p.log.Error("no call is taken: the coordinator has a policy, and this worker has none", "coordinator_policy", theirs, "next", next)
	case theirs == "":
		p.log.Warn("this worker has a policy, and the coordinator has none", "worker_policy", p.version, "next", next)
	default:
		p.log.Warn("the coordinator has another policy than this worker, which decides by its own", "coordinator_policy", theirs, "worker_policy", p.version, "next", next)
	}
}
