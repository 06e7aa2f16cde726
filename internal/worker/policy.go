package worker

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
)

// policyCheck compares this worker's policy with the policies of the coordinators. It logs
// each difference only once, not for each job.
type policyCheck struct {
	version string // the version of this worker's policy; "": it has none
	log     *slog.Logger
	logged  sync.Map // policies of coordinators that were logged, by version
	// idle is when the log last said that this worker takes no calls, in Unix nanoseconds. It
	// is 0 if the log has said since then that the worker takes calls again.
	idle atomic.Int64
}

// fits reports whether this worker may take a job. A worker without a policy may not take
// jobs of a coordinator that has one: it would run calls that the policy denies or asks
// people about. A worker with another policy than the coordinator's takes the job and
// applies its own policy.
func (p *policyCheck) fits(job wire.Job) bool {
	if job.Policy == wire.PlatformPolicy(p.version) {
		// If coordinators with a policy and without one run at the same time, each kind is
		// logged at most once a minute.
		if at := p.idle.Load(); at != 0 && time.Since(time.Unix(0, at)) > time.Minute && p.idle.CompareAndSwap(at, 0) {
			p.logged.Clear()
			p.log.Warn("calls are taken again, and nothing is denied: neither this coordinator nor this worker has a policy")
		}
		return true
	}
	if _, again := p.logged.LoadOrStore(job.Policy, true); !again {
		p.logDifference(job.Policy)
	}
	return p.version != ""
}

func (p *policyCheck) logDifference(other string) {
	const next = "give every coordinator and worker the same policy file (--policy)"
	switch {
	case p.version == "":
		p.idle.Store(time.Now().UnixNano())
		p.log.Error("no call is taken: the coordinator has a policy, and this worker has none",
			"coordinator_policy", other, "next", next)
	case other == "":
		p.log.Warn("this worker has a policy, and the coordinator has none", "worker_policy", p.version, "next", next)
	default:
		p.log.Warn("the coordinator has another policy than this worker, which decides by its own",
			"coordinator_policy", other, "worker_policy", p.version, "next", next)
	}
}
